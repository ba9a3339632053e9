"""Attention sinks (StreamingLLM): the first page and the last ones stay, what is between goes.

Memory stays constant, however long the text, and so do positions: the keys of what stays are turned
to the places that the tokens have among the others now.
"""

from inferlet import Context, Model


async def main(
    prompt: str = "Once upon a time",
    window: int = 4,
    max_tokens: int = 256,
    model_name: str | None = None,
) -> dict[str, object]:
    """Returns the text, and the most pages that it held.

    Args:
        prompt: what to continue.
        window: pages that stay beside the first one, one at least.
        max_tokens: tokens of the text; more than the model's context has, if the window fits there.
        model_name: one that the server serves.
    """
    served = Model.load(model_name)
    context = Context(served, prefix_cache=False).fill(prompt)
    size, out, pages = context.page_size, list[int](), 0
    while len(out) < max_tokens:
        count = min(size - len(context) % size, max_tokens - len(out))
        new = await context.generate(max_tokens=count, stop=[]).collect_tokens()
        if not new:
            break
        out += new
        pages = max(pages, len(context.pages))
        while context.seq_len > (1 + max(window, 1)) * size:
            context.drop(size, 2 * size, close=True)
    text = served.tokenizer.decode(out)
    return {"text": text, "tokens": out, "pages": pages, "positions": context.next_position}
