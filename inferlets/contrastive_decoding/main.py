"""Contrastive decoding (Li et al.): the token that a large model likes more than a small one does.

Only tokens count that the large model itself finds likely enough.
"""

import math

from inferlet import Context, Model, gather


async def main(
    prompt: str = "Once upon a time",
    amateur: str = "pie-tiny-draft",
    alpha: float = 0.1,
    max_tokens: int = 24,
    model_name: str | None = None,
) -> dict[str, object]:
    """Returns the text.

    Args:
        prompt: what to continue.
        amateur: the small model; the tokenizer is the same.
        alpha: share of the likeliest token's probability that a token must have.
        max_tokens: tokens of the text.
        model_name: the large model.
    """
    expert = Context(Model.load(model_name)).fill(prompt)
    other = Context(Model.load(amateur)).fill(prompt)
    tokens: list[int] = []
    for _ in range(max_tokens):
        likely, less = await gather(
            expert.distribution(), other.distribution(expert.model.vocab_size)
        )
        beside = dict(zip(less.tokens, less.probabilities, strict=True))
        scores = {
            token: math.log(p) - math.log(beside[token])
            for token, p in zip(likely.tokens, likely.probabilities, strict=True)
            if p >= alpha * likely.probabilities[0]
        }
        tokens.append(max(scores, key=scores.__getitem__))
        expert.append(tokens[-1:])
        other.append(tokens[-1:])
    return {"text": expert.model.tokenizer.decode(tokens), "tokens": tokens}
