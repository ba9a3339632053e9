"""Prefix caching: the whole prompt each time; the server may know its beginning."""

from __future__ import annotations

from benchmarks.inferlets.endpoint import Endpoint


async def main(endpoint: Endpoint, prefix: str, prompt: str, max_tokens: int) -> object:
    """Continues a prefix and a prompt."""
    return {"text": await endpoint.text(prefix + prompt, max_tokens)}
