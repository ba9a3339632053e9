"""A watermark (Kirchenbauer et al.): after each token, a hash makes half of all tokens likelier.

The detector needs no model: it counts such tokens, and says how unlikely their number is by chance.
"""

from inferlet import Context, Model, device, samplers, watermark


async def main(
    prompt: str = "Once upon a time",
    delta: float = 4.0,
    key: int = 15485863,
    max_tokens: int = 60,
    seed: int = 1,
    quality: bool = False,
    model_name: str | None = None,
) -> dict[str, object]:
    """Returns the text and the detector's score.

    Args:
        prompt: what to continue.
        delta: what is added to the logits of favoured tokens; 0 makes no mark.
        key: who knows it can detect the mark.
        max_tokens: tokens of the text.
        seed: makes it repeatable.
        quality: whether to return the mean log-probability of a token, too.
        model_name: one that the server serves.
    """
    context = Context(Model.load(model_name)).fill(prompt)
    before = context.fork() if quality else None
    last = context.tokens[-1:]
    marked = device.program(lambda x, s: device.draw(samplers.watermark(x, s.delta, key=key)))
    sampler = marked(delta=float(delta), seed=seed)
    tokens = await context.generate(sampler, max_tokens=max_tokens, stop=[]).collect_tokens()
    logs = (await before.score([tokens]))[0] if before and tokens else []
    return {
        "text": context.model.tokenizer.decode(tokens),
        "tokens": tokens,
        "z": watermark.z_score(last + tokens, key=key) if tokens else None,
        "mean_logprob": sum(logs) / len(logs) if logs else None,
    }
