"""When a run guesses its next tokens, and how many: where that pays.

A step that verifies guesses takes longer than a plain one, and the run has none ahead meanwhile. So
it has to be expected that more guesses are accepted than this costs in plain steps. Both are
measured: the price with each such step, and what is accepted apart for short and for long matches.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Protocol

from pie_control.scheduler.prompt_lookup import PAIR, PromptLookup, Tokens

__all__ = ["Guesser", "Jacobi", "Lookup", "Price", "Tokens"]

FIRST_PAUSE, LONGEST_PAUSE = 8, 256  # tokens, where guesses do not pay
AT_FIRST = 2.0  # guesses that are expected to be accepted
MARGIN = 0.2  # steps, beside the price: what a pause in running ahead costs
UNKNOWN = 0.25  # the price that is taken to be right before any is measured
NEW = 0.25  # the weight of what was measured last
LONGER = 3  # a match of so many tokens is not of a few common words
LONG = 8
STRETCH = 8  # steps in which Jacobi's guesses may come right


class Price:
    """The price of a step with guesses, for each run that has some, in plain steps."""

    def __init__(self) -> None:
        self._plain: dict[int, float] = {}  # seconds, by the logarithm of how many runs
        self._prices: dict[int, float] = {}  # by the logarithm of the guesses
        self._after = False  # the step before was one with guesses

    def took(self, runs: int, guessing: int, guesses: int, seconds: float) -> None:
        """Learns what a step of some runs took, of which some had guesses, so many in all."""
        size, after = runs.bit_length(), self._after
        self._after = guessing > 0
        plain = self._plain.get(size)
        if not guessing:
            if not after:  # it has waited for the program's control
                self._plain[size] = seconds if plain is None else _mean(plain, seconds)
        elif plain:
            bucket = (guesses // guessing).bit_length()
            price = max(0.0, seconds / plain - 1) * runs / guessing
            old = self._prices.get(bucket, price)
            self._prices[bucket] = _mean(old, min(price, 2 * old + 1))  # not one that was disturbed

    def of(self, guesses: int) -> float:
        """The price of so many guesses of a run."""
        bucket = guesses.bit_length()
        if bucket in self._prices:
            return self._prices[bucket]
        return max([self._prices[b] for b in self._prices if b < bucket], default=UNKNOWN)


class _Pause:
    """When guesses rest, longer and longer where they do not pay."""

    __slots__ = ("pause", "until")

    def __init__(self) -> None:
        self.pause = FIRST_PAUSE
        self.until = 0  # length of the text before which nothing is guessed

    def judge(self, accepted: float, price: float, length: int) -> None:
        """So many are accepted on the average, at a text of some length."""
        if accepted > price:
            self.pause = FIRST_PAUSE
        else:
            self.until, self.pause = length + self.pause, min(2 * self.pause, LONGEST_PAUSE)


class _Trust(_Pause):
    """The success of guesses of one kind."""

    __slots__ = ("accepted", "pays")

    def __init__(self) -> None:
        super().__init__()
        self.accepted = AT_FIRST  # of a verification, on the average
        self.pays = False  # better than was expected at first

    def learn(self, accepted: int, price: float, length: int) -> None:
        """So many were accepted, at a text of some length."""
        self.accepted = (self.accepted + accepted) / 2
        self.pays = self.accepted >= AT_FIRST
        self.judge(self.accepted, price, length)


class Guesser(Protocol):
    """Guesses the tokens of one run."""

    def read(self, tokens: Sequence[int]) -> None:
        """Takes those of a run's tokens that are new."""

    def guess(self, most: int, price: Price) -> list[int] | None:
        """The next tokens, as many as pay, and at most so many; None if they are on their way."""

    def learn(self, guessed: int, accepted: int, behind: Sequence[int], price: Price) -> None:
        """So many of its last guesses were accepted; or none was left once it could guess.

        Args:
            guessed: tokens.
            accepted: of these; the run's tokens have been read.
            behind: what the sampler chose behind the first that was wrong, as if that were right.
            price: of guesses.
        """

    @property
    def rests(self) -> int:
        """Tokens before it is likely to guess again."""


class Lookup:
    """Guesses by prompt lookup in a run's context and in its own tokens."""

    def __init__(self, text: Tokens, most: int) -> None:
        self._lookup = PromptLookup(text)
        self._start = len(self._lookup.tokens)
        self._most = most
        self._trusts = {kind: _Trust() for kind in (PAIR, LONGER, LONG)}
        self._kind = PAIR  # of the last guesses

    def read(self, tokens: Sequence[int]) -> None:
        """Takes those of a run's tokens that are new."""
        for token in tokens[len(self._lookup.tokens) - self._start :]:
            self._lookup.add(token)

    def guess(self, most: int, price: Price) -> list[int]:
        """The next tokens, as many as pay, and at most so many."""
        found = self._lookup.find()
        if found is None:
            return []
        self._kind = max(kind for kind in self._trusts if kind <= found.matched)
        trust = self._trusts[self._kind]
        if len(self._lookup.tokens) < trust.until:
            return []
        wanted = min(2 * found.matched, ceil(2 * trust.accepted) + 1)
        return self._lookup.follows(found.end, min(most, self._most, wanted))

    def learn(self, guessed: int, accepted: int, behind: Sequence[int], price: Price) -> None:
        """So many of its last guesses were accepted; or none was left once it could guess."""
        bound = price.of(guessed) + MARGIN
        self._trusts[self._kind].learn(accepted, bound, len(self._lookup.tokens))

    @property
    def rests(self) -> int:
        """Tokens before it is likely to guess again: most matches begin as short ones."""
        short, *others = self._trusts.values()
        until = min([short.until, *[trust.until for trust in others if trust.pays]])
        return max(0, until - len(self._lookup.tokens))


class Jacobi:
    """Guesses that each step improves all at once: what the sampler chose behind the first wrong
    guess of the last one, and beyond that its last token again.

    A. Santilli et al., Accelerating Transformer Inference for Translation via Parallel Decoding,
    2023.
    """

    def __init__(self, most: int) -> None:
        """Takes how many to guess at once: all of them, for the later ones need some steps."""
        self._most = most
        self._read = 0  # tokens of the run
        self._last = 0  # of these
        self._behind: list[int] = []
        self._steps = self._accepted = 0  # of a stretch
        self._pause = _Pause()

    def read(self, tokens: Sequence[int]) -> None:
        """Takes those of a run's tokens that are new."""
        for token in tokens[self._read :]:
            self._behind = self._behind[1:] if self._behind[:1] == [token] else []
            self._last = token
        self._read = len(tokens)

    def guess(self, most: int, price: Price) -> list[int]:
        """The next tokens, at most so many; none where they have not paid."""
        if self.rests:
            return []
        last = self._behind[-1] if self._behind else self._last
        return [*self._behind, *[last] * self._most][: min(most, self._most)]

    def learn(self, guessed: int, accepted: int, behind: Sequence[int], price: Price) -> None:
        """So many of its last guesses were accepted; or none was left once it could guess."""
        self._behind = list(behind)
        self._steps, self._accepted = self._steps + 1, self._accepted + accepted
        if self._steps == STRETCH:
            mean = self._accepted / STRETCH
            self._pause.judge(mean, price.of(guessed) + MARGIN, self._read)
            self._steps = self._accepted = 0

    @property
    def rests(self) -> int:
        """Tokens before it guesses again."""
        return max(0, self._pause.until - self._read)


def _mean(old: float, new: float) -> float:
    return old + NEW * (new - old)
