"""Text completion: one request."""

from __future__ import annotations

from benchmarks.inferlets.endpoint import Endpoint


async def main(endpoint: Endpoint, prompt: str, max_tokens: int) -> object:
    """Continues a text."""
    return await endpoint.text(prompt, max_tokens)
