"""Tree of thought: several next thoughts for each of the best ones so far, judged by code.

A thought is a line. Forks share the pages of what they have in common, all thoughts of a step run
in one batch, and the judge runs between the steps, in the program. A grammar holds the form of the
lines; their numbers are the model's. It is for instruct models: those with a chat template.
"""

import re

from inferlet import Context, Grammar, Model, Sampler, gather

PLACES = ("ones", "tens", "hundreds", "thousands")
SUM, DIFFERENCE = r"=\d{1,2} carry [01] so \d{1,5}", r" borrow [01], 1?\d(-\d){1,2}=\d so \d{1,5}"
LAST_SUM = r"=\d{1,2} so \d{1,5}"


def parts_of(question: str) -> list[str]:
    """A number, the sign, and another number."""
    parts = re.findall(r"\d+|[+-]", question)
    if len(parts) != 3 or len(max(parts, key=len)) > len(PLACES):
        raise SystemExit("a sum or difference of two numbers of up to four digits is wanted")
    return parts


def starts_of(question: str, lines: list[str]) -> list[str]:
    """How the lines of a worked sum or difference begin, as far as the lines so far tell."""
    first, sign, second = parts_of(question)
    width = max(len(first), len(second))
    top, bottom = first.zfill(width), second.zfill(width)
    starts, carry = [f"{top}{sign}{bottom}:"], ""
    for place, a, b, line in zip(
        PLACES, top[::-1], bottom[::-1], [*lines[1:], *PLACES], strict=False
    ):
        starts.append(f"{place}: {a}{sign}{b}{carry}")
        carry = "".join(sign + digit for digit in re.findall(r"(?:carry|borrow) (\d)", line))
    return [*starts[: width + 1], "Answer: "]


def shape(question: str, lines: list[str]) -> Grammar:
    """The candidates for the next line."""
    start, *later = starts_of(question, lines)[len(lines) :]
    if not later:
        return Grammar.regex(rf"{start}-?\d{{1,5}}")
    column = DIFFERENCE if "-" in question else SUM if later[1:] else LAST_SUM
    return Grammar.regex(re.escape(start) + (column if lines else "") + "\n")


def worked(question: str) -> list[str]:
    """The lines of a sum or difference that is right."""
    lines, digits = starts_of(question, [])[:1], ""
    while len(left := starts_of(question, lines)[len(lines) :]) > 1:
        column, last = left[0].partition(": ")[2], len(left) == 2
        value = sum(map(int, re.findall(r"[+-]?\d", column)))
        if "-" in column:
            lent = int(value < 0)
            value += 10 * lent
            told = f" borrow {lent}, {'1' * lent}{column}={value}"
        else:
            told = f"={value}" + ("" if last else f" carry {value // 10}")
        digits = f"{value if last else value % 10}{digits}"
        lines.append(f"{left[0]}{told} so {digits}")
    first, sign, second = parts_of(question)
    return [*lines, f"Answer: {int(first) + int(sign + second)}"]


def judge(question: str, lines: list[str]) -> int:
    """How many lines of a worked sum or difference hold, from the first on."""
    right = [line == wanted for line, wanted in zip(lines, worked(question), strict=False)]
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
