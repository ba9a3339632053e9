"""What a forward of Pie 0.4 tells of a position without choosing a token."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from inferlet import sample


class Probe(Protocol):
    """One of the classes here."""

    def size(self, vocabulary: int) -> int:
        """How many of the likeliest tokens it has to see."""

    def read(self, seen: sample.Distribution) -> Any:
        """Its value, of so many tokens."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """The `k` likeliest tokens and their probabilities at a temperature; all for `k` of 0."""

    temperature: float = 1.0
    k: int = 0

    def size(self, vocabulary: int) -> int:
        """All, where the temperature changes what they add up to."""
        return vocabulary if self.temperature != 1 or not self.k else min(self.k, vocabulary)

    def read(self, seen: sample.Distribution) -> tuple[list[int], list[float]]:
        """Tokens and probabilities, likeliest first."""
        count = self.k or len(seen.tokens)
        if self.temperature == 1:
            return seen.tokens[:count], seen.probabilities[:count]
        if self.temperature == 0:
            return seen.tokens[:count], [float(i == 0) for i in range(count)]
        best = seen.probabilities[0]
        weights = [(p / best) ** (1 / self.temperature) for p in seen.probabilities]
        total = sum(weights)
        return seen.tokens[:count], [weight / total for weight in weights[:count]]


@dataclass(frozen=True, slots=True, init=False)
class Logprobs:
    """Log-probabilities of some tokens."""

    tokens: tuple[int, ...]

    def __init__(self, tokens: Iterable[int] = ()) -> None:
        object.__setattr__(self, "tokens", tuple(tokens))

    def size(self, vocabulary: int) -> int:
        """All: any of them may be asked for."""
        return vocabulary

    def read(self, seen: sample.Distribution) -> list[float]:
        """One for each token, in their order."""
        return [seen.logprob(token) for token in self.tokens]


class Logprob(Logprobs):
    """The log-probability of one token, as a list of one."""

    def __init__(self, token: int) -> None:
        super().__init__((token,))


@dataclass(frozen=True, slots=True)
class Logits:
    """Logits of all tokens by their ids, as bytes of 32-bit floats.

    They are shifted so that their exponentials add up to 1: log-probabilities. Softmax, order and
    differences are those of the model's own.
    """

    def size(self, vocabulary: int) -> int:
        """All."""
        return vocabulary

    def read(self, seen: sample.Distribution) -> bytes:
        """Four bytes for each token."""
        logits = array("f", [-math.inf]) * len(seen.tokens)
        for token, probability in zip(seen.tokens, seen.probabilities, strict=True):
            if probability > 0:
                logits[token] = math.log(probability)
        return logits.tobytes()


@dataclass(frozen=True, slots=True)
class Entropy:
    """The entropy of the distribution, in nats."""

    def size(self, vocabulary: int) -> int:
        """All."""
        return vocabulary

    def read(self, seen: sample.Distribution) -> float:
        """`-sum(p log p)`."""
        return -sum(p * math.log(p) for p in seen.probabilities if p > 0)
