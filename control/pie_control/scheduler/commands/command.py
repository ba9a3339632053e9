"""The base of all kinds of commands, and the queues in which those of one instance stand.

A kind of command is one class of this folder. It holds all that the control layer knows of the
kind: its fields, what it reads and writes, how many fit into a batch, the batch that a list of them
becomes, which futures get the results, what a failure does, what has to be cleared if it never
runs, and what pages hold after it. Names in it are physical, and are checked before. The scheduler
knows no kind by name: a new one also needs its line in `scheduler/backlog.py`, its batch in the
wire protocol, and the worker's handler.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, Self, TypeAlias

import numpy as np

from pie_control.errors import ApiError, Code, exceeded
from pie_py.device_programs.step_cost import OF_A_STEP
from pie_py.wire.plan import Batch, Clear, Int32

if TYPE_CHECKING:
    from pie_control.instances.aim import Precedence
    from pie_control.instances.futures import Future
    from pie_control.instances.timeline import Timeline
    from pie_control.prefix.provenance import Branch, Provenance
    from pie_py.config.limits import Limits

# What a decode step has one or two of is in lists of Python numbers: a call of NumPy costs more
# than a few numbers do. Arrays pay only where the commands of many instances are joined.
Numbers: TypeAlias = list[int]

# What a command touches: pages `[p]` and embeds `[e]`. The scheduler orders commands by these
# names, within a batch and across the queues of an instance. Samplers have names after the last
# embed's, and host pages have names after the last page's.
Touched: TypeAlias = tuple[Numbers, Numbers]

# The attributes of a command that are pages and embeds; empty for none.
Names: TypeAlias = tuple[str, str]
Getter: TypeAlias = Callable[[Any], Numbers]

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
class Command:
    """A command of a queue."""

    batch: ClassVar[type[Batch]]  # of the wire protocol
    kind: ClassVar[str]  # the name of its batches
    # Attributes that are the columns of a batch, in the order of its fields: an array, a list or a
    # number for each command. A kind whose batch is more than that has a `join` of its own.
    columns: ClassVar[tuple[str, ...]] = ()
    reads: ClassVar[Names] = ("", "")
    writes: ClassVar[Names] = ("", "")
    # The field whose items are the rows of a batch, for the statistics; None: a command is a row.
    counted: ClassVar[str | None] = None
    takes_tokens: ClassVar[bool] = False  # its rows are tokens of a batch, of which there are few
    # Light commands may have several batches in a plan; the one that is not has one batch a plan.
    is_light: ClassVar[bool] = True
    one_batch_a_plan: ClassVar[bool] = False  # a light kind whose batches take long all the same
    takes_turns: ClassVar[bool] = False  # users have room in a batch by turns, not by age
    # What its sending says of its queue: that it runs ahead of the tokens that its program has seen
    # (if the worker still has something of it), that it does not, or nothing.
    runs_ahead: ClassVar[bool | None] = None
    # Most kinds have an effect that others may depend on: they run though their future is
    # cancelled.
    is_withdrawn_if_cancelled: ClassVar[bool] = False
    is_notified_when_sent: ClassVar[bool] = False
    lasts: ClassVar[bool] = False  # it stays the first of its queue through many plans
    refused_as: ClassVar[Code] = "internal"  # if the worker refuses one command of a batch

    queue: CommandQueue = field(init=False, repr=False)
    number: int = field(init=False, default=0)  # order over all queues of a model
    # Other queues of the instance must have sent their commands up to this number.
    after: int = field(init=False, default=0)
    marks: list[Mark] | None = field(init=False, default=None)  # that stand behind it
    _read: ClassVar[tuple[Getter, Getter]]
    _written: ClassVar[tuple[Getter, Getter]]
    is_part: bool = field(init=False, default=False)  # what is left of it is still in the queue

    def __init_subclass__(cls) -> None:
        """Knows how its attributes are found."""
        if "batch" in vars(cls):
            cls.kind = cls.batch.kind
        cls._read, cls._written = _getters(cls.reads), _getters(cls.writes)

    def read(self) -> Touched:
        """Names of what it reads."""
        pages, embeds = self._read
        return pages(self), embeds(self)

    def written(self) -> Touched:
        """Names of what it writes."""
        pages, embeds = self._written
        return pages(self), embeds(self)

    def conflicts(self, other: Command) -> bool:
        """True if both touch the same name, and one of them writes it."""
        for read, written, others_read, others_written in zip(
            self.read(), self.written(), other.read(), other.written(), strict=True
        ):
            if not set(written).isdisjoint((*others_read, *others_written)):
                return True
            if not set(others_written).isdisjoint(read):
                return True
        return False

    def touches(self, names: Touched) -> bool:
        """True if it reads or writes one of them."""
        return any(
            not set(own).isdisjoint(others)
            for touched in (self.read(), self.written())
            for own, others in zip(touched, names, strict=True)
        )

    @classmethod
    def join(cls, commands: Sequence[Self]) -> Batch:
        """One batch of the wire protocol of at least one command."""
        return cls.batch(*[column(commands, name) for name in cls.columns])

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
        """Costs of their device programs, `[3, n]`, a `StepCost` in each column; None: nothing."""
        return None

    def is_held_back(self) -> bool:
        """True if it has to wait, though it is the first of its queue."""
        return self.after > 0 and self.queue.must_follow(self)

    def was_sent(self) -> None:
        """It is in a plan, if its kind is notified of that."""

    def trace(self, provenance: Provenance) -> Mark | None:
        """Reports what it makes of the contents of pages, as it is queued.

        A kind that says nothing more specific makes what it writes unknown: no page that it writes
        is believed to hold any text. Returns a mark to set behind it in its queue, if any.
        """
        pages, embeds = self.written()
        provenance.overwritten(pages, embeds)
        return None

    def offer_withdrawal(self, withdraw: Callable[[Command], None]) -> None:
        """Takes what takes it out of its queue, of kinds that are withdrawn."""

    @classmethod
    def deliver(cls, commands: Sequence[Self], values: Any) -> None:
        """Gives the futures of a batch that has run their values, if it has any."""

    def refusal(self, text: str) -> ApiError:
        """Its error if the worker refused it and carried out the others of its batch."""
        return ApiError(self.refused_as, text)

    def fail(self, error: ApiError) -> None:
        """Fails it, and with it what comes after it in its queue."""
        self.queue.fail(error)

    def fail_as_dependant(self) -> None:
        """Fails it for what an earlier command of its queue did."""

    def scrub(self, scrub: Scrub) -> None:
        """Notes what holds old contents if the command never runs: what it should have written.

        Nothing by default: for a kind that writes nothing, or over what its owner wrote.
        """


class QueueOwner(Protocol):
    """An instance, as the scheduler sees it."""

    id: str
    user: str
    limits: Limits
    queued_commands: int
    prompt_tokens: int
    generated_tokens: int
    timeline: Timeline

    @property
    def precedence(self) -> Precedence:
        """Where it stands among its user's instances; less goes first."""


class SentBatch(Protocol):
    """A batch at the worker, as a queue sees it that has commands in it."""

    done: bool  # its results are there
    marks: list[Mark]


class Taker(Protocol):
    """Takes what a command gives: a future, or a run."""

    on_cancel: Callable[[], None] | None

    @property
    def ready(self) -> bool:
        """True if it has an answer."""

    def resolve(self, value: Any) -> None:
        """The command has given a value."""

    def fail(self, error: ApiError) -> None:
        """There is none."""


class Release(NamedTuple):
    """Gives back what no command from a number on names any more."""

    number: int
    names: Touched
    call: Callable[[], None]


class Account:
    """The queues of one owner that hold commands, and what waits until those are sent."""

    __slots__ = ("active", "id", "owner", "parked", "provenance", "queues", "releases")

    def __init__(self, owner: QueueOwner, number: int) -> None:
        self.owner = owner
        self.id = number  # of no other account of the model
        self.active: dict[CommandQueue, None] = {}
        # Records every command, from the owner's first request for shared prefixes on.
        self.provenance: Provenance | None = None
        self.parked = False  # the server may move its pages: its runs have no steps
        self.releases: deque[Release] = deque()
        self.queues = 0  # opened so far


class CommandQueue:
    """Commands of one instance for one model, which take effect in order. The scheduler moves them.

    A command that fails makes the later ones of its queue fail too, up to the next `synchronize`:
    that is the point at which the guest learns of it and starts again.
    """

    def __init__(self, account: Account, number: int) -> None:
        self.account = account
        self.owner = account.owner
        # Its place in a batch: those of higher priority, then those of older queues, are before it.
        self.id = number  # of no other queue of the model
        self.rank = (0, number)
        self.pending: deque[Command] = deque()  # oldest first
        self.last: SentBatch | None = None  # the batch that holds its newest command sent
        self.ahead = False  # its newest input was embedded before its token was known
        self.failure: ApiError | None = None  # why commands fail until the next synchronize
        self.failure_reported = False
        self.failures = 0  # commands that have failed
        # Handle of a sampler that observes, until it has chosen, what forwards attend to.
        self.prompt_observer: int | None = None
        # Spans of the pages of its newest forward or run, for people who look at an instance.
        self.sees: tuple[list[int], ...] = ()
        self.branch: Branch | None = None  # what it has run, likewise

    @property
    def priority(self) -> int:
        """Higher goes first."""
        return -self.rank[0]

    @priority.setter
    def priority(self, priority: int) -> None:
        self.rank = (-priority, self.rank[1])

    @property
    def is_idle(self) -> bool:
        """True if nothing of it is at the worker."""
        return self.last is None or self.last.done

    @property
    def drops(self) -> bool:
        """True if its commands are dropped, up to the next mark, because one before them has
        failed.

        What they were to write is cleared then, before all else that is sent. Another queue of the
        owner may be about to read just that; so with commands in others, these run in their places
        and fail there.
        """
        if self.failure is None or not self.is_idle:
            return False
        return all(other is self for other in self.account.active)

    def must_follow(self, command: Command) -> bool:
        """True if another queue of the instance has yet to send what comes before a command."""
        for other in self.account.active:
            if other is self:
                continue
            first = other.pending[0]
            if first.lasts and first.number <= command.after and not first.conflicts(command):
                if len(other.pending) == 1:
                    continue
                first = other.pending[1]
            if first.number <= command.after:
                return True
        command.after = 0
        return False

    def check_room(self, count: int = 1) -> None:
        """Refuses more commands than an instance may have queued.

        Raises:
            ApiError: `limit-exceeded`.
        """
        limit = self.owner.limits.queued_commands
        if self.owner.queued_commands + count > limit:
            raise exceeded(
                f"{self.owner.queued_commands} commands are queued and {limit} may be; wait for"
                " some (synchronize) before queueing more"
            )

    def fail(self, error: ApiError) -> None:
        """Notes that a command failed, so that its dependants do."""
        self.failures += 1
        if self.failure is None:
            self.failure = error
            self.failure_reported = False

    def dependency_error(self) -> ApiError:
        """The error of a command that comes after one that failed."""
        return ApiError(
            "failed-dependency",
            f"an earlier command of this queue failed ({self.failure}); the queue accepts commands"
            " again after a synchronize",
        )

    def fail_dependant(self, future: Taker) -> None:
        """Fails the future of a command that comes after one that failed, unless it has a value or
        was cancelled. If it is cancelled later, it has not reported the failure.
        """
        if not future.ready:
            self.failure_reported = True
            future.on_cancel = self._not_reported
            future.fail(self.dependency_error())

    def _not_reported(self) -> None:
        self.failure_reported = False


class Sync:
    """A mark that makes a future ready; after a failure the queue then accepts commands again."""

    __slots__ = ("_future", "_queue")

    def __init__(self, queue: CommandQueue, future: Future) -> None:
        self._queue = queue
        self._future = future

    def passed(self) -> None:
        """Resolves the future, or fails it with the queue's unreported error."""
        queue = self._queue
        self._future.on_cancel = None
        error, reported = queue.failure, queue.failure_reported
        queue.failure = None
        if error is None or reported:
            self._future.resolve()
        else:
            self._future.fail(error)

    def dropped(self) -> None:
        """The future ends with its instance."""


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


def column(commands: Sequence[Command], name: str) -> Any:
    """A column of a batch: an attribute of commands, numbers of each one after the other."""
    get = attrgetter(name)
    values = [get(command) for command in commands]
    if isinstance(values[0], np.ndarray):
        return chain(values)
    return int32([n for each in values for n in each] if isinstance(values[0], list) else values)


def _getters(names: Names) -> tuple[Getter, Getter]:
    """Finds the numbers of pages and embeds in attributes of these names."""

    def getter(name: str) -> Getter:
        if not name:
            return lambda command: []
        get = attrgetter(name)

        def numbers(command: Any) -> Numbers:
            value = get(command)
            if type(value) is list:
                return value
            return value.tolist() if isinstance(value, np.ndarray) else [value]

        return numbers

    return getter(names[0]), getter(names[1])
