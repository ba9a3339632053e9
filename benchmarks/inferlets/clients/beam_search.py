"""Beam search: a request for each beam and token, with the likeliest next tokens."""

from __future__ import annotations

from functools import partial

from benchmarks.inferlets.endpoint import Endpoint, together


async def main(endpoint: Endpoint, prompt: str, width: int, max_tokens: int) -> object:
    """Finds the likeliest texts."""
    beams = [(0.0, prompt)]
    likely = partial(endpoint.complete, logprobs=2 * width)
    for _ in range(max_tokens):
        answers = await together(*((likely, (text, 1)) for _, text in beams))
        beams = sorted(
            (
                (score + logprob, text + token)
                for (score, text), (choice,) in zip(beams, answers, strict=True)
                for token, logprob in choice.logprobs[0].items()
            ),
            reverse=True,
        )[:width]
    return {}
