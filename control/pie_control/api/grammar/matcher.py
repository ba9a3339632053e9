"""One walk through a grammar: which tokens may come next."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import trio
from llguidance import LLMatcher

from pie_control.api.grammar.vocabulary import Vocabulary
from pie_control.errors import ApiError, exceeded, invalid
from pie_control.fairness import FairThreads, Owner
from pie_control.scheduler.commands.sample import TokenMask
from pie_py.wire.plan import Uint32

# Masks take 10 µs as a rule and some milliseconds where a grammar's lexer meets something for the
# first time. The threads run without Python's lock, beside the model.
_threads = FairThreads(3, of_user=2, name="grammar-mask")

_AT_ONCE = 8  # tokens, while Python's lock is held: a millisecond each in a hostile grammar
WALK_SECONDS = 1.0  # of the CPU, for the tokens of one call
_NEARBY = 128  # tokens


@dataclass(frozen=True, slots=True)
class Grammar:
    """A compiled grammar of one model. Nothing changes it; matchers start from copies."""

    model: str
    vocabulary: Vocabulary
    root: LLMatcher
    size: int  # bytes of memory, about


class Matcher:
    """Where one text is in a grammar.

    The mask of the next token is computed in a thread as soon as a token is known, while the model
    runs that token. Nothing else may touch llguidance's matcher meanwhile, so `call` puts work off
    until it is done. All methods belong to the control thread.

    The stop tokens of the model end the text wherever the grammar may end. They are not
    llguidance's affair: it does not see them.
    """

    def __init__(self, grammar: Grammar, wake: Callable[[], None], owner: Owner) -> None:
        """Starts at the grammar's start symbol. `wake` asks for another turn of the scheduler."""
        self.grammar = grammar
        self._owner = owner
        self._vocabulary = grammar.vocabulary
        self._walk = grammar.root.deep_copy()
        self._wake = wake
        self._length = 0  # tokens so far, a stop token included
        self._mask: TokenMask | None = None  # of the next token, computed or under way
        self._waiting: list[Callable[[], None]] = []  # for the mask under way
        self._forced: list[int] | None = None  # tokens that must follow, if asked before
        self._foreseen: list[list[int]] | None = None  # the same, from the thread of the mask
        self._asks_forced = False
        self.sampling = False  # a sample is queued whose token decides where this goes on
        self._failure: ApiError | None = None  # why this goes on no more
        self.ended = False  # a stop token came
        self._note()

    # State

    def _note(self) -> None:
        """Looks at the new state, before a mask's thread takes the matcher."""
        walk = self._walk
        if walk.is_error():
            raise _broken(self._walk)
        self.accepting: bool = self.ended or walk.is_accepting()
        self.finished: bool = self.ended or walk.is_stopped()
        self._forced = self._foreseen = None
        self._mask = None  # from here on the matcher is free, if a thread had it

    def _find_forced(self) -> list[int]:
        if self.finished:
            return []
        return _forced_of(self._walk, self._vocabulary)

    def call(self, work: Callable[[], None]) -> bool:
        """Does some work at once, or after the mask under way. True if it is done."""
        mask = self._mask
        if mask is None or mask.want():
            work()
            return True
        self._waiting.append(work)
        return False

    def lend(self, work: Callable[[], Any], then: Callable[[Any], None]) -> None:
        """Does long work in a thread, and calls `then` with what it returned, or with its ApiError.

        Call it when nothing is under way (from `call`).
        """
        token = trio.lowlevel.current_trio_token()
        answers: list[Any] = []

        def finish() -> None:
            if self._mask is mask:
                self._mask = None
            then(answers[0])
            self._computed()

        def run() -> None:
            try:
                answers.append(work())
            except ApiError as error:
                answers.append(error)
            except Exception as error:  # noqa: BLE001  a fault of ours is this call's error
                answers.append(ApiError("internal", f"{type(error).__name__}: {error}"))
            mask.finish(self._vocabulary.stop_mask)

        # Stands for a mask under way, for calls that come meanwhile; its words are never used.
        self._mask = mask = TokenMask(notify=lambda: token.run_sync_soon(finish))
        mask.want()
        _threads.submit(self._owner, run)

    def check_free(self) -> None:
        """Raises `busy` while a token is awaited, or the error of a token that was rejected."""
        if self._failure is not None:
            raise ApiError(self._failure.code, self._failure.message)
        if self.sampling:
            raise ApiError(
                "busy", "a token of this matcher is being sampled: wait for its future first"
            )

    # Moving

    def advance(self, tokens: Sequence[int]) -> None:
        """Consumes tokens, all or none of them.

        Raises:
            ApiError: `invalid-argument` if one of them is not allowed.
        """
        tokens = list(tokens)
        done = self._consume(self._walk, tokens)
        if done < len(tokens):
            moved = sum(token not in self._vocabulary.stops for token in tokens[:done])
            if moved and not self._walk.rollback(moved):
                raise _broken(self._walk)
            raise invalid(
                f"token {tokens[done]} (number {done} of the list) is not allowed by the grammar"
                " here"
            )
        self.ended = self.ended or (bool(tokens) and tokens[-1] in self._vocabulary.stops)
        self._length += len(tokens)
        self._note()

    def rollback(self, count: int) -> None:
        """Takes the last tokens back.

        Raises:
            ApiError: `invalid-argument` if there were not as many.
        """
        if count > self._length:
            raise invalid(f"{count} tokens to take back, and {self._length} came so far")
        inner = count
        if self.ended and count:
            self.ended = False
            inner -= 1
        if inner and not self._walk.rollback(inner):
            raise _broken(self._walk)
        self._length -= count
        self._note()

    def count_allowed(self, tokens: Sequence[int]) -> int:
        """How many of the tokens, from the first on, could be consumed.

        Raises:
            ApiError: `limit-exceeded` if that takes too long, or is too complex.
        """
        return self._consume(self._walk.deep_copy(), list(tokens))

    def _consume(self, walk: LLMatcher, tokens: list[int]) -> int:
        """Has a matcher consume as many of the tokens as are allowed; a stop token is counted.

        Raises:
            ApiError: as `count_allowed`; the matcher is then where it was, or is broken.
        """
        if self.ended:
            return 0
        stops = self._vocabulary.stops
        # An id that no token has would break the matcher.
        size = self._vocabulary.size
        ends = (i for i, token in enumerate(tokens) if token in stops or token >= size)
        end = next(ends, len(tokens))
        deadline = time.thread_time() + WALK_SECONDS
        for start in range(0, end, _AT_ONCE):
            part = tokens[start : min(start + _AT_ONCE, end)]
            done = start + walk.try_consume_tokens(part)
            if walk.is_error():
                raise _broken(walk)
            if done < start + len(part):
                return done
            if time.thread_time() > deadline:
                walk.rollback(done)
                raise exceeded(
                    f"the grammar: {done} of {len(tokens)} tokens take longer than {WALK_SECONDS:g}"
                    " s; give fewer at a time, or make it simpler"
                )
        return end + (end < len(tokens) and tokens[end] in stops and walk.is_accepting())

    def on_token(self, token: int | None) -> None:
        """Takes in the token that was sampled, or that none was, and begins with the next mask."""
        self.sampling = False
        if token is None:
            return
        try:
            self.advance([token])
        except ApiError as error:  # the grammar's limits: the next call says so
            self._failure = error
            self.accepting = self.finished = False
            return
        if not self.finished:
            self.mask()

    # What may follow

    @property
    def foresees(self) -> bool:
        """True if `forced` is cached: thousands of forced tokens take tenths of a second."""
        return self.finished or self._forced is not None or self._foreseen is not None

    def forced(self) -> list[int]:
        """The tokens that the grammar forces next, possibly none."""
        self._asks_forced = True
        if self._forced is None:
            self._forced = self._foreseen.pop() if self._foreseen else self._find_forced()
        return self._forced

    def mask(self) -> TokenMask:
        """The mask of the next token, computed by a thread from now on."""
        if self._mask is None:
            if self.finished:
                self._mask = TokenMask(self._vocabulary.stop_mask)
            else:
                token = trio.lowlevel.current_trio_token()
                self._mask = mask = TokenMask(notify=lambda: token.run_sync_soon(self._computed))
                self._foreseen = [] if self._asks_forced else None
                work = partial(_compute, self._walk, self._vocabulary, mask, self._foreseen)
                _threads.submit(self._owner, work)
        return self._mask

    def _computed(self) -> None:
        waiting, self._waiting = self._waiting, []
        for work in waiting:
            self.call(work)
        self._wake()


def _broken(walk: LLMatcher) -> ApiError:
    """The error of a matcher that has come to llguidance's limits, and goes on no more."""
    text = first_lines(walk.get_error()) or "it is too complex"
    return exceeded(f"the grammar: {text}")


def _forced_of(walk: LLMatcher, vocabulary: Vocabulary) -> list[int]:
    """The tokens that are forced; none if they are very many, for which `_NEARBY` is a bound.

    llguidance finds all of them at once and holds the interpreter's lock meanwhile: a second for
    what a grammar of 256 kB can force. So it is asked only where the forced text has an end nearby.
    As long as a text is forced, all tokens that are allowed are beginnings of it, and consuming the
    longest one goes along it.
    """
    ahead = walk.deep_copy()
    for _ in range(_NEARBY):
        token = vocabulary.longest_start(ahead.compute_bitmask())
        if token is None or ahead.is_accepting() or not ahead.consume_token(token):
            forced: list[int] = walk.compute_ff_tokens()
            return forced
    return []


def _compute(
    walk: LLMatcher, vocabulary: Vocabulary, mask: TokenMask, forced: list[list[int]] | None
) -> None:
    """Runs in a thread. Appends to `forced`, if it is there, the tokens that are forced."""
    nothing: Uint32 = np.zeros_like(vocabulary.known)
    try:
        if forced is not None:
            forced.append(_forced_of(walk, vocabulary))
        words = vocabulary.words(walk.compute_bitmask())
        error = walk.get_error() if walk.is_error() else None
    except Exception as failure:  # noqa: BLE001  it must not leave a sample waiting forever
        words, error = nothing, f"{type(failure).__name__}: {failure}"
    if error:
        mask.finish(nothing, f"the grammar: {first_lines(error)}")
    else:
        mask.finish(words)


def first_lines(text: str) -> str:
    """The part of an error of llguidance that is for people, without the dump of its state, nor the
    grammar around a schema that is wrong.
    """
    if schema := re.search(r"failed to compile (JSON schema: .*)", text):
        return schema[1][:500]
    return text.split("\n<state>")[0].strip()[:500]
