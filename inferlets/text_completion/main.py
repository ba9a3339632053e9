"""Continues a prompt and streams the answer.

Run: pie-py run inferlets/text_completion --prompt "The capital of"
"""

from inferlet import Context, Model, PieError, Sampler


async def main(
    prompt: str,
    chat: bool = False,
    max_tokens: int = 64,
    temperature: float = 0.0,
    top_p: float = 1.0,
    top_k: int | None = None,
    seed: int | None = None,
) -> str:
    """Sends the answer to the client in pieces, as it is generated.

    Args:
        prompt: what to continue.
        chat: answers the prompt, by the model's chat template.
        max_tokens: most tokens to generate.
        temperature: 0 is greedy.
        top_p: share of likelihood to choose from.
        top_k: number of tokens to choose from.
        seed: makes the choices repeatable.
    """
    sampler = Sampler(temperature=temperature, top_k=top_k or 0, top_p=top_p, seed=seed)
    context = Context(Model.load())
    if chat:
        context.user(prompt)
    else:
        context.fill(prompt)
    try:
        await context.generate(sampler, max_tokens=max_tokens).send_text()
    except (PieError, ValueError) as error:
        if getattr(error, "code", "invalid-argument") != "invalid-argument":
            raise
        raise SystemExit(f"usage: {error}") from None
    return ""
