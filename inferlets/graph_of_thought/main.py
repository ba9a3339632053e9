"""Graph of thought: a sum in parts, each voted on, whose results are merged until one is left.

All votes of all parts of a level run in one batch, on forks that share their question's pages. It
is for instruct models: those with a chat template.
"""

from collections import Counter

from inferlet import Context, Grammar, Model, Sampler, gather

ANSWER = Grammar.regex(r"([^\n]{0,100}\n){0,6}Answer: -?[0-9]{1,9}")


async def attempt(question: Context, seed: int) -> int:
    """An answer, behind a few lines."""
    sampler = Sampler.multinomial(0.5, seed)
    generator = question.fork().generate(sampler, grammar=ANSWER, max_tokens=640)
    return int((await generator.collect_text()).rpartition("Answer: ")[2])


async def add(model: Model, numbers: list[int], votes: int, seed: int) -> int:
    """The sum of two by most attempts; a single number is itself."""
    if len(numbers) == 1:
        return numbers[0]
    question = Context(model).user(f"What is {numbers[0]} + {numbers[1]}?").cue()
    await question.flush()
    found = Counter(await gather(*(attempt(question, seed + i) for i in range(votes))))
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
