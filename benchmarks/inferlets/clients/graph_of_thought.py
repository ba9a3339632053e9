"""Graph of thought: the attempts at a part are one request (`n`); those of a level go at once."""

from __future__ import annotations

import re
from collections import Counter

from benchmarks.inferlets.endpoint import Endpoint, chat, together


async def add(endpoint: Endpoint, numbers: list[int], votes: int, seed: int) -> int:
    """What most attempts say."""
    if len(numbers) == 1:
        return numbers[0]
    prompt = chat(f"What is {numbers[0]} + {numbers[1]}?")
    choices = await endpoint.complete(prompt, 96, temperature=0.5, n=votes, seed=seed)
    found = Counter(int(m[1]) for one in choices if (m := re.search(r"Answer: (\d+)", one.text)))
    return found.most_common(1)[0][0]


async def main(endpoint: Endpoint, numbers: list[int], votes: int = 3, seed: int = 1) -> object:
    """Adds numbers."""
    while len(numbers) > 1:
        pairs = [numbers[i : i + 2] for i in range(0, len(numbers), 2)]
        numbers = await together(*((add, (endpoint, pair, votes, seed)) for pair in pairs))
    return {"answer": numbers[0]}
