"""Modular caching (Prompt Cache): parts of prompts are kept one by one, and used in any choice.

The modules of a schema have positions of their own, so that each is computed once, whatever others
a prompt has.
"""

from hashlib import sha256

from inferlet import Context, Model, PieError, gather


async def main(
    schema: list[str],
    use: list[int],
    prompt: str,
    span: int = 64,
    max_tokens: int = 16,
    model_name: str | None = None,
) -> dict[str, object]:
    """Returns the text, and how many tokens had to be computed.

    Args:
        schema: texts of all modules, in order.
        use: numbers of those that this prompt has, rising.
        prompt: what follows them.
        span: positions of a module, as many tokens as it may have.
        max_tokens: most tokens of the answer.
        model_name: one that the server serves.
    """
    served = Model.load(model_name)
    names = [
        f"module/{n * span}/{sha256(text.encode()).hexdigest()}" for n, text in enumerate(schema)
    ]
    missing = {n for n in use if names[n] not in Context.saved(served)}

    async def compute(number: int) -> int:
        module = Context(served, add_bos=False, prefix_cache=False, first_position=number * span)
        await module.fill(schema[number]).flush()
        if len(module) > span:
            raise SystemExit(f"module {number} has {len(module)} tokens: `--span` is {span}")
        try:
            module.save(names[number])
        except PieError as error:
            if error.code != "already-exists":  # another launch has saved it
                raise
        return len(module)

    computed = sum(await gather(*map(compute, missing)))
    chosen = [names[n] for n in use]
    context = Context.open(served, *chosen, next_position=len(schema) * span)
    assert context is not None
    found = len(context)
    context.fill(prompt)
    computed += len(context) - found
    tokens = await context.generate(max_tokens=max_tokens).collect_tokens()
    return {"text": served.tokenizer.decode(tokens), "tokens": tokens, "computed": computed}
