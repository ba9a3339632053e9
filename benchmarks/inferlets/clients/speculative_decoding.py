"""Speculative decoding: an endpoint without it decodes token by token."""

from __future__ import annotations

from benchmarks.inferlets.endpoint import Endpoint


async def main(endpoint: Endpoint, prompt: str, max_tokens: int) -> object:
    """Continues a text."""
    return {"text": await endpoint.text(prompt, max_tokens)}
