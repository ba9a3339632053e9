"""Generates by one rule: in a device program, or step by step from each distribution."""

import json
import math
import random
import time
from typing import Any

from inferlet import Context, Model, device

LIKELIEST = 256  # tokens of a distribution that a guest sees


@device.program
def on_device(logits: device.Tensor, state: device.State) -> device.Tensor:
    """Mirostat 2.0."""
    surprise = -logits.log_softmax() / math.log(2)
    token = device.draw(logits.where(surprise <= state.mu, -math.inf))
    state.mu -= state.rate * (surprise[token] - state.tau)
    return token


class Mirostat:
    """The same rule over what a guest sees."""

    def __init__(self, mu: float, tau: float, rate: float) -> None:
        self.mu, self.tau, self.rate = mu, tau, rate
        self.chance = random.Random(1)

    def choose(self, tokens: list[int], probabilities: list[float]) -> int:
        """A token of a distribution, the likeliest first."""
        kept = [i for i, p in enumerate(probabilities) if -math.log2(p or 1e-30) <= self.mu] or [0]
        weights = [probabilities[i] for i in kept]
        (place,) = self.chance.choices(kept, weights)
        self.mu -= self.rate * (-math.log2(probabilities[place] or 1e-30) - self.tau)
        return tokens[place]


async def main(args: list[str]) -> str:
    """Takes a prompt, the number of tokens, and where the rule runs; gives the seconds."""
    job = json.loads(args[0])
    context = Context(Model.load()).fill(job["prompt"])
    await context.flush()
    given: dict[str, Any] = {"mu": 10.0, "tau": 5.0, "rate": 0.1}
    start = time.perf_counter()
    if job["on_device"]:
        generation = context.generate(on_device(**given, seed=1), max_tokens=job["tokens"], stop=[])
        tokens = await generation.collect_tokens()
    else:
        rule, tokens = Mirostat(**given), []
        for _ in range(job["tokens"]):
            seen = await context.distribution(LIKELIEST)
            tokens.append(rule.choose(seen.tokens, seen.probabilities))
            context.append([tokens[-1]])
    return json.dumps({"tokens": len(tokens), "seconds": time.perf_counter() - start})
