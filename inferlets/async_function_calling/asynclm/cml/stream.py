"""The model's tokens one by one, each chosen among those that CML allows.

Outside of blocks the server's sampler rules the few forbidden tokens out itself, which costs
nothing a token; within a block a grammar does, whose masks the server computes beside the model.
"""

from __future__ import annotations

from collections.abc import Callable

from asynclm.cml.dialect import Marker
from asynclm.cml.monitor import Monitor
from asynclm.cml.parser import State
from inferlet import raw
from inferlet.context import Context
from inferlet.errors import PieError
from inferlet.grammar import Grammar, Matcher
from inferlet.sample import Sampler

_COUNTING = {"repetition_penalty", "presence_penalty", "frequency_penalty"}

ALL = 0xFFFFFFFF  # a word of a mask that allows everything
MOST_REJECTED = 64  # tokens in a row


class TokenStream:
    """Chooses tokens for the context `ctx`; another may take its place between two tokens."""

    def __init__(
        self,
        ctx: Context,
        monitor: Monitor,
        grammar: Grammar,
        sampler: Sampler,
        forced: Callable[[], int] | None = None,
    ) -> None:
        """Takes a monitor that the caller feeds, and the grammar of a block after `[CALL]`.

        `forced` gives the tokens that are to be written in place of those chosen. The model runs
        and chooses all the same, so each costs what a chosen one costs. Raises ValueError for a
        sampler with penalties.
        """
        if _COUNTING & sampler.parameters.keys():
            raise ValueError("penalties would count the markup: use a sampler without them")
        self.ctx = ctx
        self.steps = 0
        self._monitor = monitor
        self._grammar = grammar
        self._sampler = sampler
        self._forced = forced
        self._handles: dict[frozenset[int], int] = {}  # samplers of the context, by what they ban
        self._owner = ctx
        self._matcher: Matcher | None = None
        self._walked: list[int] = []  # tokens of the block, which the matcher has consumed

    async def next(self, *, trap: bool) -> list[int]:
        """The next tokens: one, a `trap` if that may come, or all those that can't but follow. They
        join the context, unless it is a stop token. Raises PieError: `invalid-argument` if nothing
        is allowed; ValueError: a forced token is not allowed.
        """
        state = self._monitor.state
        if state is State.TRAP:
            tokens = self._monitor.dialect.encode_block((Marker.END,))
            if self._forced is not None:
                tokens = [self._forced() for _ in tokens]
        elif state is State.BETWEEN:
            self._close_matcher()
            tokens = [await self._outside(trap)]
        else:
            tokens = [await self._within()]
        self.steps += len(tokens)
        if tokens[0] not in self._monitor.stop_tokens:
            self.ctx.sequence.pending += tokens
        return tokens

    def release(self) -> None:
        """Gives back what the server holds for it; the context stays."""
        self._close_matcher()
        for handle in self._handles.values():
            self._owner.sequence.close_sampler(handle)
        self._handles.clear()

    # Outside of blocks

    async def _outside(self, trap: bool) -> int:
        banned = self._monitor.banned(trap=trap)
        embed = await self.ctx.sequence.output_embed()
        token = await self._chosen(raw.sample(self.ctx.queue, embed, self._handle(banned)))
        if self._forced is not None:
            token = self._forced()
            if token in banned or self._monitor.rejects(token, trap=trap):
                raise ValueError(f"token {token} is not allowed outside of a block")
            return token
        # Where markers are text, another token takes the place of one that would write a marker.
        rejected: set[int] = set()
        while self._monitor.rejects(token, trap=trap):
            rejected.add(token)
            if len(rejected) > MOST_REJECTED:
                raise ValueError("the model writes nothing that is allowed outside of a block")
            mask = self._mask_without(rejected)
            future = raw.sample_masked(self.ctx.queue, embed, self._handle(banned), mask)
            token = await self._chosen(future)
        return token

    def _mask_without(self, tokens: set[int]) -> list[int]:
        mask = [ALL] * -(-self.ctx.model.vocab_size // 32)
        for token in tokens:
            mask[token // 32] &= ~(1 << token % 32)
        return mask

    # Within blocks

    async def _within(self) -> int:
        matcher = self._matcher
        if matcher is None:
            matcher = self._matcher = await self._grammar.matcher(self.ctx.model)
            if self._walked:  # of a step that was given up
                matcher.advance(self._walked)
        embed = await self.ctx.sequence.output_embed()
        handle = self._handle(frozenset())
        if self._forced is not None:
            await self._chosen(raw.sample_masked(self.ctx.queue, embed, handle, matcher.mask()))
            token = self._forced()
            if not matcher.allows(token):
                text = self._monitor.dialect.codec.decode([token])
                raise ValueError(f"{text!r} is not allowed here in a block")
            matcher.advance([token])
            self._walked.append(token)
            return token
        future = raw.sample_constrained(self.ctx.queue, embed, handle, matcher.handle)
        try:
            token = await self._chosen(future)
        except BaseException as error:
            if not isinstance(error, PieError):  # the server may choose, and advance the matcher
                matcher.close()
                self._matcher = None
            raise
        self._walked.append(token)
        return token

    def _close_matcher(self) -> None:
        self._walked = []
        if self._matcher is not None:
            self._matcher.close()
            self._matcher = None

    # The context

    async def _chosen(self, future: int) -> int:
        return (await self.ctx.sequence.outcome(future, raw.take_sample))[0]

    def _handle(self, banned: frozenset[int]) -> int:
        """The sampler that rules these tokens out."""
        if self._owner is not self.ctx:
            self._handles.clear()  # they ended with their context
            self._owner = self.ctx
        handle = self._handles.get(banned)
        if handle is None:
            biases = {**self._sampler.parameters.get("logit_bias", {}), **dict.fromkeys(banned)}
            sampler = self._sampler.replaced(logit_bias=biases)
            handle = self._handles[banned] = self.ctx.sequence.open_sampler(sampler.to_json())
        return handle
