"""Contrastive decoding (Li et al.): the token that a large model likes more than a small one does.

Only tokens count that the large model itself finds likely enough.
"""

from inferlet import Context, DeviceSampler, Model


async def main(
    prompt: str = "Once upon a time",
    amateur: str | None = None,
    alpha: float = 0.1,
    beta: float = 1.0,
    max_tokens: int = 24,
    model_name: str | None = None,
) -> dict[str, object]:
    """Returns the text.

    Args:
        prompt: what to continue.
        amateur: a small model that is served, with the same tokenizer; by default the large one
            itself, of which the prompt's last token is all that it has read.
        alpha: share of the likeliest token's probability that a token must have.
        beta: how much of the small model's logits is taken off.
        max_tokens: tokens of the text.
        model_name: the large model.
    """
    expert = Context(Model.load(model_name)).fill(prompt)
    other = Context(Model.load(amateur or model_name))
    other.append(expert.tokens if amateur else expert.tokens[-1:])
    sampler = DeviceSampler(mix=[1, -beta], plausibility=alpha, temperature=0)
    tokens = await expert.generate(
        sampler, beside=[other], max_tokens=max_tokens, stop=[]
    ).collect_tokens()
    return {"text": expert.model.tokenizer.decode(tokens), "tokens": tokens}
