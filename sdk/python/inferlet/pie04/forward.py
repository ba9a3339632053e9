"""One forward of Pie 0.4: tokens at several positions, and what is wanted of each of them."""

from __future__ import annotations

import asyncio
import math
from array import array
from collections.abc import Iterable
from collections.abc import Sequence as List
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, Self

from inferlet import raw, sample
from inferlet._sequence import Sequence
from inferlet._several import Layout, queue_forward
from inferlet.context import Context
from inferlet.model import Model
from inferlet.pie04.grammar import bits_of, ranges_of, words_of
from inferlet.sample import Sampler

PLAIN = Layout()


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA adapter that the operator has loaded."""

    name: str

    @classmethod
    def open(cls, model: Model, name: str) -> Self | None:
        """The adapter of this name; None if there is none."""
        return cls(name) if "adapter" in model.traits and name in model.adapters else None


class Probe(Protocol):
    """Reads a position without choosing a token: one of the classes below."""

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


@dataclass(frozen=True, slots=True)
class SampleHandle:
    """Names the tokens of a sampler: numbers from `slot` on, `arity` of them."""

    slot: int
    arity: int = 1


@dataclass(frozen=True, slots=True)
class ProbeHandle:
    """Names what a probe has found."""

    slot: int
    kind: str


@dataclass(frozen=True, slots=True)
class Slot:
    """What is wanted of a position: a token by a sampler, or what a probe reads."""

    number: int
    index: int  # of the position among the tokens of the forward
    what: Sampler | Probe


class Output:
    """What a forward has given. A handle of another kind reads as None."""

    def __init__(
        self,
        values: dict[int, Any],
        tokens: list[int] | None = None,
        auto_sampler: SampleHandle | None = None,
    ) -> None:
        self._values = values
        self.tokens = tokens or []  # of a generation's step: those that joined the text
        self.auto_sampler = auto_sampler  # of a generation's step

    def token(self, handle: SampleHandle) -> int | None:
        """A sampler's first token."""
        return next(iter(self.tokens_at(handle)), None)

    def tokens_at(self, handle: SampleHandle) -> list[int]:
        """All tokens of a sampler."""
        numbers = range(handle.slot, handle.slot + handle.arity)
        found = [self._values.get(number) for number in numbers]
        return [value for value in found if isinstance(value, int)]

    def distribution(self, handle: ProbeHandle) -> tuple[list[int], list[float]] | None:
        """Tokens and their probabilities."""
        found: tuple[list[int], list[float]] | None = self._of(handle, "Distribution")
        return found

    def logits(self, handle: ProbeHandle) -> bytes | None:
        """As `Logits` says."""
        found: bytes | None = self._of(handle, "Logits")
        return found

    def logprobs(self, handle: ProbeHandle) -> list[float] | None:
        """Log-probabilities, of one token or of several."""
        found: list[float] | None = self._of(handle, "Logprob", "Logprobs")
        return found

    def entropy(self, handle: ProbeHandle) -> float | None:
        """In nats."""
        found: float | None = self._of(handle, "Entropy")
        return found

    def _of(self, handle: ProbeHandle, *kinds: str) -> Any:
        return self._values.get(handle.slot) if handle.kind in kinds else None


class Forward:
    """A forward in the making; `Context.forward` begins one. Its methods can be chained.

    What waits in the context's buffer goes on waiting: a forward runs the tokens that it is given.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._tokens: list[int] = []
        self._apart: list[tuple[int, int]] = []  # tokens with positions of their own
        self._slots: list[Slot] = []
        self._logits: int | None = None
        self._rows: list[list[int]] | None = None
        self._adapter: str | None = None

    def start_position(self) -> int:
        """The position of the first token of `input`."""
        return self._context.seq_len

    def input(self, tokens: List[int]) -> Self:
        """Adds tokens to the context."""
        self._tokens += tokens
        return self

    def input_at(self, tokens: List[int], positions: List[int]) -> Self:
        """Runs tokens at some positions, behind those of `input`; the context does not keep them.

        Raises:
            ValueError: not as many positions as tokens.
        """
        self._apart += zip(tokens, positions, strict=True)
        return self

    def sample(self, indices: List[int], sampler: Sampler) -> SampleHandle:
        """Wants tokens chosen after the tokens of some numbers in this forward."""
        first = len(self._slots)
        self._slots += (Slot(first + i, index, sampler) for i, index in enumerate(indices))
        return SampleHandle(first, len(indices))

    def probe(self, index: int, probe: Probe) -> ProbeHandle:
        """Wants to know more of the distribution after a token."""
        self._slots.append(Slot(len(self._slots), index, probe))
        return ProbeHandle(len(self._slots) - 1, type(probe).__name__)

    def mask(self, brle: List[int]) -> Self:
        """Lets only some tokens be chosen, wherever one is."""
        self._logits = bits_of(brle)
        return self

    def attention_mask(self, rows: List[List[int]]) -> Self:
        """What each token attends to: a mask over the context and the tokens of this forward."""
        self._rows = [list(row) for row in rows]
        return self

    def adapter(self, adapter: Adapter) -> Self:
        """Goes through an adapter."""
        self._adapter = adapter.name
        return self

    async def execute(self) -> Output:
        """Runs it; then the tokens of `input` are part of the context.

        Raises:
            ValueError: nothing is wanted; a number that no token has; masks of another number.
            PieError: of the server; then the context is as it was.
        """
        apart = [token for token, _ in self._apart]
        found = await run(
            self._context,
            [*self._tokens, *apart],
            self._slots,
            layout=self._layout(),
            passing=len(apart),
            mask=self._logits,
            adapter=self._adapter,
        )
        return Output(found)

    def _layout(self) -> Layout:
        """Where the tokens stand, and what they attend to."""
        start = self._context.seq_len + self._context.sequence.shift
        positions = [*range(start, start + len(self._tokens)), *(at for _, at in self._apart)]
        rows = None if self._rows is None else [list(ranges_of(row)) for row in self._rows]
        return Layout(positions if self._apart else None, rows)


async def run(
    context: Context,
    tokens: list[int],
    slots: list[Slot],
    *,
    layout: Layout = PLAIN,
    passing: int = 0,
    mask: int | None = None,
    adapter: str | None = None,
) -> dict[int, Any]:
    """Runs tokens, and finds what is wanted after them, by the numbers of the slots.

    Args:
        context: what they follow; what waits in its buffer goes on waiting.
        tokens: what to run.
        slots: what is wanted.
        layout: where the tokens stand, and what they attend to.
        passing: how many of the tokens, the last ones, the context does not keep.
        mask: tokens that may be chosen, as bits; None for all.
        adapter: to go through instead of the context's own.

    Raises:
        ValueError, PieError: as `Forward.execute`.
    """
    sequence = context.sequence
    sequence.retract()
    most = max(1, len(tokens))  # without tokens: the place after the last one
    if not (tokens or slots):
        raise ValueError("a forward without tokens: `input` some, or `sample` what comes next")
    if any(not 0 <= slot.index < most for slot in slots):
        raise ValueError(f"the tokens of this forward have the numbers 0 to {most - 1}")
    waiting, sequence.pending = sequence.pending, []
    own_adapter, sequence.adapter = sequence.adapter, adapter or sequence.adapter
    try:
        first = min((slot.index for slot in slots), default=most)
        embeds = await _embeds(sequence, tokens, layout, first)
        found = await _results(sequence, embeds, slots, mask)
        if passing:
            sequence.truncate(len(sequence.tokens) - passing)
    finally:
        sequence.pending, sequence.adapter = waiting, own_adapter
    return found


async def _embeds(
    sequence: Sequence, tokens: list[int], layout: Layout, first: int
) -> dict[int, int]:
    """Runs tokens; the embeds after them from number `first` on, by number."""
    if not tokens:
        return {0: await sequence.output_embed()}
    if layout.is_plain:  # in as many parts as it takes, and with what the prefix cache has
        sequence.pending = tokens[:first]
        await sequence.submit()
    else:
        first = 0
    rest = tokens[first:]
    return dict(enumerate(queue_forward(sequence, rest, layout) if rest else [], first))


async def _results(
    sequence: Sequence, embeds: dict[int, int], slots: list[Slot], mask: int | None
) -> dict[int, Any]:
    """What the slots want of the hidden states in embeds, which are given back."""
    queue, size = sequence.queue, sequence.model.vocab_size
    words = None if mask is None else words_of(mask, size)
    samplers: dict[Sampler, int] = {}
    futures = []
    try:
        for slot in slots:
            embed, what = embeds[slot.index], slot.what
            if not isinstance(what, Sampler):
                futures.append(raw.get_next_dist(queue, embed, what.size(size)))
                continue
            if what not in samplers:
                samplers[what] = sequence.open_sampler(what.to_json())
            if words is None:
                futures.append(raw.sample(queue, embed, samplers[what]))
            else:
                futures.append(raw.sample_masked(queue, embed, samplers[what], words))
        for embed in embeds.values():
            if embed not in sequence.embed[:1]:
                raw.dealloc_emb(queue, [embed, 1])
        taken = (
            sequence.outcome(future, partial(_taken, slot))
            for slot, future in zip(slots, futures, strict=True)
        )
        found = await asyncio.gather(*taken)
        if not futures:
            await sequence.synchronize()
    finally:
        for sampler in samplers.values():
            sequence.close_sampler(sampler)
    return {slot.number: each for slot, each in zip(slots, found, strict=True)}


def _taken(slot: Slot, future: int) -> Any:
    """A token, or what a probe reads."""
    if isinstance(slot.what, Sampler):
        return raw.take_sample(future)[0]
    return slot.what.read(sample.Distribution(*raw.take_dist(future)))
