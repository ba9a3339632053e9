"""Samplers, which choose a token from a distribution, and the distributions."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import neg
from random import Random
from typing import Any

from inferlet.device_sampler import DeviceSampler

DISTRIBUTION_SIZE = 256  # most likely tokens that a sampler looks at
NEGLIGIBLE = 1e-7  # weight, relative to the most likely token's, below which a token is left out


@dataclass(frozen=True, slots=True)
class Sampler:
    """How to choose a token. Make one with a class method, as in `Sampler.top_p(0.6, 0.95)`.

    The filters apply in this order: temperature, top-k, top-p, min-p. A temperature of 0 takes the
    most likely token. At most the 256 most likely tokens are looked at. A rule of one's own is no
    subclass: `Context.generate` takes it as `choose`.
    """

    temperature: float = 1.0
    k: int | None = None
    p: float = 1.0
    minimum: float = 0.0  # share of the most likely token's probability that a token must have
    seed: int | None = None  # same seed, same choices; without one it is random

    def __init_subclass__(cls) -> None:
        raise TypeError(
            "Sampler has no subclasses: give your rule to `context.generate(choose=rule)`. It is a"
            " function, or an object that is called, of (tokens, probabilities), and returns one"
        )

    def __post_init__(self) -> None:
        if self.temperature < 0:
            raise ValueError(
                f"temperature {self.temperature} is negative: 0 always takes the most likely token,"
                " 1 keeps the model's probabilities"
            )
        if self.k is not None and self.k < 1:
            raise ValueError(f"k of top-k is {self.k}: it must be at least 1")
        if not 0 < self.p <= 1:
            raise ValueError(f"p of top-p is {self.p}: it must be above 0 and at most 1")
        if not 0 <= self.minimum <= 1:
            raise ValueError(f"p of min-p is {self.minimum}: it must be from 0 to 1")

    @classmethod
    def argmax(cls) -> Sampler:
        """Always the most likely token."""
        return cls(temperature=0.0)

    greedy = argmax

    @classmethod
    def top_p(cls, temperature: float = 0.6, p: float = 0.95, seed: int | None = None) -> Sampler:
        """Nucleus sampling: the fewest most likely tokens whose probabilities reach `p`."""
        return cls(temperature=temperature, p=p, seed=seed)

    @classmethod
    def top_k(cls, temperature: float = 0.6, k: int = 40, seed: int | None = None) -> Sampler:
        """Among the `k` most likely tokens."""
        return cls(temperature=temperature, k=k, seed=seed)

    @classmethod
    def min_p(cls, temperature: float = 0.6, p: float = 0.1, seed: int | None = None) -> Sampler:
        """Among the tokens that are at least `p` times as likely as the most likely one."""
        return cls(temperature=temperature, minimum=p, seed=seed)

    @classmethod
    def top_k_top_p(
        cls, temperature: float = 0.6, k: int = 40, p: float = 0.95, seed: int | None = None
    ) -> Sampler:
        """Top-k, then top-p among those."""
        return cls(temperature=temperature, k=k, p=p, seed=seed)

    @classmethod
    def multinomial(cls, temperature: float = 1.0, seed: int | None = None) -> Sampler:
        """By probability, after temperature."""
        return cls(temperature=temperature, seed=seed)

    def seeded(self, seed: int | None) -> Sampler:
        """The same sampler with another seed."""
        return replace(self, seed=seed)

    def on_device(self, **more: Any) -> DeviceSampler:
        """The same choice, made by the server among the whole vocabulary.

        Args:
            more: other fields of `DeviceSampler`, such as `repetition_penalty` and `logprobs`.
        """
        facts = {
            "temperature": self.temperature,
            "top_k": self.k or 0,
            "top_p": self.p,
            "min_p": self.minimum,
            "seed": self.seed,
        }
        return DeviceSampler(**(facts | more))

    @property
    def size(self) -> int:
        """How many of the most likely tokens the sampler needs to see."""
        if self.temperature == 0:
            return 1
        return min(self.k or DISTRIBUTION_SIZE, DISTRIBUTION_SIZE)

    def choose(
        self, tokens: Sequence[int], probabilities: Sequence[float], generator: Random
    ) -> int:
        """Chooses one of the tokens.

        Args:
            tokens: token ids, most likely first.
            probabilities: theirs, of the softmax over the whole vocabulary at temperature 1.
            generator: source of randomness; one number is drawn, none at temperature 0.
        """
        if self.temperature == 0:
            return tokens[0]
        best = probabilities[0]
        count = min(len(tokens), self.k or len(tokens))
        floor = best * NEGLIGIBLE**self.temperature
        count = max(1, bisect_right(probabilities, -floor, 0, count, key=neg))
        if self.temperature == 1:
            weights = [probability / best for probability in probabilities[:count]]
        else:
            power = 1 / self.temperature
            weights = [(probability / best) ** power for probability in probabilities[:count]]
        sums = list(accumulate(weights))
        if self.p < 1:
            count = min(count, bisect_left(sums, self.p * sums[-1]) + 1)
        if self.minimum > 0:
            count = max(1, bisect_right(weights, -self.minimum, 0, count, key=neg))
        chosen = bisect_right(sums, generator.random() * sums[count - 1], 0, count)
        return tokens[min(chosen, count - 1)]


@dataclass(frozen=True, slots=True)
class Distribution:
    """The most likely next tokens, most likely first, and their probabilities at temperature 1."""

    tokens: list[int]
    probabilities: list[float]

    def max_index(self) -> int:
        """The most likely token."""
        return self.tokens[0]

    def probability(self, token: int) -> float:
        """A token's probability; 0 if it is not among those returned."""
        try:
            return self.probabilities[self.tokens.index(token)]
        except ValueError:
            return 0.0

    def logprob(self, token: int) -> float:
        """A token's log-probability; minus infinity if it is not among those returned."""
        probability = self.probability(token)
        return math.log(probability) if probability > 0 else -math.inf

    def __len__(self) -> int:
        return len(self.tokens)
