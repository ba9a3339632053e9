"""Jacobi decoding: guesses for the next tokens are improved all at once, until they stand.

Each forward computes what follows every guess. Those that agree with it from the first on are
final; the others become what was computed. The output is that of greedy decoding.
"""

from inferlet import Context, Model


async def main(
    prompt: str = "Once upon a time there was a small fox called Rena. She",
    window: int = 6,
    max_tokens: int = 48,
    model_name: str | None = None,
) -> dict[str, object]:
    """Returns the text, and how many forwards it took.

    Args:
        prompt: what to continue.
        window: tokens that are guessed at once.
        max_tokens: most tokens of the text; it ends where the model's context does.
        model_name: one that the server serves.
    """
    served = Model.load(model_name)
    context = Context(served).fill(prompt)
    token = (await context.distribution(1)).tokens[0]
    out: list[int] = []
    guess, forwards = [token] * window, 1
    while len(out) < max_tokens and (room := served.max_position - context.next_position) > 0:
        guess = guess[: min(window, room - 1)]
        likely = [d.tokens[0] for d in await context.forward([token, *guess], 1)]
        good = next((i for i, t in enumerate(guess) if t != likely[i]), len(guess))
        context.truncate(len(context) - len(guess) + good)
        out += [token, *guess[:good]]
        token, guess = likely[good], likely[good + 1 :] + [likely[-1]] * (good + 1)
        forwards += 1
    out = out[:max_tokens]
    return {"text": served.tokenizer.decode(out), "tokens": out, "forwards": forwards}
