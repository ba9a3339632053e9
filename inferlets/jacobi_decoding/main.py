"""Jacobi decoding: guesses for the next tokens are improved all at once, until they stand.

Each step of the server computes what follows every guess. Those that agree with it from the first
on are final; the others become what was computed. The output is that of decoding without guesses.
"""

from inferlet import Context, Model, Sampler


async def main(
    prompt: str = "Once upon a time there was a small fox called Rena. She",
    window: int = 6,
    max_tokens: int = 48,
    temperature: float = 0.0,
    model_name: str | None = None,
) -> dict[str, object]:
    """Returns the text and its tokens.

    Args:
        prompt: what to continue.
        window: tokens that are guessed at once, 1 to 16.
        max_tokens: most tokens of the text; it ends where the model's context does.
        temperature: of the choices; 0 is greedy.
        model_name: one that the server serves.
    """
    served = Model.load(model_name)
    context = Context(served).fill(prompt)
    sampler = Sampler(temperature=temperature, seed=1)
    tokens = await context.generate(
        sampler, max_tokens=max_tokens, stop=[], speculate=window, drafter="jacobi"
    ).collect_tokens()
    return {"text": served.tokenizer.decode(tokens), "tokens": tokens}
