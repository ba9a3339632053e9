"""Samplers of the program's own: DRY against repetition, XTC against clichés, eta against the tail.

They are functions of a device program over all logits, which compose in any order.
"""

import math

from inferlet import Context, Model, device, samplers

ORDER = ["dry", "temperature", "eta_cutoff", "xtc"]


async def main(
    prompt: str = "Once upon a time",
    dry_multiplier: float = 0.8,
    dry_allowed: int = 2,
    xtc_threshold: float = 0.1,
    xtc_probability: float = 0.0,
    eta_epsilon: float = 0.0,
    temperature: float = 1.0,
    order: list[str] = [],  # noqa: B006
    max_tokens: int = 48,
    seed: int = 1,
    model_name: str | None = None,
) -> dict[str, object]:
    """Returns the text, and of each token its probability and its rank, and how many were likely.

    Args:
        prompt: what to continue.
        dry_multiplier: strength of DRY; 0 is off.
        dry_allowed: tokens of a repetition that are allowed.
        xtc_threshold: probability from which on a token is a likely one.
        xtc_probability: how often XTC acts; 0 is off.
        eta_epsilon: of eta sampling; 0 is off.
        temperature: 0 takes the best token that is left.
        order: of the steps, such as `dry temperature eta_cutoff xtc`.
        max_tokens: tokens of the text.
        seed: makes it repeatable.
        model_name: one that the server serves.
    """
    context = Context(Model.load(model_name)).fill(prompt)
    steps = order or ORDER

    @device.program
    def composed(logits: device.Tensor) -> device.Tensor:
        for name in steps:
            if name == "dry":
                logits = samplers.dry(logits, dry_multiplier, allowed=dry_allowed)
            elif name == "temperature":
                logits = logits / (temperature or 1)
            elif name == "eta_cutoff":
                logits = samplers.eta_cutoff(logits, eta_epsilon)
            else:
                logits = samplers.xtc(logits, xtc_threshold, xtc_probability)
        return device.draw(logits) if temperature else logits.argmax()

    tokens, told = [], []
    sampler = composed(seed=seed, logprobs=256)
    async for step in context.generate(sampler, max_tokens=max_tokens, stop=[]):
        output = await step.execute()
        found = output.distribution()
        likely = sum(p >= xtc_threshold for p in found.probabilities)
        rank = (found.tokens + output.tokens).index(output.tokens[0])  # the last one: beyond these
        tokens += output.tokens
        told.append((math.exp(output.logprob or 0), rank, likely))
    return {"text": context.model.tokenizer.decode(tokens), "tokens": tokens, "told": told}
