"""Graph of thought: a sum in parts, each voted on, whose results are merged until one is left.

All votes of all parts of a level run in one batch, on forks that share their question's pages.
"""

import re
from collections import Counter

from inferlet import Context, Model, Sampler, gather


async def add(model: Model, numbers: list[int], votes: int, seed: int) -> int:
    """What most attempts at a sum of two say; a single number is itself."""
    if len(numbers) == 1:
        return numbers[0]
    question = Context(model).user(f"What is {numbers[0]} + {numbers[1]}?").cue()
    await question.flush()
    texts = await gather(
        *(
            question.fork()
            .generate(Sampler.multinomial(0.5, seed + i), max_tokens=96)
            .collect_text()
            for i in range(votes)
        )
    )
    found = Counter(int(match[1]) for text in texts if (match := re.search(r"Answer: (\d+)", text)))
    if not found:
        raise ValueError(f"no answer to {numbers}: {texts}")
    return found.most_common(1)[0][0]


async def main(numbers: list[int], votes: int = 3, seed: int = 1) -> dict[str, object]:
    """Returns the sum, and the levels of the graph.

    Args:
        numbers: what to add.
        votes: attempts at each sum of two.
        seed: makes it repeatable.
    """
    model, levels = Model.load(), [numbers]
    while len(levels[-1]) > 1:
        pairs = [levels[-1][i : i + 2] for i in range(0, len(levels[-1]), 2)]
        levels.append(await gather(*(add(model, pair, votes, seed) for pair in pairs)))
    return {"answer": levels[-1][0], "levels": levels}
