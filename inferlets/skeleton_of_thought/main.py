"""Skeleton of thought: the points of an answer first, then all of them at once.

The points keep to a grammar; each is expanded on a fork, and the forks are joined to one context.
It is for instruct models: those with a chat template.
"""

import re

from inferlet import Context, Grammar, Model, Sampler, gather


async def main(
    prompt: str = "Write about a fox, a hen and a bear.",
    points: int = 3,
    max_tokens: int = 24,
    temperature: float = 0.7,
    seed: int = 1,
) -> dict[str, object]:
    """Returns the points, their texts, and the pages that the branches held, shared and not.

    Args:
        prompt: what to write about.
        points: how many.
        max_tokens: most tokens of a point.
        temperature: of the points.
        seed: makes it repeatable.
    """
    context = Context(Model.load()).user(prompt).cue()
    lines = "".join(
        rf"{n}\. [A-Z][a-z]{{1,12}}( [a-z]{{1,12}}){{1,5}}\n" for n in range(1, points + 1)
    )
    sampler = Sampler.multinomial(temperature, seed)
    generator = context.generate(sampler, grammar=Grammar.regex(lines), max_tokens=40 * points)
    skeleton = re.findall(r"\d\. (.*)", await generator.collect_text())
    await context.flush()
    branches = [context.fork().user(f"Write a sentence: {point}.") for point in skeleton]
    texts = await gather(
        *(branch.generate(max_tokens=max_tokens).collect_text() for branch in branches)
    )
    if not all(texts):
        raise SystemExit(f"the model wrote nothing about a point: {skeleton}, {texts}")
    held = [page for branch in branches for page in branch.pages]
    return {
        "points": skeleton,
        "texts": texts,
        "tokens": len(context.join(*branches)),
        "pages": len(set(held)),
        "alone": len(held),
    }
