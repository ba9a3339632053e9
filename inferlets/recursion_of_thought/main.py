"""Recursion of thought: what is too much for one context is divided, each part in one of its own.

The parts run at once, to any depth; a context holds one small problem, never the whole.
"""

import re

from inferlet import Context, Grammar, Model, gather

NUMBER = Grammar.regex(" -?[0-9]{1,9}")


async def ask(model: Model, question: str) -> int:
    """The model's own answer to a small problem.

    One that does not write `Answer: 32` by itself is made to, and ends there.
    """
    context = Context(model).user(f"What is {question}?")
    text = await context.generate(max_tokens=128).collect_text()
    match = re.search(r"Answer: (-?\d+)", text)
    if match is not None:
        return int(match[1])
    context.fill("\nAnswer:")
    return int(await context.generate(grammar=NUMBER, max_tokens=12).collect_text())


async def solve(model: Model, numbers: list[int], depth: int) -> tuple[int, int]:
    """A sum, and the depth of the recursion."""
    if len(numbers) == 1:
        return numbers[0], depth
    if len(numbers) > 2:
        half = len(numbers) // 2
        parts = (numbers[:half], numbers[half:])
        solved = await gather(*(solve(model, part, depth + 1) for part in parts))
        numbers, depth = [value for value, _ in solved], max(deep for _, deep in solved)
    return await ask(model, f"{numbers[0]} + {numbers[1]}"), depth


async def main(numbers: list[int]) -> dict[str, object]:
    """Returns the sum.

    Args:
        numbers: what to add.
    """
    value, depth = await solve(Model.load(), numbers, 1)
    return {"answer": value, "depth": depth}
