"""Tree of thought: each level is a request for each of the best, judged at the client."""

from __future__ import annotations

import re
from functools import partial

from benchmarks.inferlets.endpoint import Endpoint, chat, together


def judge(question: str, lines: list[str]) -> int:
    """How many lines hold; the program's own judge is longer, and as fast."""
    return sum(
        all(eval(left) == int(value) for left, value in re.findall(r"([\d+-]+)=(\d+)", line))
        for line in lines
    )


async def main(
    endpoint: Endpoint, question: str, branches: int, best: int, depth: int, seed: int = 1
) -> object:
    """Tries thoughts, and goes on with the best."""
    thoughts: list[list[str]] = [[]]
    ask = partial(endpoint.complete, n=branches, stop=["\n"], temperature=1.0, seed=seed)
    for _ in range(depth):
        prompts = [chat(question) + "".join(f"{line}\n" for line in lines) for lines in thoughts]
        answers = await together(*((ask, (prompt, 48)) for prompt in prompts))
        tried = [
            [*lines, choice.text]
            for lines, choices in zip(thoughts, answers, strict=True)
            for choice in choices
        ]
        thoughts = sorted(tried, key=lambda lines: -judge(question, lines))[:best]
        if thoughts[0][-1].startswith("Answer"):
            break
    return {}
