"""Output validation: the model says how likely each allowed answer is, all in one batch.

An answer is taken if its share of the probability is large enough; else the program says so, where
a prompt would give text all the same.
"""

import math

from inferlet import Context, Model


async def main(
    options: list[str],
    prompt: str = "The colour of coal is",
    threshold: float = 0.5,
    model_name: str | None = None,
) -> dict[str, object]:
    """Returns the best option if it is sure enough, and the share of each.

    Args:
        options: the texts that are allowed.
        prompt: what they may follow.
        threshold: share of the probability of all options that an answer needs.
        model_name: one that the server serves.
    """
    logs = await Context(Model.load(model_name)).fill(prompt).score(options)
    totals = [sum(one) for one in logs]
    weights = [math.exp(total - max(totals)) for total in totals]
    shares = {option: w / sum(weights) for option, w in zip(options, weights, strict=True)}
    best = max(shares, key=shares.__getitem__)
    return {"answer": best if shares[best] >= threshold else None, "shares": shares, "logs": totals}
