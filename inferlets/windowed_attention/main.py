"""Windowed attention: each token attends to the last ones only, and older pages are given back."""

from inferlet import Context, Model


async def main(
    prompt: str = "Once upon a time",
    window: int = 40,
    max_tokens: int = 128,
    model_name: str | None = None,
) -> dict[str, object]:
    """Returns the text, and the most pages that it held.

    Args:
        prompt: what to continue.
        window: tokens that a token attends to, itself included.
        max_tokens: most tokens of the text; it ends where the model's context does.
        model_name: one that the server serves.
    """
    served = Model.load(model_name)
    context = Context(served)
    new, out, pages = Context(served).fill(prompt).buffer(), list[int](), 0
    if not new:
        raise SystemExit("nothing to continue: give a `--prompt`")
    while len(out) < max_tokens and context.next_position < served.max_position:
        ends = range(len(context) + 1, len(context) + len(new) + 1)
        found = await context.forward(new, 1, mask=[[(max(0, end - window), end)] for end in ends])
        new = found[-1].tokens[:1]
        out += new
        pages = max(pages, len(context.pages))
        unseen = max(0, len(context) + 1 - window)
        context.drop(0, unseen - unseen % context.page_size)
    return {"text": served.tokenizer.decode(out), "tokens": out, "pages": pages}
