"""Generation as in Pie 0.4: step by step, with probes, constraints and drafts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from operator import and_
from typing import Any, Protocol, Self, runtime_checkable

from inferlet.context import Context
from inferlet.pie04 import chat
from inferlet.pie04.forward import Adapter, Output, Probe, ProbeHandle, SampleHandle, Slot, run
from inferlet.pie04.grammar import (
    AnyJson,
    Constraint,
    GrammarConstraint,
    JsonSchema,
    Schema,
    allowed,
    bits_of,
)
from inferlet.sample import Sampler

SAMPLED = SampleHandle(0)  # the token of a step; probes come after it


@runtime_checkable
class Speculator(Protocol):
    """Drafts tokens, which the model then verifies in one forward."""

    def draft(self) -> tuple[list[int], list[int]]:
        """Tokens that may follow all that is there, and their positions."""
        ...

    def accept(self, tokens: list[int]) -> None:
        """What the step's tokens are: the drafts that were right, and one more."""
        ...

    def rollback(self, n: int) -> None:
        """The last `n` drafts were wrong."""
        ...

    def reset(self) -> None:
        """Forgets everything."""
        ...


class Generator:
    """A generation under way; `Context.generate` makes one.

    `horizon`, `rebid_each_step` and the server's own speculation change no text, and have no
    effect: there are no bids here, and the server goes on by itself where nothing is asked of the
    steps.
    """

    def __init__(
        self,
        context: Context,
        sampler: Sampler,
        *,
        max_tokens: int | None,
        stop: Iterable[int],
        constraints: Sequence[Schema | Constraint],
        logit_mask: Sequence[int] | None,
        speculator: Speculator | None,
        adapter: Adapter | None,
    ) -> None:
        self._context = context
        self._sampler = sampler
        self._most = max_tokens
        self._stops = set(stop)
        self._constraints: list[Constraint] = []
        self._mask = None if logit_mask is None else bits_of(logit_mask)
        self._speculator = speculator
        self._adapter = adapter
        self.probes: list[tuple[int, Probe]] = []  # of each step
        self._count = 0
        self._done = False
        self._news: list[int] = []  # tokens that the constraints have not seen
        for constraint in constraints:
            self.constrain(constraint)

    # Options, as a chain

    def max_tokens(self, n: int) -> Self:
        """Sets the most tokens to generate."""
        self._most = n
        return self

    def stop(self, tokens: Iterable[int]) -> Self:
        """Sets the tokens that end it."""
        self._stops = set(tokens)
        return self

    def add_stop(self, tokens: Iterable[int]) -> Self:
        """Adds tokens that end it."""
        self._stops.update(tokens)
        return self

    def constrain(self, constraint: Schema | Constraint) -> Self:
        """Adds a constraint; a token has to satisfy all of them.

        Raises:
            TypeError: it has neither `build_constraint` nor `step`.
        """
        if isinstance(constraint, Schema):
            constraint = constraint.build_constraint(self._context.model)
        if not isinstance(constraint, Constraint):
            raise TypeError("a constraint has a method `step`, or `build_constraint`")
        self._constraints.append(constraint)
        return self

    def adapter(self, a: Adapter) -> Self:
        """Goes through an adapter."""
        self._adapter = a
        return self

    def probe_each_step(self, index: int, probe: Probe) -> ProbeHandle:
        """Adds a probe to every step, after the token of this number of the step's input."""
        self.probes.append((index, probe))
        return ProbeHandle(len(self.probes), type(probe).__name__)

    def disable_system_speculation(self) -> Self:
        """Has no effect."""
        return self

    def horizon(self, n: int) -> Self:
        """Has no effect."""
        return self

    def rebid_each_step(self, enabled: bool) -> Self:
        """Has no effect."""
        return self

    # Steps

    @property
    def tokens_generated(self) -> int:
        """Tokens so far."""
        return self._count

    @property
    def is_done(self) -> bool:
        """Whether nothing more comes."""
        return self._done or (self._most is not None and self._count >= self._most)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> GenStep:
        if self.is_done:
            raise StopAsyncIteration
        news, self._news = self._news, []
        found = [allowed(constraint, news) for constraint in self._constraints]
        grammars = (c.matcher for c in self._constraints if isinstance(c, GrammarConstraint))
        if any(matcher.is_terminated for matcher in grammars):
            self._done = True
            raise StopAsyncIteration
        bits = [mask for mask in (self._mask, *found) if mask is not None]
        return GenStep(self, reduce(and_, bits) if bits else None)

    def accept(self, tokens: Sequence[int]) -> list[int]:
        """Goes on with tokens of the program's own choice; those that joined the text."""
        tokens = self._join(tokens)
        self._context.append(tokens)
        if tokens and self._speculator is not None:
            self._speculator.accept(tokens)
        return tokens

    def _join(self, tokens: Sequence[int]) -> list[int]:
        """Counts tokens up to one that ends the generation, or the last that is wanted."""
        end = next((i for i, token in enumerate(tokens) if token in self._stops), len(tokens))
        room = end if self._most is None else min(end, self._most - self._count)
        self._done = self._done or room < len(tokens)
        self._count += room
        self._news += tokens[:room]
        return list(tokens[:room])

    async def step(
        self, mask: int | None, probes: Sequence[tuple[int, Probe]], *, choose: bool
    ) -> Output:
        """One step: runs what waits and drafts behind it, and chooses what follows.

        Raises:
            ValueError: drafts that do not follow one another.
            PieError: of the server.
        """
        context = self._context
        waiting = context.buffer()
        drafts = self._draft(len(waiting)) if choose else []
        slots = [Slot(1 + n, *probe) for n, probe in enumerate([*self.probes, *probes])]
        if choose:
            last, sampler = max(0, len(waiting) - 1), self._sampler
            if sampler.seed is not None:  # each step has a sampler of its own
                sampler = sampler.seeded(sampler.seed + self._count)
            slots += [Slot(-i, last + i, sampler) for i in range(len(drafts) + 1)]
        name = None if self._adapter is None else self._adapter.name
        context.sequence.pending = []
        try:
            found = await run(context, [*waiting, *drafts], slots, mask=mask, adapter=name)
        except BaseException:
            context.sequence.pending = waiting
            raise
        chosen = [found[-i] for i in range(len(drafts) + 1)] if choose else []
        return Output(found, self._verified(drafts, chosen), SAMPLED if choose else None)

    def _draft(self, waiting: int) -> list[int]:
        """Drafts of the speculator. The mask of a constraint is that of the next token alone."""
        if self._speculator is None or self._constraints:
            return []
        drafts, positions = self._speculator.draft()
        first = self._context.seq_len + waiting
        if list(positions) != list(range(first, first + len(drafts))):
            raise ValueError(f"drafts follow one another: their positions begin at {first}")
        return drafts

    def _verified(self, drafts: list[int], chosen: list[int]) -> list[int]:
        """The tokens of a step, which join the text; wrong drafts are undone."""
        sequence = self._context.sequence
        right = next((i for i, d in enumerate(drafts) if chosen[i] != d), len(drafts))
        tokens = self._join(chosen[: right + 1])
        kept = min(right, len(tokens))
        if kept < len(drafts):
            sequence.truncate(len(sequence.tokens) - len(drafts) + kept)
        self._context.append(tokens[kept:])
        if self._speculator is not None and chosen:
            self._speculator.accept(chosen[: right + 1])
            if right < len(drafts):
                self._speculator.rollback(len(drafts) - right)
        return tokens

    # All at once

    async def collect_tokens(self) -> list[int]:
        """All tokens."""
        asked = self._constraints or self.probes or self._speculator or self._adapter
        if not (asked or self._count or self._mask is not None or self._done):
            plain = Context.generate(  # the server goes on by itself
                self._context, self._sampler, max_tokens=self._most, stop=list(self._stops)
            )
            return self._join(await plain.collect_tokens())
        return [token async for step in self for token in (await step.execute()).tokens]

    async def collect_text(self) -> str:
        """All text, without thoughts."""
        decoder = chat.Decoder(self._context.model)
        decoder.feed(await self.collect_tokens())
        return decoder.feed([]).text  # type: ignore[union-attr]  # the turn has ended

    async def collect_json(
        self, *, schema: str | None = None, parse: Callable[[str], Any] | None = None
    ) -> Any:
        """All text, read as JSON or by `parse`; held to a schema, or to any JSON."""
        self.constrain(AnyJson() if schema is None else JsonSchema(schema))
        return (parse or json.loads)(await self.collect_text())


class GenStep:
    """A step of a generation; `execute` it."""

    def __init__(self, generator: Generator, mask: int | None) -> None:
        self._generator = generator
        self._mask = mask
        self._choose = True
        self._probes: list[tuple[int, Probe]] = []

    def clear_sampler(self) -> Self:
        """Has no token chosen: the program does, by a probe, and passes it to `accept`."""
        self._choose = False
        return self

    def probe(self, index: int, probe: Probe) -> ProbeHandle:
        """Adds a probe to this step, after the token of this number of its input."""
        self._probes.append((index, probe))
        number = len(self._generator.probes) + len(self._probes)
        return ProbeHandle(number, type(probe).__name__)

    async def execute(self) -> Output:
        """Runs the step.

        Raises:
            PieError: of the server; then the context is as it was.
        """
        return await self._generator.step(self._mask, self._probes, choose=self._choose)
