"""Prefix caching: the keys and values of a prompt's beginning, kept for later launches by name."""

from hashlib import sha256

from inferlet import Context, Model, PieError


async def main(
    prefix: str = "Rena lives in Swoosuk. Rena is 30 years old.",
    prompt: str = " Her best friend",
    max_tokens: int = 16,
    model_name: str | None = None,
) -> dict[str, object]:
    """Returns the text, and how many tokens of the prompt had to be computed.

    Args:
        prefix: what many prompts begin with.
        prompt: what follows it.
        max_tokens: most tokens of the answer.
        model_name: one that the server serves.
    """
    served = Model.load(model_name)
    name = f"prefix/{sha256(prefix.encode()).hexdigest()}"
    context = Context.open(served, name)
    found = 0 if context is None else len(context)
    if context is None:
        context = Context(served, prefix_cache=False).fill(prefix)
        await context.flush()
        try:
            context.save(name)
        except PieError as error:
            if error.code != "already-exists":  # another launch has saved it
                raise
    context.fill(prompt)
    computed = len(context) - found
    text = await context.generate(max_tokens=max_tokens).collect_text()
    return {"text": text, "computed": computed}
