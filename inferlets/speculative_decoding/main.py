"""Speculative decoding: a cheap drafter proposes tokens, the model verifies them in one step.

The drafter is the server's prompt lookup (what followed the last tokens when they came before), or
a small model that is served, too. Both draft in the server's steps; the output is the model's own.
"""

from inferlet import Context, Model


async def main(
    prompt: str = "Once upon a time there was a small fox called Rena. She",
    drafter: str | None = None,
    draft_tokens: int = 8,
    max_tokens: int = 64,
    model_name: str | None = None,
) -> dict[str, object]:
    """Returns the text and its tokens.

    Args:
        prompt: what to continue.
        drafter: a small model with the same tokenizer; by default the server looks up what came
            before.
        draft_tokens: most tokens that are proposed at once, 1 to 16.
        max_tokens: most tokens of the text.
        model_name: the large model.
    """
    served = Model.load(model_name)
    context = Context(served).fill(prompt)
    small = Context(Model.load(drafter)) if drafter else None
    generation = context.generate(max_tokens=max_tokens, speculate=draft_tokens, drafter=small)
    tokens = await generation.collect_tokens()
    return {"text": served.tokenizer.decode(tokens), "tokens": tokens}
