"""When a run guesses its next tokens, and how many: where that pays.

A step that verifies guesses takes longer than a plain one, and the run has none ahead meanwhile. So
it has to be expected that more guesses are accepted than this costs in plain steps. Both are
measured: the price with each such step, and what is accepted apart for short and for long matches.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from math import ceil
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pie_control.scheduler.commands.run import RunCommand

Tokens: TypeAlias = Sequence[int] | NDArray[np.uint32]

PAIR = 2  # the shortest match
MOST_MATCHED = 16  # tokens that are compared
MOST_PLACES = 8  # that are compared, the latest ones
_FACTOR = 2654435761  # Knuth's multiplicative hash
_NOWHERE = -1


class Found(NamedTuple):
    """Where the last tokens of a text came before."""

    end: int  # the place behind them
    matched: int  # tokens that are alike, `PAIR` to `MOST_MATCHED`


class PromptLookup:
    """A text that grows, and an index of its pairs of tokens: what is likely to come is what came
    after its last tokens before (A. Saxena, Prompt Lookup Decoding, 2023).

    Each place is found in constant time, and 20 bytes are kept for each token. Pairs are in chains
    by their hashes, the latest first. The pair at the text's end is not in there: nothing has come
    after it.
    """

    def __init__(self, text: Tokens) -> None:
        tokens = np.asarray(text, np.uint32).astype(np.int64)
        self._mask = (1 << max(10, (2 * tokens.size).bit_length())) - 1
        heads = np.full(self._mask + 1, _NOWHERE, np.int32)
        before = np.full(tokens.size, _NOWHERE, np.int32)
        places = np.arange(1, tokens.size - 1)  # the second tokens of all pairs but the last
        if places.size:
            hashes = (tokens[:-2] * _FACTOR + tokens[1:-1]) & self._mask
            order = np.argsort(hashes, kind="stable")
            same = hashes[order[1:]] == hashes[order[:-1]]
            before[places[order[1:][same]]] = places[order[:-1][same]]
            lasts = order[np.append(~same, True)]
            heads[hashes[lasts]] = places[lasts]
        self.tokens = array("q", tokens.tobytes())
        self._heads = array("i", heads.tobytes())
        self._before = array("i", before.tobytes())

    def add(self, token: int) -> None:
        """The text goes on with a token."""
        tokens, last = self.tokens, len(self.tokens) - 1
        if last >= 1:
            at = (tokens[last - 1] * _FACTOR + tokens[last]) & self._mask
            self._before[last] = self._heads[at]
            self._heads[at] = last
        tokens.append(token)
        self._before.append(_NOWHERE)

    def find(self) -> Found | None:
        """Where the most of the last tokens came before, the latest such place."""
        tokens, last = self.tokens, len(self.tokens) - 1
        if last < 1:
            return None
        place = self._heads[(tokens[last - 1] * _FACTOR + tokens[last]) & self._mask]
        best, most = _NOWHERE, PAIR - 1
        for _ in range(MOST_PLACES):
            if place == _NOWHERE:
                break
            matched = 0
            limit = min(place + 1, MOST_MATCHED)
            while matched < limit and tokens[place - matched] == tokens[last - matched]:
                matched += 1
            if matched > most:
                best, most = place, matched
            place = self._before[place]
        return None if best == _NOWHERE else Found(best + 1, most)

    def follows(self, end: int, count: int) -> list[int]:
        """So many tokens from a place on; behind the text's end it is taken to repeat itself."""
        tokens = self.tokens
        period = len(tokens) - end
        return [tokens[end + i % period] for i in range(count)]


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


class Drafted:
    """Guesses the tokens of one run by those of another one, of a smaller model.

    Y. Leviathan et al., Fast Inference from Transformers via Speculative Decoding, 2023. Both runs
    begin behind the same text. The drafting one goes as far ahead as the other may guess. Once that
    has verified it, the drafting one goes on behind what stands: its pages are cut to that, and the
    token that the other run has chosen takes the place of its own.
    """

    def __init__(self, drafts: RunCommand, most: int, follower: RunCommand) -> None:
        """Has the other run wait until guesses are wanted.

        Args:
            drafts: the run of the smaller model, which has not begun.
            most: tokens to guess at a time.
            follower: the run that guesses.
        """
        self._drafts = drafts
        self._most = most
        self._follower = follower
        self._text: list[int] = []  # the follower's tokens
        self._agreed = 0  # tokens that both runs have
        self._waits = False
        drafts.lead()

    def read(self, tokens: Sequence[int]) -> None:
        """Takes those of the follower's tokens that are new."""
        self._text += tokens[len(self._text) :]

    def guess(self, most: int, price: Price) -> list[int] | None:
        """The next tokens, at most so many; None if they are on their way."""
        drafts, length = self._drafts, len(self._text)
        wanted = min(most, self._most, drafts.most - 1 - length)
        if drafts.over or drafts.row is None or wanted < 1:  # over, or not begun
            return []
        if self._waits:
            return None
        tokens = drafts.tokens
        end = min(length, len(tokens))
        while self._agreed < end and tokens[self._agreed] == self._text[self._agreed]:
            self._agreed += 1
        if self._agreed == length and len(tokens) > length:
            return tokens[length : length + wanted].tolist()
        until = length + wanted
        if self._agreed < min(length, len(tokens)):
            if len(tokens) < drafts.limit:  # with steps under way it cannot be corrected
                until = drafts.limit
            else:
                drafts.correct(self._agreed, self._text[self._agreed])
                self._agreed += 1
        self._waits = True
        drafts.when(until, self)
        drafts.allow(until)
        return None

    def learn(self, guessed: int, accepted: int, behind: Sequence[int], price: Price) -> None:
        """Nothing: the program has said how many to guess."""

    @property
    def rests(self) -> int:
        """It never rests."""
        return 0

    # Waits for the drafting run's tokens

    @property
    def ready(self) -> bool:
        """True if it does not wait any more."""
        return not self._waits

    def resolve(self) -> None:
        """The tokens are there, or there will be none: the follower may guess."""
        self._waits = False
        follower = self._follower
        if not follower.over and follower.table is not None:
            follower.table.changed(follower)
