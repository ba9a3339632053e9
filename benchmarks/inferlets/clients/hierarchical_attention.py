"""Parts of a text: an endpoint attends to all of them."""

from __future__ import annotations

from benchmarks.inferlets.endpoint import Endpoint


async def main(endpoint: Endpoint, parts: list[str], prompt: str, max_tokens: int) -> object:
    """Answers a question about a text."""
    await endpoint.text("".join([*parts, prompt]), max_tokens)
    return {}
