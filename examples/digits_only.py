"""Constrained decoding by hand: only tokens that are digits may come, the likeliest of them each
time.

Run: pie-py run examples/digits_only.py -- --prompt "The answer is " --count 4
"""

from inferlet import Context, Model


async def main(prompt: str = "The answer to everything is ", count: int = 4) -> str:
    """Returns a number of so many tokens."""
    model = Model.load()
    ids, texts = model.tokenizer.vocabs()
    allowed = {token for token, text in zip(ids, texts, strict=True) if text.isdigit()}
    context = Context(model).fill(prompt)
    generator = context.generate(max_tokens=count, stop=[])
    tokens: list[int] = []
    async for step in generator:
        distribution = await step.distribution(model.vocab_size)
        tokens += generator.accept([next(t for t in distribution.tokens if t in allowed)])
    return model.tokenizer.decode(tokens)
