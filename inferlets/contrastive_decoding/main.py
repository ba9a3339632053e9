"""Contrastive decoding (Li et al.): the token that a large model likes more than a small one does.

Only tokens count that the large model itself finds likely enough.
"""

from inferlet import Context, Model, device, samplers


@device.program
def contrasted(logits: device.Tensor, state: device.State) -> device.Tensor:
    """The likely token that the other context likes least."""
    plausible = samplers.min_p(logits, state.alpha)
    return (plausible - device.beside(0).log_softmax() * state.beta).argmax()


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
    tokens = await expert.generate(
        contrasted(alpha=float(alpha), beta=float(beta)),
        beside=[other],
        max_tokens=max_tokens,
        stop=[],
    ).collect_tokens()
    return {"text": expert.model.tokenizer.decode(tokens), "tokens": tokens}
