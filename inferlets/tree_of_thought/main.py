"""Tree of thought: several next thoughts for each of the best ones so far, judged by code.

A thought is a line. Forks share the pages of what they have in common, all thoughts of a step run
in one batch, and the judge runs between the steps, in the program. A
grammar holds the form of the lines; their numbers are the model's.
"""

import re

from inferlet import Context, Grammar, Model, Sampler, gather

PLACES = ("ones", "tens", "hundreds", "thousands")
COLUMN = {"+": r"=\d{1,2}( carry \d)? so \d{1,5}", "-": r" borrow [01], 1?\d(-\d)+=\d so \d{1,5}"}


def starts_of(question: str, lines: list[str]) -> list[str]:
    """How the lines of a worked sum or difference begin, and the one after them."""
    first, sign, second = re.findall(r"\d+|[+-]", question)
    width = max(len(first), len(second))
    top, bottom = first.zfill(width), second.zfill(width)
    starts, carry = [f"{top}{sign}{bottom}:"], ""
    for place, a, b, line in zip(PLACES, top[::-1], bottom[::-1], [*lines[1:], ""], strict=False):
        starts.append(f"{place}: {a}{sign}{b}{carry}")
        carry = sign + (re.findall(r"(?:carry|borrow) (\d)", line) or [""])[0]
    return [*starts[: width + 1], "Answer: "]


def shape(question: str, lines: list[str]) -> Grammar:
    """What the next line may be."""
    start, sign = starts_of(question, lines)[len(lines)], "-" if "-" in question else "+"
    if start == "Answer: ":
        return Grammar.regex(r"Answer: -?\d{1,5}")
    return Grammar.regex(re.escape(start) + (COLUMN[sign] if lines else "") + "\n")


def judge(question: str, lines: list[str]) -> int:
    """How many lines of a worked sum or difference hold, from the first on."""
    right = [
        line.startswith(start)
        and all(eval(left) == int(value) for left, value in re.findall(r"([\d+-]+)=(\d+)", line))
        and all((eval(x) < 0) == int(lent) for x, lent in re.findall(r"(\S+) borrow (\d)", line))
        for start, line in zip(starts_of(question, lines), lines, strict=False)
    ]
    return [*right, False].index(False)


async def main(
    question: str = "What is 880 - 826?",
    branches: int = 4,
    best: int = 2,
    depth: int = 8,
    temperature: float = 1.0,
    seed: int = 1,
) -> dict[str, object]:
    """Returns the answer, and what it took.

    Args:
        question: a sum or a difference.
        branches: thoughts that are tried after each of the best.
        best: how many thoughts go on.
        depth: most thoughts of an answer.
        temperature: of the thoughts but the first after each, which is greedy.
        seed: makes it repeatable.
    """
    model = Model.load()
    root = Context(model).user(question).cue()
    await root.flush()
    thoughts: list[tuple[int, list[str], Context]] = [(0, [], root)]
    pages = alone = 0
    for step in range(depth):
        forks = [(lines, ctx.fork()) for _, lines, ctx in thoughts for _ in range(branches)]
        samplers = [
            Sampler.multinomial(temperature if i % branches else 0, seed + 100 * step + i)
            for i in range(len(forks))
        ]
        texts = await gather(
            *(
                ctx.generate(sampler, grammar=shape(question, lines), max_tokens=48).collect_text()
                for (lines, ctx), sampler in zip(forks, samplers, strict=True)
            )
        )
        tried = [
            (judge(question, [*lines, text.strip()]), [*lines, text.strip()], ctx)
            for (lines, ctx), text in zip(forks, texts, strict=True)
        ]
        held = [page for *_, ctx in tried for page in ctx.pages]
        pages, alone = max(pages, len(set(held))), max(alone, len(held))
        thoughts = sorted(tried, key=lambda one: -one[0])[:best]
        if thoughts[0][1][-1].startswith("Answer"):
            break
    value, lines, _ = thoughts[0]
    return {"answer": lines[-1], "value": value, "lines": lines, "pages": pages, "alone": alone}
