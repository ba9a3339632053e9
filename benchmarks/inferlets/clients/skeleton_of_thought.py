"""Skeleton of thought: one request for the points, one for each of them."""

from __future__ import annotations

import re
from functools import partial

from benchmarks.inferlets.endpoint import Endpoint, chat, together


async def main(
    endpoint: Endpoint, prompt: str, points: int, max_tokens: int, seed: int = 1
) -> object:
    """Writes points, then expands them at once."""
    begin = chat(prompt)
    shape = "".join(
        rf"{n}\. [A-Z][a-z]{{1,8}}( [a-z]{{1,8}}){{1,3}}\n" for n in range(1, points + 1)
    )
    skeleton = await endpoint.text(begin, 40 * points, regex=shape, temperature=0.7, seed=seed)
    expand = partial(endpoint.text, stop=["\n"])
    parts = [f"{begin}{skeleton}{point}: " for point in re.findall(r"\d\. (.*)", skeleton)]
    await together(*((expand, (part, max_tokens)) for part in parts))
    return {}
