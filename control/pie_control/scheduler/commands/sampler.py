"""Commands that make samplers, and show them tokens that they did not choose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from pie_control.instances.futures import Future
from pie_control.resources.samplers import Sampler
from pie_control.scheduler.commands.command import (
    BatchLimits,
    Command,
    Numbers,
    Scrub,
    int32,
    starts_of,
)
from pie_control.scheduler.commands.sample import Question
from pie_py.device_programs.bound import Bound, state_json
from pie_py.device_programs.program import MOST_NODES
from pie_py.wire import device_programs
from pie_py.wire.plan import FeedSampler, ReadState, SetSampler, States, WriteState

if TYPE_CHECKING:
    from pie_control.prefix.provenance import Provenance

MOST_VALUES = 4 << 20  # bytes of programs' values in a batch, which the worker copies in some ms


@dataclass(slots=True, eq=False)
class SetSamplerCommand(Command):
    """Makes a sampler."""

    batch = SetSampler
    one_batch_a_plan = True  # others wait while the worker reads programs
    writes = ("", "sampler.name")
    sampler: Sampler
    seed: int  # 64 bits
    program: Bound  # which chooses
    attend: Bound | None  # which chooses what is read
    freed: set[int]  # slots of the pool whose device programs are over

    @classmethod
    def join(cls, commands: Sequence[Self]) -> SetSampler:
        """One batch."""
        seeds = [(command.seed & 0xFFFFFFFF, command.seed >> 32) for command in commands]
        return SetSampler(
            samplers=int32([command.sampler.slot for command in commands]),
            seeds=np.array(seeds, np.uint32),
            rows=int32([command.sampler.counts for command in commands]),
            **device_programs.packed(
                [command.program for command in commands], [command.attend for command in commands]
            ),
            freed=int32(commands[0].take_freed([one.sampler.slot for one in commands])),
        )

    @classmethod
    def fitting(cls, commands: Sequence[Self], limits: BatchLimits) -> int:
        """As many as the worker has soon read, of equal programs one, with values soon copied."""
        total, size, texts = 0, 0, set()
        for i, command in enumerate(commands):
            for bound in (command.program, command.attend):
                if bound is None:
                    continue
                size += len(bound.values)
                if bound.program.text not in texts:
                    texts.add(bound.program.text)
                    total += len(bound.program.nodes)
            if total > MOST_NODES or size > MOST_VALUES:
                return max(i, 1)
        return len(commands)

    def take_freed(self, used: Sequence[int]) -> list[int]:
        """Slots whose programs the worker may forget: none that is used again."""
        self.freed.difference_update(used)
        found = list(self.freed)
        self.freed.clear()
        return found

    def trace(self, provenance: Provenance) -> None:
        """The sampler has not chosen a token yet."""
        provenance.made(self.sampler.slot)

    def scrub(self, scrub: Scrub) -> None:
        """It is carried out all the same: the sampler has a handle.

        Otherwise the program would sample with the parameters of the slot's last owner.
        """
        scrub.still_run.append(self.join([self]))


@dataclass(slots=True, eq=False)
class ReadStateCommand(Question):
    """Asks for the state of a device program."""

    batch = ReadState
    reads = ("", "sampler.name")
    sampler: Sampler
    step: int  # tokens that the sampler has chosen before
    vocabulary: int
    future: Future

    @classmethod
    def join(cls, commands: Sequence[Self]) -> ReadState:
        """One batch."""
        return ReadState(
            samplers=int32([command.sampler.slot for command in commands]),
            steps=np.array([command.step for command in commands], np.uint32),
        )

    @classmethod
    def deliver(cls, commands: Sequence[Self], states: States) -> None:
        """Gives every command its state as JSON."""
        packed = device_programs.unpacked_states(states)
        for command, values in zip(commands, packed, strict=True):
            command.answer(state_json(command.sampler.stated, values, command.vocabulary))


@dataclass(slots=True, eq=False)
class WriteStateCommand(Command):
    """Gives names of a device program other values."""

    batch = WriteState
    writes = ("", "sampler.name")
    sampler: Sampler
    step: int  # tokens that the sampler has chosen before
    values: dict[int, bytes]  # by the numbers of the names

    @classmethod
    def join(cls, commands: Sequence[Self]) -> WriteState:
        """One batch."""
        each = [(one.sampler.slot, one.step, name) for one in commands for name in one.values]
        slots, steps, names = (list(column) for column in zip(*each, strict=True))
        values = device_programs.packed_states(
            [value for command in commands for value in command.values.values()]
        )
        return WriteState(
            samplers=int32(slots),
            steps=np.array(steps, np.uint32),
            names=int32(names),
            lengths=values.lengths,
            values=values.values,
        )


@dataclass(slots=True, eq=False)
class FeedSamplerCommand(Command):
    """Shows a sampler tokens that it did not choose."""

    batch = FeedSampler
    counted = "tokens"
    takes_tokens = True
    writes = ("", "sampler.name")
    sampler: Sampler
    tokens: Numbers  # [n]
    generated: bool
    chosen: int  # tokens that the sampler has chosen before

    @classmethod
    def join(cls, commands: Sequence[Self]) -> FeedSampler:
        """One batch."""
        return FeedSampler(
            samplers=int32([command.sampler.slot for command in commands]),
            generated=int32([command.generated for command in commands]),
            steps=np.array([command.chosen for command in commands], np.uint32),
            starts=starts_of(len(command.tokens) for command in commands),
            tokens=int32([token for command in commands for token in command.tokens]),
        )
