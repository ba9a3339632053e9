"""Samplers of the program's own: DRY against repetition, XTC against clichés, eta against the tail.

Each takes the likeliest tokens with their weights and returns other weights; they can be combined.
"""

import math
from random import Random

from inferlet import Context, Model

Weights = dict[int, float]


def dry(
    weights: Weights, history: list[int], multiplier: float, base: float, allowed: int
) -> Weights:
    """Makes a token unlikely that would go on repeating, more so the longer the repetition."""
    longest: dict[int, int] = {}
    for at in range(1, len(history)):
        size = 0
        while size < at and history[at - 1 - size] == history[-1 - size]:
            size += 1
        longest[history[at]] = max(size, longest.get(history[at], 0))
    return {
        token: weight * math.exp(-multiplier * base ** (longest[token] - allowed))
        if longest.get(token, 0) >= allowed
        else weight
        for token, weight in weights.items()
    }


def xtc(weights: Weights, threshold: float, probability: float, draw: Random) -> Weights:
    """Sometimes leaves out all likely tokens but the least likely of these."""
    likely = [token for token, weight in weights.items() if weight >= threshold]
    if draw.random() >= probability:
        return weights
    return {token: weight for token, weight in weights.items() if token not in likely[:-1]}


def eta(weights: Weights, epsilon: float) -> Weights:
    """Leaves out tokens below a bar that falls where the model is unsure (Hewitt et al. 2022)."""
    entropy = -sum(w * math.log(w) for w in weights.values() if w > 0)
    bar = min(epsilon, math.sqrt(epsilon) * math.exp(-entropy))
    return {t: w for t, w in weights.items() if w >= bar} or weights


async def main(
    prompt: str = "Once upon a time",
    dry_multiplier: float = 0.8,
    dry_base: float = 1.75,
    dry_allowed: int = 2,
    xtc_threshold: float = 0.1,
    xtc_probability: float = 0.0,
    eta_epsilon: float = 0.0,
    temperature: float = 1.0,
    max_tokens: int = 48,
    seed: int = 1,
    model_name: str | None = None,
) -> dict[str, object]:
    """Returns the text, and of each token its probability and its rank, and how many were likely.

    Args:
        prompt: what to continue.
        dry_multiplier: strength of DRY; 0 is off.
        dry_base: by which it grows with each token of a repetition.
        dry_allowed: tokens of a repetition that are allowed.
        xtc_threshold: probability from which on a token is a likely one.
        xtc_probability: how often XTC acts; 0 is off.
        eta_epsilon: of eta sampling; 0 is off.
        temperature: 0 takes the best token that is left.
        max_tokens: tokens of the text.
        seed: makes it repeatable.
        model_name: one that the server serves.
    """
    context = Context(Model.load(model_name)).fill(prompt)
    draw, out = Random(seed), list[int]()
    told: list[tuple[float, int, int]] = []
    generator = context.generate(max_tokens=max_tokens, stop=[])
    async for step in generator:
        found = await step.distribution()
        weights = dict(zip(found.tokens, found.probabilities, strict=True))
        weights = eta(weights, eta_epsilon)
        weights = xtc(weights, xtc_threshold, xtc_probability, draw)
        weights = dry(weights, context.tokens, dry_multiplier, dry_base, dry_allowed)
        token = max(weights, key=weights.__getitem__)
        if temperature > 0:
            powers = [weight ** (1 / temperature) for weight in weights.values()]
            (token,) = draw.choices(list(weights), powers)
        out += generator.accept([token])
        likely = sum(p >= xtc_threshold for p in found.probabilities)
        told.append((found.probability(token), found.tokens.index(token), likely))
    text = context.model.tokenizer.decode(out)
    return {"text": text, "tokens": out, "told": told}
