"""Classifier-free guidance: what a prompt changes, compared with another prompt, is exaggerated.

Two contexts of one model run in one batch: `logits = other + scale * (prompt - other)`.
"""

from inferlet import Context, Model, device, samplers


@device.program
def guided(logits: device.Tensor, state: device.State) -> device.Tensor:
    """A token of the exaggerated logits; the likeliest one at temperature 0."""
    found = samplers.guidance(logits, device.beside(0), state.scale)
    drawn = device.draw(found / device.maximum(state.temperature, 1e-6))
    return device.where(state.temperature > 0.0, drawn, found.argmax())


async def main(
    prompt: str = "Once upon a time there was a sad girl called Anna.",
    other: str = "Once upon a time there was a girl called Anna.",
    scale: float = 2.0,
    temperature: float = 0.0,
    max_tokens: int = 24,
    model_name: str | None = None,
) -> dict[str, object]:
    """Returns the text.

    Args:
        prompt: what to continue.
        other: the prompt to be compared with; a negative prompt is one to keep away from.
        scale: 1 is the prompt alone, 0 the other one.
        temperature: 0 takes the most likely token.
        max_tokens: tokens of the text.
        model_name: one that the server serves.
    """
    served = Model.load(model_name)
    wanted, beside = Context(served).fill(prompt), Context(served).fill(other)
    sampler = guided(scale=float(scale), temperature=float(temperature))
    tokens = await wanted.generate(
        sampler, beside=[beside], max_tokens=max_tokens, stop=[]
    ).collect_tokens()
    return {"text": served.tokenizer.decode(tokens), "tokens": tokens}
