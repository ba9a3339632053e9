"""Recursion of thought: what is too much for one context is divided, each part in one of its own.

The parts run at once, to any depth; a context holds one small problem, never the whole. It is for
instruct models: those with a chat template.
"""

from inferlet import Context, Grammar, Model, gather

ANSWER = Grammar.regex(r"([^\n]{0,100}\n){0,6}Answer: -?[0-9]{1,9}")


async def ask(model: Model, question: str) -> int:
    """The model's own answer to a small problem, behind a few lines."""
    context = Context(model).user(f"What is {question}?")
    text = await context.generate(grammar=ANSWER, max_tokens=640).collect_text()
    return int(text.rpartition("Answer: ")[2])


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
