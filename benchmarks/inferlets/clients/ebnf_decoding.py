"""Constrained decoding: the grammar goes with the request."""

from __future__ import annotations

from benchmarks.inferlets.endpoint import Endpoint


async def main(endpoint: Endpoint, prompt: str, ebnf: str, max_tokens: int) -> object:
    """Continues a text within a grammar."""
    return await endpoint.text(prompt, max_tokens, structured_outputs={"grammar": ebnf})
