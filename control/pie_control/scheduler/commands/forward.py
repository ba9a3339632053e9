"""The model run over sequences of inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

import numpy as np

from pie_control.errors import ApiError
from pie_control.instances.futures import Future
from pie_control.scheduler.commands.command import (
    NOTHING,
    BatchLimits,
    Command,
    Mark,
    Numbers,
    Scrub,
    chain,
    int32,
)
from pie_py.wire.plan import Attention, Forward, Int32

if TYPE_CHECKING:
    from pie_control.prefix.provenance import Provenance

NO_ADAPTER = -1
NO_SAMPLER = -1

# Inputs times columns of masks and of observed attention, which the worker lays out: of one
# forward, and of a batch's together. Few numbers may stand for many, and a page may be in a list
# many times.
MAX_CELLS = 1 << 28
MAX_CONTEXT_PAGES = 1 << 18  # input pages of a batch of forwards: the worker indexes every slot


@dataclass(frozen=True, slots=True)
class Observation:
    """The part of a forward's attention that is wanted."""

    future: Future
    count: int  # last inputs, whose attention is summed
    detail: int  # index into the wire protocol's DETAILS
    rows: int  # of the answer


@dataclass(slots=True, eq=False)
class ForwardCommand(Command):
    """Runs the model over one sequence of inputs."""

    batch = Forward
    counted = "inputs"
    is_light = False
    refused_as = "out-of-resources"
    reads = ("pages", "inputs")
    writes = ("output_pages", "outputs")
    inputs: Numbers  # [n] embeds
    pages: Int32  # [p] input pages that have filled slots
    page_used: Int32  # [p] filled slots of each
    has_masked: bool  # whether a slot of the pages is masked
    output_slots: Numbers | None  # [n] KV slots
    output_pages: Numbers  # [q] pages that the slots lie in
    outputs: Numbers  # [o] embeds
    mask: Int32 | None  # run-length rows
    adapter: int = NO_ADAPTER  # slot
    observation: Observation | None = None
    cells: int = 0  # inputs times columns, of a mask or of observed attention
    cuts: Int32 = field(default_factory=lambda: NOTHING)  # [c] inputs after which it may be cut
    sent_slots: Sequence[int] = ()  # of parts that have been sent
    sent_outputs: Sequence[int] = ()  # likewise
    attends: int = NO_SAMPLER  # slot of the sampler whose program chooses what is read
    attend_step: int = 0  # tokens that it has chosen before; 0: it observes a prompt
    is_changed: bool = False  # a program in the layers changes what the prompt computes
    part_of: ForwardCommand | None = None  # what is left of the forward, if this is a part

    @classmethod
    def join(cls, commands: Sequence[Self]) -> Forward:
        """One batch of ragged sequences."""
        inputs: Numbers = []
        slots: Numbers = []
        outputs: Numbers = []
        masks: list[Int32] = []
        pages = 0
        covered = 0  # numbers of masks
        input_starts, page_starts, output_starts, mask_starts = [0], [0], [0], [0]
        for command in commands:
            inputs += command.inputs
            slots += command.output_slots or [-1] * len(command.inputs)
            outputs += command.outputs
            pages += len(command.pages)
            if command.mask is not None:
                masks.append(command.mask)
                covered += len(command.mask)
            input_starts.append(len(inputs))
            page_starts.append(pages)
            output_starts.append(len(outputs))
            mask_starts.append(covered)
        adapters = [command.adapter for command in commands]
        attends = [command.attends for command in commands]
        attending = max(attends) != NO_SAMPLER
        watched = [command.observation for command in commands]
        observes = any(watched)
        return Forward(
            input_starts=int32(input_starts),
            inputs=int32(inputs),
            page_starts=int32(page_starts),
            pages=chain([command.pages for command in commands]),
            page_used=chain([command.page_used for command in commands]),
            has_masked=int32([command.has_masked for command in commands]),
            output_slots=int32(slots),
            output_starts=int32(output_starts),
            outputs=int32(outputs),
            mask_starts=int32(mask_starts),
            mask=chain(masks) if masks else NOTHING,
            adapters=int32(adapters) if max(adapters) != NO_ADAPTER else NOTHING,
            observed=int32([o.count if o else 0 for o in watched]) if observes else NOTHING,
            detail=int32([o.detail if o else 0 for o in watched]) if observes else NOTHING,
            attends=int32(attends) if attending else NOTHING,
            attend_steps=int32([one.attend_step for one in commands]) if attending else NOTHING,
        )

    @classmethod
    def fitting(cls, commands: Sequence[Self], limits: BatchLimits) -> int:
        """As many as have the inputs, mask cells and input pages of a batch."""
        inputs = cells = pages = 0
        for i, command in enumerate(commands):
            inputs += len(command.inputs)
            cells += command.cells
            pages += len(command.pages)
            if inputs > limits.tokens or cells > MAX_CELLS or pages > MAX_CONTEXT_PAGES:
                return max(i, 1)
        return len(commands)

    def trace(self, provenance: Provenance) -> Mark | None:
        """A page may hold a text's next tokens now, if nothing but its tokens had an influence."""
        is_plain = self.mask is None and not self.has_masked and self.observation is None
        # Prompts read all.
        is_plain &= self.attends == NO_SAMPLER or not (self.attend_step or self.is_changed)
        if not is_plain or self.output_slots is None:
            # It fills empty slots only: the text that a page is known to hold is still there, and
            # the slots behind it are never counted as part of it.
            provenance.embeds_changed()
            return None
        return provenance.extended(self.queue, self)

    @classmethod
    def deliver(cls, commands: Sequence[Self], attention: Attention) -> None:
        """Gives every command that observes attention its rows, and their numbers."""
        starts = attention.starts.tolist()
        for i, command in enumerate(commands):
            wanted = command.observation
            if wanted is not None and command.queue.failure is None:
                values = attention.values[starts[i] : starts[i + 1]].copy()
                wanted.future.resolve((wanted.rows, values))

    def fail(self, error: ApiError) -> None:
        """Fails the future of its attention, if there is one, and its queue."""
        if self.observation is not None:
            self.observation.future.fail(error)
        self.queue.fail(error)

    def fail_as_dependant(self) -> None:
        """Fails the future of its attention."""
        if self.observation is not None:
            self.queue.fail_dependant(self.observation.future)

    def scrub(self, scrub: Scrub) -> None:
        """The slots and the outputs, also those of parts that have run."""
        scrub.slots.update(self.output_slots or (), self.sent_slots)
        scrub.embeds.update(self.outputs, self.sent_outputs)

    def cut_at(self, most: int) -> int:
        """After how many inputs to cut it, so many at most; 0 if it can't be cut there."""
        at = int(self.cuts.searchsorted(most, "right"))
        return self.cuts.item(at - 1) if at else 0

    @property
    def first_piece(self) -> int:
        """The fewest inputs that can run before the others; all if it can't be cut."""
        return self.cuts.item(0) if self.cuts.size else len(self.inputs)

    def split(self, count: int, page_size: int) -> ForwardCommand:
        """Takes the first `count` inputs, one of the cuts, into a command of their own, which is to
        run before this one. What it fills are input pages of this one.
        """
        assert self.output_slots is not None
        slots, rest = self.output_slots[:count], self.output_slots[count:]
        left = len(rest)
        outputs = self.outputs[: max(0, len(self.outputs) - left)]
        columns = self.cells // len(self.inputs)  # the same after each part
        mask = None
        if self.mask is not None:
            mask, self.mask = _split_rows(self.mask, count, columns - left)
        filled = {slot // page_size: slot % page_size + 1 for slot in slots}  # the last slot counts
        part = ForwardCommand(
            self.inputs[:count],
            self.pages,
            self.page_used,
            self.has_masked,
            slots,
            list(filled),
            outputs,
            mask,
            self.adapter,
            cells=count * (columns - left) if columns else 0,
            attends=self.attends,
            attend_step=self.attend_step,
        )
        part.is_part, part.part_of = True, self
        part.queue, part.number = self.queue, self.number
        used = self.page_used.copy()
        if slots[0] % page_size:
            first = next(iter(filled))
            used[np.flatnonzero(self.pages == first)] = filled.pop(first)
        self.pages = np.concatenate([self.pages, int32(list(filled))])
        self.page_used = np.concatenate([used, int32(list(filled.values()))])
        self.inputs = self.inputs[count:]
        self.output_slots = rest
        self.output_pages = list(dict.fromkeys(slot // page_size for slot in rest))
        self.outputs = self.outputs[len(outputs) :]
        self.cells = left * columns
        self.cuts = self.cuts[self.cuts > count] - np.int32(count)
        self.sent_slots = [*self.sent_slots, *slots]
        self.sent_outputs = [*self.sent_outputs, *outputs]
        return part


def _split_rows(mask: Int32, count: int, columns: int) -> tuple[Int32, Int32]:
    """The first rows of a mask, without the columns behind so many, which they hide; the others."""
    heads, at = [], 0
    for _ in range(count):
        heads.append(at)
        at += 1 + mask.item(at)
    ends = mask[:at].astype(np.int64)
    runs = ends[heads]
    ends[heads] = 0
    total = int(ends[: 1 + runs[0]].sum())
    ends = ends.cumsum() - np.repeat(np.arange(count), runs + 1) * total
    rows = np.diff(ends.clip(max=columns), prepend=0).astype(np.int32)
    rows[heads] = runs
    return rows, mask[at:]
