"""Classifier-free guidance: what a prompt changes, compared with another prompt, is exaggerated.

Two contexts of one model run in one batch: `logits = other + scale * (prompt - other)`.
"""

import math

from inferlet import Context, Model, gather


async def main(
    prompt: str = "Once upon a time there was a sad girl called Anna.",
    other: str = "Once upon a time there was a girl called Anna.",
    scale: float = 2.0,
    max_tokens: int = 24,
    model_name: str | None = None,
) -> dict[str, object]:
    """Returns the text.

    Args:
        prompt: what to continue.
        other: the prompt to be compared with; a negative prompt is one to keep away from.
        scale: 1 is the prompt alone, 0 the other one.
        max_tokens: tokens of the text.
        model_name: one that the server serves.
    """
    served = Model.load(model_name)
    wanted, beside = Context(served).fill(prompt), Context(served).fill(other)
    tokens: list[int] = []
    for _ in range(max_tokens):
        first, second = await gather(
            wanted.distribution(served.vocab_size), beside.distribution(served.vocab_size)
        )
        logs = dict(zip(second.tokens, map(math.log, second.probabilities), strict=True))
        scores = {
            token: logs[token] + scale * (math.log(p) - logs[token])
            for token, p in zip(first.tokens, first.probabilities, strict=True)
        }
        tokens.append(max(scores, key=scores.__getitem__))
        wanted.append(tokens[-1:])
        beside.append(tokens[-1:])
    return {"text": served.tokenizer.decode(tokens), "tokens": tokens}
