"""StreamingLLM's baseline, a sliding window that is recomputed: an endpoint has no sink."""

from __future__ import annotations

from benchmarks.inferlets.endpoint import Endpoint

STEP = 16  # tokens of a request; the program gives up a page as often
LETTERS = 4  # about, of a token


async def main(endpoint: Endpoint, prompt: str, window: int, max_tokens: int) -> object:
    """Continues a text endlessly: its beginning and its end are sent again and again."""
    text = ""
    for _ in range(0, max_tokens, STEP):
        seen = f"{prompt}{text[-window * STEP * LETTERS :]}"
        text += await endpoint.text(seen, STEP, ignore_eos=True)
    return {}
