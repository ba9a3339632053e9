"""Tokens that are attended to little are given up: SnapKV for the prompt, H2O while text comes.

The prompt's last tokens show what matters of it, and the text's last tokens what matters later on.
"""

from typing import Literal

from inferlet import Context, Model, introspect

POOL = 3  # neighbours on each side that a token counts with


async def shrink(context: Context, budget: int, observed: int, policy: str) -> None:
    """Evicts tokens until `budget` are left: the first and the last stay, and those that matter."""
    await context.flush()
    excess = len(context) - budget
    middle: list[int] = list(range(1, len(context) - observed))
    if excess > 0 and middle:
        if policy == "attention":
            (weights,) = await introspect.attention(context, observed=observed)
            # A token counts as much as its neighbours (SnapKV's pooling): words stay whole.
            middle.sort(key=lambda at: max(weights[max(0, at - POOL) : at + POOL + 1]))
        context.evict(middle[:excess])


async def main(
    prompt: str,
    budget: int = 64,
    observed: int = 8,
    policy: Literal["attention", "recent"] = "attention",
    max_tokens: int = 64,
) -> dict[str, object]:
    """Returns the text, and the most tokens that it held while it was written.

    Args:
        prompt: what to continue.
        budget: tokens that stay.
        observed: last tokens, whose attention is what counts.
        policy: "attention", or "recent": the oldest tokens go.
        max_tokens: most tokens of the text.
    """
    context = Context(Model.load(), prefix_cache=False).fill(prompt)
    before = len(context)
    out: list[int] = []
    most = 0
    while len(out) < max_tokens:
        await shrink(context, budget, observed, policy)
        count = min(context.page_size, max_tokens - len(out))
        new = await context.generate(max_tokens=count).collect_tokens()
        out += new
        most = max(most, len(context))
        if len(new) < count:
            break
    return {"text": context.model.tokenizer.decode(out), "prompt": before, "most": most}
