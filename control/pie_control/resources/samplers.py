"""Samplers of one model, and rows of logits that choices mix in: the free ones, and what control
knows of those in use.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from pie_control.errors import ApiError, Shortage, exceeded, invalid
from pie_control.resources.pools import Defer, FreeList
from pie_py.device_programs.bound import ATTEND_VERSIONS, VERSIONS
from pie_py.device_programs.language import REMEMBERED
from pie_py.device_programs.program import Program
from pie_py.device_programs.recording import Recorded
from pie_py.device_programs.step_cost import FREE, StepCost
from pie_py.wire.plan import LOGIT_ROWS

NO_COUNTS = -1
# Of a model's device programs: what they were given, their state, and what they are made of.
PROGRAM_BYTES = 256 << 20
NODE_BYTES = 1280  # that both processes take for each node of a program, about
_UNDER_WAY = 16  # tokens of a run that may come after it has ended, at most


class LogitRow:
    """A row of logits at the worker. It is free again once no command names it."""

    __slots__ = ("_rows", "failed", "row", "sent")

    def __init__(self, rows: FreeList) -> None:
        """Takes a row. Raises ApiError `out-of-resources`."""
        self.row = -1
        self._rows = rows
        if not rows.free:
            raise Shortage(
                f"all {LOGIT_ROWS} rows of logits are waiting for choices that mix them in",
                "out-of-resources",
            )
        self.row = int(rows.take(1)[0])
        self.sent = False  # whether the worker has what fills it, or never gets it
        self.failed = False

    def fail(self) -> None:
        """It will not be filled."""
        self.sent = self.failed = True

    def __del__(self) -> None:
        if self.row >= 0:
            self._rows.give_one(self.row)


@dataclass(slots=True, eq=False)
class Sampler:
    """One sampler; `name` stands for it where the scheduler orders commands by what they touch."""

    slot: int  # in the worker's pool
    name: int  # after those of the embeds, so that the two never meet
    counts: int  # row of remembered tokens that its device program reads, or NO_COUNTS
    mixes: int  # logits that each choice mixes into its own
    top: int  # most likely tokens reported with each sample
    program_bytes: int  # what the worker keeps of its values
    program: Program  # the device program that it is
    source: Recorded  # of the program: explains the worker's complaints about it
    cost: StepCost = FREE  # of the programs
    attend: Program | None = None  # the one of the stage `attend` that it has beside
    steps: int = 0  # tokens asked for so far
    mixing: list[LogitRow] = field(default_factory=list)  # for the next choice
    is_built_in: bool = False  # made of fields that workers have compiled: has no state to read
    made_of: dict[str, int] = field(default_factory=dict)  # bytes of programs, by their texts
    is_lost: bool = False  # it went back further than its program's state is kept

    @property
    def has_state(self) -> bool:
        """True if its device program has state that changes from step to step."""
        return bool(self.program.next)

    @property
    def stated(self) -> Program:
        """The program whose state is told: that in the layers, if that has some and no other."""
        attend = self.attend
        in_layers = attend is not None and attend.layers and attend.next and not self.has_state
        return attend if attend is not None and in_layers else self.program

    @property
    def is_memoryless(self) -> bool:
        """True if its choices depend on logits, seed and step alone, and these on the text."""
        return self.counts == NO_COUNTS and not self.has_state and self.attend is None

    @property
    def _versions(self) -> int:
        """Steps of which it has what it can go back to; 0 if it needs nothing."""
        attend = self.attend
        if attend is not None and (attend.next or attend.uses("weights")):
            return ATTEND_VERSIONS
        return VERSIONS if self.has_state else 0

    def go_back(self, step: int, chosen: int) -> None:
        """Goes on as if `step` of the `chosen` tokens had been chosen, as far as is known."""
        self.steps = step
        if self._versions and chosen - step + _UNDER_WAY >= self._versions:
            self.is_lost = True

    def lost_state(self) -> ApiError:
        """The error's text if `is_lost`."""
        return invalid(
            f"more than {self._versions - _UNDER_WAY} tokens were undone: the state that the"
            " sampler's device program had then is not kept; make a new sampler"
        )

    def check_choice(self) -> None:
        """Refuses a choice for which not all is there.

        Raises:
            ApiError: `invalid-argument`: there is not as much as it wants.
        """
        if self.is_lost:
            raise self.lost_state()
        if len(self.mixing) != self.mixes:
            raise invalid(
                f"the sampler reads {self.mixes} other logits, and `mix-logits` has been called"
                f" {len(self.mixing)} times for this choice"
            )

    def take_mixing(self) -> list[LogitRow]:
        """Rows that the next choice mixes in."""
        mixing, self.mixing = self.mixing, []
        return mixing


class SamplerPool:
    """Physical slots of samplers, and rows of remembered tokens, which are fewer and larger."""

    def __init__(self, size: int, count_rows: int, first_name: int) -> None:
        self.size = size
        self.first_name = first_name
        self.slots = FreeList(size)
        self.free_bytes = PROGRAM_BYTES
        self.freed: set[int] = set()  # slots whose device programs the worker still has
        self.rows = FreeList(count_rows)


class Samplers:
    """The samplers of one instance, by handle. Handles are never used twice."""

    def __init__(self, pool: SamplerPool, limit: int) -> None:
        self._pool = pool
        self._limit = limit
        self._live: dict[int, Sampler] = {}
        self._leaving = 0  # destroyed, but named by commands that are not sent
        self._next = 1
        self._texts: Counter[str] = Counter()  # samplers that have a program: it is kept once
        self._text_bytes = 0

    def __len__(self) -> int:
        return len(self._live)

    @property
    def remembering(self) -> int:
        """Samplers that remember tokens."""
        return sum(sampler.counts != NO_COUNTS for sampler in self._live.values())

    @property
    def program_bytes(self) -> int:
        """The kept parts of their device programs."""
        return self._text_bytes + sum(sampler.program_bytes for sampler in self._live.values())

    def more_bytes(self, program_bytes: int, made_of: Mapping[str, int]) -> int:
        """The bytes that a sampler adds to that, of its values and the programs it is made of."""
        return program_bytes + sum(n for text, n in made_of.items() if text not in self._texts)

    def create(
        self,
        *,
        program: Program,
        source: Recorded,
        top: int,
        program_bytes: int = 0,
        made_of: Mapping[str, int] = MappingProxyType({}),
        attend: Program | None = None,
        cost: StepCost = FREE,
    ) -> tuple[int, Sampler]:
        """Takes a slot, and a row if the sampler remembers tokens; returns its handle, too.

        Raises:
            ApiError: `limit-exceeded`, `out-of-resources`.
        """
        pool, remembers = self._pool, program.uses(*REMEMBERED)
        if len(self._live) >= self._limit:
            raise exceeded(f"{self._limit} samplers are open; destroy one first")
        if len(self._live) + self._leaving >= 2 * self._limit:
            raise exceeded(
                f"{self._leaving} destroyed samplers are taken until the commands that name them"
                " have run; wait for those"
            )
        if not pool.slots.free:
            raise Shortage(f"all {pool.size} samplers of the model are in use", "out-of-resources")
        if remembers and not pool.rows.free:
            raise Shortage(
                "as many samplers with penalties (or others that remember tokens) as the model has"
                " room for are in use; leave the penalties out",
                "out-of-resources",
            )
        more = self.more_bytes(program_bytes, made_of)
        if more > pool.free_bytes:
            raise Shortage(
                f"this device program wants {more} bytes for itself, state and what it was given,"
                f" and {pool.free_bytes} of the model's {PROGRAM_BYTES} are free",
                "out-of-resources",
            )
        pool.free_bytes -= more
        self._text_bytes += more - program_bytes
        self._texts.update(made_of.keys())
        slot = int(pool.slots.take(1)[0])
        counts = int(pool.rows.take(1)[0]) if remembers else NO_COUNTS
        handle = self._next
        self._next += 1
        sampler = self._live[handle] = Sampler(
            *(slot, pool.first_name + slot, counts, program.beside, top, program_bytes),
            *(program, source, cost, attend),
            made_of=dict(made_of),
        )
        return handle, sampler

    def find(self, handle: int) -> Sampler:
        """The sampler behind a handle. Raises ApiError `invalid-handle`."""
        try:
            return self._live[handle]
        except KeyError:
            raise ApiError(
                "invalid-handle",
                f"{handle} is no sampler of this instance for the queue's model (destroyed"
                " already?)",
            ) from None

    def before_choice(self, handle: int) -> Sampler | None:
        """The sampler behind a handle, unless it has chosen a token or is destroyed."""
        sampler = self._live.get(handle)
        return None if sampler is None or sampler.steps else sampler

    def free(self, handle: int, defer: Defer) -> None:
        """Ends the handle at once; the slot comes back when `defer` calls back.

        Raises:
            ApiError: `invalid-handle`.
        """
        sampler = self.find(handle)
        del self._live[handle]

        def release() -> None:
            self._leaving -= 1
            self._release(sampler)

        self._leaving += 1
        defer([], [sampler.name], release)

    def close(self) -> None:
        """Gives everything back. Idempotent."""
        for sampler in self._live.values():
            self._release(sampler)
        self._live.clear()

    def _release(self, sampler: Sampler) -> None:
        self._pool.slots.give_one(sampler.slot)
        if sampler.program_bytes or sampler.made_of:
            self._pool.free_bytes += sampler.program_bytes
            self._pool.freed.add(sampler.slot)
        for text, size in sampler.made_of.items():
            self._texts[text] -= 1
            if not self._texts[text]:
                del self._texts[text]
                self._text_bytes -= size
                self._pool.free_bytes += size
        if sampler.counts != NO_COUNTS:
            self._pool.rows.give_one(sampler.counts)
