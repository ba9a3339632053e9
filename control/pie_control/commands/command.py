"""The base of all kinds of commands. Names in commands are physical, and are checked before.

A kind of command is one class of this folder. It holds all that the control layer knows of the
kind: its fields, what it reads and writes, how many fit into a batch, the batch that a list of them
becomes, which futures get the results, what a failure does, what has to be cleared if it never
runs, and what pages hold after it. The scheduler knows no kind by name: a new one also needs its
line in `scheduler/backlog.py`, its batch in the wire protocol, and the worker's handler.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Protocol, Self, TypeAlias

import numpy as np

from pie_control.errors import ApiError, Code
from pie_py.device_programs.step_cost import OF_A_STEP
from pie_py.wire.plan import Batch, BatchResult, Clear, Int32

if TYPE_CHECKING:
    from pie_control.commands.queue import CommandQueue
    from pie_control.prefix.provenance import Provenance

# What a decode step has one or two of is in lists of Python numbers: a call of NumPy costs more
# than a few numbers do. Arrays pay only where the commands of many instances are joined.
Numbers: TypeAlias = list[int]

# What a command touches: pages `[p]` and embeds `[e]`. The scheduler orders commands by these
# names, within a batch and across the queues of an instance. Samplers have names after the last
# embed's, and host pages have names after the last page's.
Touched: TypeAlias = tuple[Numbers, Numbers]

NOTHING: Int32 = np.empty(0, np.int32)


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """The limits of one batch at the worker."""

    tokens: int  # inputs of forwards, tokens of embeds, or tokens that samplers observe
    commands: int
    steps: int = 0  # of runs, that are in the batch already
    programs: int = OF_A_STEP  # the time that device programs may take

    def without(self, steps: int) -> BatchLimits:
        """The rest beside so many steps of runs."""
        return replace(
            self, tokens=self.tokens - steps, commands=self.commands - steps, steps=steps
        )


class Mark(Protocol):
    """Stands in a queue behind a command, and is notified once, when all before it is over."""

    def passed(self) -> None:
        """Called when all before it has taken effect, or has failed."""

    def dropped(self) -> None:
        """Called instead if what is before it will never run, since its instance has ended."""


class Scrub:
    """The scrub list: what dropped commands did not write, to be cleared before any read.

    A page's slots count as filled from the moment at which the command that fills them is queued.
    If an earlier command of its queue fails, that command never runs. What it should have filled is
    cleared then, so that no program reads what another one left there.
    """

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self.slots: set[int] = set()
        self.embeds: set[int] = set()
        self.host_pages: set[int] = set()
        self.samplers: set[int] = set()  # whose last token is not the one that was to be
        self.still_run: list[Batch] = []  # of dropped commands that are carried out all the same

    def take(self) -> list[Batch]:
        """The batches that set this right, which go before all that is sent from now on."""
        parts = self.slots, self.embeds, self.host_pages, self.samplers
        if not (any(parts) or self.still_run):
            return []
        clear = Clear(*(np.array(sorted(part), np.int32) for part in parts))
        batches = [*self.still_run, clear]
        self.still_run.clear()
        for part in parts:
            part.clear()
        return batches


@dataclass(slots=True, eq=False)
class Command(ABC):
    """A command of a queue."""

    kind: ClassVar[str]  # the name of its batches in the wire protocol
    # The field whose items are the rows of a batch, for the statistics; None: a command is a row.
    counted: ClassVar[str | None] = None
    takes_tokens: ClassVar[bool] = False  # its rows are tokens of a batch, of which there are few
    # Light commands may have several batches in a plan; the one that is not has one batch a plan.
    is_light: ClassVar[bool] = True
    one_batch_a_plan: ClassVar[bool] = False  # a light kind whose batches take long all the same
    # What its sending says of its queue: that it runs ahead of the tokens that its program has seen
    # (if the worker still has something of it), that it does not, or nothing.
    runs_ahead: ClassVar[bool | None] = None
    # Most kinds have an effect that others may depend on: they run though their future is
    # cancelled.
    is_withdrawn_if_cancelled: ClassVar[bool] = False
    is_notified_when_sent: ClassVar[bool] = False
    refused_as: ClassVar[Code] = "internal"  # if the worker refuses one command of a batch

    queue: CommandQueue = field(init=False, repr=False)
    number: int = field(init=False, default=0)  # order over all queues of a model
    # Other queues of the instance must have sent their commands up to this number.
    after: int = field(init=False, default=0)
    marks: list[Mark] | None = field(init=False, default=None)  # that stand behind it
    is_part: bool = field(init=False, default=False)  # what is left of it is still in the queue

    def read(self) -> Touched:
        """Names of what it reads: none by default."""
        return [], []

    def written(self) -> Touched:
        """Names of what it writes: none by default."""
        return [], []

    @classmethod
    @abstractmethod
    def join(cls, commands: Sequence[Self]) -> Batch:
        """One batch of the wire protocol of at least one command."""

    @classmethod
    def count_rows(cls, commands: Sequence[Self]) -> int:
        """How large their batch is, for the statistics."""
        name = cls.counted
        return len(commands) if name is None else sum([len(getattr(c, name)) for c in commands])

    @classmethod
    def fitting(cls, commands: Sequence[Self], limits: BatchLimits) -> int:
        """How many of the commands, from the first on, fit into one batch; always at least one."""
        name = cls.counted
        if name is None or not cls.takes_tokens:
            return len(commands)
        return within((len(getattr(command, name)) for command in commands), limits.tokens)

    @classmethod
    def program_costs(cls, commands: Sequence[Self]) -> Int32 | None:
        """What their device programs cost, `[3, n]`, a `StepCost` in each column; None: nothing."""
        return None

    def is_held_back(self) -> bool:
        """Whether it has to wait, though it is the first of its queue."""
        return self.after > 0 and self.queue.must_follow(self)

    def was_sent(self) -> None:  # noqa: B027
        """It is in a plan, if its kind is notified of that."""

    def trace(self, provenance: Provenance) -> Mark | None:
        """Reports what it makes of the contents of pages, as it is queued.

        A kind that says nothing more specific makes what it writes unknown: no page that it writes
        is believed to hold any text.

        Returns:
            A mark to set behind it in its queue, if any.
        """
        pages, embeds = self.written()
        provenance.overwritten(pages, embeds)
        return None

    def offer_withdrawal(self, withdraw: Callable[[Command], None]) -> None:  # noqa: B027
        """Takes what takes it out of its queue, of kinds that are withdrawn."""

    @classmethod  # noqa: B027
    def deliver(cls, commands: Sequence[Self], answer: BatchResult) -> None:
        """Gives the futures of a batch that has run their values."""

    def refusal(self, text: str) -> ApiError:
        """Its error if the worker refused it and carried out the others of its batch."""
        return ApiError(self.refused_as, text)

    def fail(self, error: ApiError) -> None:
        """Fails it, and with it what comes after it in its queue."""
        self.queue.fail(error)

    def fail_as_dependant(self) -> None:  # noqa: B027
        """Fails it for what an earlier command of its queue did."""

    @abstractmethod
    def scrub(self, scrub: Scrub) -> None:
        """Notes what holds old contents if the command never runs: what it should have written."""


def within(sizes: Iterable[int], most: int) -> int:
    """How many of the sizes, from the first on, add up to at most `most`; always at least one."""
    total = count = 0
    for size in sizes:
        total += size
        if total > most:
            break
        count += 1
    return max(count, 1)


def int32(numbers: list[int]) -> Int32:
    """Numbers `[n]` as an array of the wire protocol."""
    return np.array(numbers, np.int32)


def chain(parts: list[Int32]) -> Int32:
    """Arrays one after the other; there is at least one."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def starts_of(lengths: Iterable[int]) -> Int32:
    """Offsets `[n + 1]` of parts with these lengths `[n]`."""
    starts = [0]
    for length in lengths:
        starts.append(starts[-1] + length)
    return int32(starts)
