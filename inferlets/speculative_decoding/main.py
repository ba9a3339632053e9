"""Speculative decoding: a cheap drafter proposes tokens, the model verifies them in one forward.

The drafter is the server's prompt lookup (what followed the last tokens when they came before), or
a small model that is served, too. The output is the model's own, greedy.
"""

from inferlet import Context, Model


class SmallModel:
    """Drafts of a small model, whose context follows the large one's."""

    def __init__(self, name: str) -> None:
        """Takes a model that is served."""
        self.context = Context(Model.load(name))

    async def draft(self, tokens: list[int], count: int) -> list[int]:
        """Its own greedy continuation."""
        known = self.context.tokens
        pairs = zip(known, tokens, strict=False)
        same = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(known), len(tokens)))
        self.context.truncate(same)
        self.context.append(tokens[len(self.context) :])
        return await self.context.generate(max_tokens=count, stop=[]).collect_tokens()


async def main(
    prompt: str = "Once upon a time there was a small fox called Rena. She",
    drafter: str | None = None,
    draft_tokens: int = 8,
    max_tokens: int = 64,
    model_name: str | None = None,
) -> dict[str, object]:
    """Returns the text, and with a small model how many forwards it took.

    Args:
        prompt: what to continue.
        drafter: a small model with the same tokenizer; by default the server looks up what came
            before.
        draft_tokens: most tokens that are proposed at once.
        max_tokens: most tokens of the text.
        model_name: the large model.
    """
    served = Model.load(model_name)
    context = Context(served).fill(prompt)
    if drafter is None:
        generation = context.generate(max_tokens=max_tokens, speculate=draft_tokens)
        tokens = await generation.collect_tokens()
        return {"text": served.tokenizer.decode(tokens), "tokens": tokens}
    small = SmallModel(drafter)
    out: list[int] = []
    forwards = drafted = 0
    while len(out) < max_tokens and not set(out) & set(served.stop_tokens):
        known = context.tokens
        draft = await small.draft(known, draft_tokens)
        out += await context.verify(draft)
        forwards, drafted = forwards + 1, drafted + len(draft)
    stop = next((i for i, token in enumerate(out) if token in served.stop_tokens), None)
    out = out[:stop][:max_tokens]
    text = served.tokenizer.decode(out)
    return {"text": text, "tokens": out, "forwards": forwards, "drafted": drafted}
