"""Tokens chosen where the model runs: the server sends a token instead of a distribution."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

from inferlet import _bindings, raw
from inferlet._ahead import Ahead, confirm, look_ahead, retract
from inferlet._loop import done, is_alone, ready
from inferlet.errors import PieError

if TYPE_CHECKING:
    from inferlet.context import Context
    from inferlet.grammar import Matcher


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSampler:
    """How the server chooses a token, among the whole vocabulary.

    The order: penalties, bias, grammar, temperature, top-k, top-p, min-p. The contract's
    `create-sampler` says what each of them does.
    """

    temperature: float = 1.0  # 0 takes the most likely token
    top_k: int = 0  # 0 is all
    top_p: float = 1.0
    min_p: float = 0.0  # share of the most likely token's probability that a token must have
    repetition_penalty: float = 1.0  # of tokens in the prompt and generated
    presence_penalty: float = 0.0  # of generated tokens, once
    frequency_penalty: float = 0.0  # of generated tokens, each time
    logit_bias: Mapping[int, float | None] = field(default_factory=dict)  # None rules a token out
    logprobs: int = 0  # how many of the most likely tokens each step tells besides
    seed: int | None = None  # same seed (modulo 2^64), same tokens; drawn by the server unless told

    def seeded(self, seed: int | None) -> DeviceSampler:
        """The same sampler with another seed."""
        return replace(self, seed=seed)

    @property
    def counts(self) -> bool:
        """Whether it has a penalty, and so has to know which tokens there have been."""
        return (
            self.repetition_penalty != 1
            or self.presence_penalty != 0
            or self.frequency_penalty != 0
        )

    def to_json(self) -> str:
        """The parameters as the contract wants them."""
        return json.dumps(
            {
                "temperature": self.temperature,
                "top_k": self.top_k,
                "top_p": self.top_p,
                "min_p": self.min_p,
                "repetition_penalty": self.repetition_penalty,
                "presence_penalty": self.presence_penalty,
                "frequency_penalty": self.frequency_penalty,
                "logit_bias": {str(token): bias for token, bias in self.logit_bias.items()},
                "logprobs": self.logprobs,
                "seed": None if self.seed is None else self.seed % 2**64,
            }
        )


# A token that the server chose; its log-probability in the model's own distribution, None for a forced
# token; the most likely tokens and theirs.
Choice: TypeAlias = tuple[int, float | None, list[int], list[float]]


class DeviceRun:
    """A device sampler at work on one context, within a grammar if there is one."""

    __slots__ = (
        "_ahead",
        "_counts",
        "_ctx",
        "_forced",
        "_given",
        "_handle",
        "_lost",
        "_matcher",
        "_sampler",
        "_waiting",
    )

    def __init__(
        self, ctx: Context, sampler: DeviceSampler, matcher: Matcher | None, *, forced: bool
    ) -> None:
        """Tells a new sampler of the context's tokens.

        Raises:
            PieError: `invalid-argument` for wrong parameters, `unsupported`, `out-of-resources`.
        """
        self._ctx = ctx
        self._sampler = sampler
        self._counts = sampler.counts
        self._matcher = matcher
        self._forced = forced
        self._waiting: deque[int] = deque()  # forced tokens that the matcher has consumed
        self._lost = False  # the matcher may have consumed a token that nobody has seen
        self._ahead: Ahead | None = None  # the newest step queued before its token was known
        self._given = len(ctx._known_tokens()) if self._counts else 0  # before the first choice
        self._handle = ctx._open_sampler(sampler.to_json())
        self._feed_all()

    @property
    def is_complete(self) -> bool:
        """Whether the text may end here: always without a grammar, never after a cancelled step."""
        return self._matcher is None or (not self._lost and self._matcher.is_accepting)

    async def choose(self) -> Choice | None:
        """The next token, or None if the grammar has come to its end.

        Raises:
            RuntimeError: if a step within a grammar was cancelled before.
        """
        matcher = self._matcher
        if matcher is not None:
            self._check_walk()
            if self._force(matcher):
                return self._waiting.popleft(), None, [], []
            if matcher.is_finished:
                return None
        future = self._confirm() if self._ahead is not None else None
        if future is None:
            future = await self._queue_choice()
        try:
            await ready(future)
            choice: Choice = raw.take_sample(future)
        except BaseException as error:
            if not isinstance(error, PieError):  # the server may choose, and advance the matcher
                self._lost = matcher is not None
            await self._give_up(error)
            raise
        self._arrived(choice[0])
        return choice

    async def next_token(self, *, ahead: bool) -> int | None:
        """As `choose`, the token alone.

        Args:
            ahead: give the server the step after this one, too. Not within a grammar.
        """
        if self._matcher is not None:
            choice = await self.choose()
            return None if choice is None else choice[0]
        ctx = self._ctx
        future = self._confirm() if self._ahead is not None else None
        if future is None:
            future = await self._queue_choice()
        if ahead and not ctx._borrowed:
            self._ahead = look_ahead(ctx, self._handle)
        try:
            # The hot path: without a coroutine, and without the checks and the calls of `raw`.
            if not is_alone():
                await ready(future)
            try:
                token: int = _bindings.sample.next_token(future)
            except _bindings.Err as error:
                raise PieError(error.value) from None
        except BaseException as error:
            await self._give_up(error)
            raise
        self._arrived(token)
        return token

    async def _queue_choice(self) -> int:
        """The future of the next token, for which all that is pending is computed first."""
        ctx, matcher = self._ctx, self._matcher
        embed = ctx._run_pending() if ctx._is_quick() else await ctx._submit_pending()
        if matcher is None:
            return raw.sample(ctx._queue, embed, self._handle)
        return raw.sample_constrained(ctx._queue, embed, self._handle, matcher.handle)

    def _arrived(self, token: int) -> None:
        """Notes that all that was queued before the step ahead has taken effect."""
        self._ctx._completed()
        if self._ahead is not None:
            self._ahead.token = token
            self._ctx._in_flight = True

    def _confirm(self) -> int | None:
        """The future of the next token, if the step that was queued ahead leads to it."""
        assert self._ahead is not None
        future = confirm(self._ctx, self._ahead)
        self._ahead = None
        if future is None and self._counts:
            self._renew()
        return future

    def _renew(self) -> None:
        """Forgets a choice that nobody has seen: it must not count for penalties."""
        seed = self._sampler.seed
        if seed is not None:  # not the same draws again
            self._sampler = self._sampler.seeded((seed + 1) % 2**64)
        self._ctx._close_sampler(self._handle)
        self._handle = self._ctx._open_sampler(self._sampler.to_json())
        self._feed_all()

    async def _give_up(self, error: BaseException) -> None:
        """Undoes the step ahead of a choice that has failed or was cancelled."""
        if self._ahead is None:
            return
        self.retract()
        self._ctx._in_flight = True
        if isinstance(error, PieError) and error.code != "failed-dependency":
            # There was no token to embed, so the queue has failed now, which without the step it had not.
            with suppress(PieError):
                await done(raw.synchronize(self._ctx._queue))

    def retract(self) -> None:
        """Undoes the step ahead, if there is one: its token is not what the context goes on with."""
        if self._ahead is not None and self._ctx._ahead is self._ahead:
            retract(self._ctx)

    def _force(self, matcher: Matcher) -> bool:
        """Whether a forced token waits; asks the grammar for more of them."""
        if not self._waiting and self._forced:
            tokens = matcher.forced()
            if tokens:
                matcher.advance(tokens)
                self._feed(tokens)
                self._waiting.extend(tokens)
        return bool(self._waiting)

    def check(self, tokens: Sequence[int]) -> None:
        """Refuses tokens of the program's own that the grammar does not allow.

        Raises:
            ValueError: if one is not allowed.
            RuntimeError: if a step within the grammar was cancelled before.
        """
        if self._matcher is None:
            return
        self._check_walk()
        allowed = self._matcher.count_allowed(tokens)
        if allowed < len(tokens):
            raise ValueError(f"the grammar does not allow token {tokens[allowed]} here")

    def _check_walk(self) -> None:
        """Refuses to go on from a place in the grammar that need not be the text's."""
        if self._lost:
            raise RuntimeError(
                "a step of this generation was cancelled, so its place in the grammar is not known"
                " any more: begin a new generation"
            )

    def note(self, tokens: Sequence[int]) -> None:
        """Takes in tokens of the program's own choice, after `check`."""
        if self._matcher is not None:
            self._matcher.advance(tokens)
        self._feed(tokens)

    def _feed_all(self) -> None:
        """Tells a new sampler of all tokens of the context."""
        if self._counts:
            queue, known = self._ctx._queue, self._ctx._known_tokens()
            raw.feed_sampler(queue, self._handle, known[: self._given], False)
            raw.feed_sampler(queue, self._handle, known[self._given :], True)

    def _feed(self, tokens: Sequence[int]) -> None:
        if self._counts:
            raw.feed_sampler(self._ctx._queue, self._handle, list(tokens), True)

    def close(self) -> None:
        """Gives the sampler and the matcher back. A second call does nothing."""
        self.retract()
        self._ctx._close_sampler(self._handle)
        if self._matcher is not None:
            self._matcher.close()

    def __del__(self) -> None:
        # Half made, or gone with its context or its worker.
        with suppress(AttributeError, PieError):
            self.close()
