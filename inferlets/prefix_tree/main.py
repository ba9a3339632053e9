"""A prefix tree (as RadixAttention's): every beginning of a prompt of parts is kept, and found.

A node is named by the hash of all parts up to it. A prompt begins with the longest node there is.
"""

from hashlib import sha256

from inferlet import Context, Model, PieError


async def main(
    parts: list[str], max_tokens: int = 16, model_name: str | None = None
) -> dict[str, object]:
    """Returns the text, and how many of the parts were found.

    Args:
        parts: of the prompt, in order; the last one is not kept.
        max_tokens: most tokens of the answer.
        model_name: one that the server serves.
    """
    served = Model.load(model_name)
    *shared, prompt = parts
    names = [
        "tree/" + sha256("\0".join(shared[:n]).encode()).hexdigest() for n in range(len(parts))
    ]
    saved = set(Context.saved(served))
    found = max((n for n, name in enumerate(names) if name in saved), default=0)
    context = Context.open(served, names[found]) if found else Context(served, prefix_cache=False)
    assert context is not None  # it was listed
    reused = len(context)
    for part, name in zip(shared[found:], names[found + 1 :], strict=True):
        await context.fill(part).flush()
        try:
            context.save(name)
        except PieError as error:
            if error.code != "already-exists":  # another launch has saved it
                raise
    context.fill(prompt)
    return {
        "found": found,
        "computed": len(context) - reused,
        "text": await context.generate(max_tokens=max_tokens).collect_text(),
    }
