"""Hierarchical attention: of each part of a text only the last tokens are seen by later parts.

A part's tokens attend to each other, and to what stands for the parts before.
"""

from inferlet import Context, Model


async def main(
    parts: list[str],
    prompt: str,
    keep: int = 4,
    max_tokens: int = 32,
    model_name: str | None = None,
) -> dict[str, object]:
    """Returns the text, and how many tokens are left of the parts.

    Args:
        parts: of the text, in order.
        prompt: what follows them.
        keep: last tokens of a part that later ones see.
        max_tokens: most tokens of the answer.
        model_name: one that the server serves.
    """
    context = Context(Model.load(model_name), prefix_cache=False)
    for part in parts:
        start = len(context)
        await context.fill(part).flush()
        context.evict(range(start, max(start, len(context) - keep)))
    left = len(context)
    tokens = await context.fill(prompt).generate(max_tokens=max_tokens).collect_tokens()
    return {"text": context.model.tokenizer.decode(tokens), "tokens": tokens, "left": left}
