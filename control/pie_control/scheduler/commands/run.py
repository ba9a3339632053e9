"""A run: the steps of one sequence, from token to token, until something ends it.

To its queue it is one command, which stays first until it is over. Its first token is a
`SampleCommand` of its own, before it in the queue; from then on it is a row of the scheduler's
`Runs`, which has the steps of all runs carried out together.
"""

from __future__ import annotations

from array import array
from math import nan
from typing import TYPE_CHECKING, Any, Protocol

from pie_control.errors import ApiError
from pie_control.resources.run_pages import RunPages
from pie_control.resources.samplers import Sampler
from pie_control.scheduler.commands.command import Command, Touched

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pie_control.prefix.provenance import Provenance, Record

# How far a run gets ahead of what its program has asked for. A program that reads token by token
# never waits for that; one that has stopped reading without ending the run costs no more.
LEAD = 32
LEAST_LEAD = LEAD // 2  # with less it is let go on: not with each token that a program reads
NEVER = (1 << 31) - 1
CROWD = 64  # waiters
ROOM = 64  # tokens that wait in the table until the run is looked at
MOST_STOPS = 16  # stop tokens that are looked for in the table; a run with more is looked at always


class RunTable(Protocol):
    """The scheduler's table of runs, which moves them on."""

    @property
    def collect(self) -> Callable[[RunCommand], None]:
        """Gives a run the tokens that have come since it was looked at last."""

    def filled(self, run: RunCommand) -> int:
        """Slots that a run has filled and that its pages' pool does not count yet."""

    def asked(self, run: RunCommand) -> int:
        """Tokens of a run that are there or under way."""

    def changed(self, run: RunCommand) -> None:
        """A run is over, or may go further, or has another waiter for tokens."""

    def correct(self, run: RunCommand, count: int, token: int) -> None:
        """A run that has no steps under way goes on as if a token had been its number `count`."""


class Waiter(Protocol):
    """Waits for tokens: a future, or what reads them for the guest."""

    @property
    def ready(self) -> bool:
        """True if it does not wait any more."""

    def resolve(self) -> None:
        """They are there, or the run is over."""


class RunCommand(Command):
    """One run. `Runs` moves it on; the API reads its tokens and ends it.

    Tokens come into the table of `Runs`, plan by plan, for all runs at once. The run has received
    them when it has to be looked at: it has ended, or `check_at` of them are there.
    """

    kind = "run"
    is_light = False
    lasts = True
    reads = ("pages.pages", "")

    def __init__(
        self,
        sampler: Sampler,
        embed: int,
        position: int,
        pages: RunPages,
        most: int,
        stops: frozenset[int],
        adapter: int,
    ) -> None:
        """Not queued yet.

        Args:
            sampler: chooses.
            embed: that the steps use.
            position: of the first token.
            pages: where keys and values go.
            most: tokens.
            stops: tokens that end it.
            adapter: slot.
        """
        super().__init__()
        self.sampler = sampler
        self.embed = embed
        self.position = position
        self.pages = pages
        self.most = most
        self.stops = stops
        self._always = len(stops) > MOST_STOPS  # it is looked at
        self.adapter = adapter
        self.step = sampler.steps  # of the first token
        self.received = array("i")  # that have come, and are not in the table any more
        self.logprobs = array("f")  # of these, at temperature 1, before masks and programs
        self.taken = 0  # of these, by the program
        self.limit = min(most, LEAD)  # tokens that may come for now
        self.over = False
        # It waits for its program to ask for more tokens. An instance with nothing else queued may
        # be paused, so its queue does not count it meanwhile.
        self._stalled = False
        self.guesses = self.is_draft = False  # it guesses, or its tokens are another run's guesses
        self.error: ApiError | None = None  # why it is over
        self.known: Sequence[int] = ()  # the tokens that come first in any case
        self.row: int | None = None  # in the scheduler's table, while it has steps to do
        self.wanted = NEVER  # tokens that the first of `waiting` waits for
        self.waiting: list[tuple[int, Waiter]] = []
        self._crowd = CROWD  # of these: at so many the cancelled ones are forgotten
        self.own_version: str | None = None  # of its adapter
        self.versions: list[tuple[str, int]] = []  # of all weights, and their first tokens
        self.trail: Record | None = None  # of the text in its pages, as it began
        self.table: RunTable | None = None  # once it is queued

    def know(self, tokens: Sequence[int]) -> None:
        """These are its first tokens, whatever the sampler would choose. It is not queued yet."""
        self.known = tokens
        self.limit = min(self.most, len(tokens) + LEAD)

    # Tokens

    @property
    def tokens(self) -> array[int]:
        """Those that have come."""
        if self.row is not None and self.table is not None:
            self.table.collect(self)
        return self.received

    @property
    def filled(self) -> int:
        """Slots that it has filled and that its pages' pool does not count yet."""
        return 0 if self.table is None else self.table.filled(self)

    @property
    def check_at(self) -> int:
        """How many tokens have to be there for it to be looked at, if none of them stops it."""
        if self._always:
            return 0
        first = self.wanted if self.wanted < self.limit else self.limit
        room = len(self.received) + ROOM
        return first if first < room else room

    def note_version(self, weights: str) -> None:
        """The tokens that have yet to come are computed by this version of the model's weights."""
        self.versions.append((version_of(self.own_version, weights), len(self.tokens)))

    def look(self) -> None:
        """Does what follows from the tokens that have come; the last alone may be a stop token."""
        count = len(self.received)
        if count == self.most or self.received[-1] in self.stops:
            self.end(None)
            return
        if count >= self.wanted:
            self._wake()
        if count == self.limit and not self.over:
            self._stall(is_stalled=True)

    def end(self, error: ApiError | None) -> None:
        """It is over: after its last token, or for an error."""
        if self.over:
            return
        self._stall(is_stalled=False)
        self.over = True
        if error is not None:
            error = ApiError(error.code, self.sampler.source.explained(error.message))
        self.error = error
        self._changed()
        self._wake()

    def take(self) -> array[int]:
        """Tokens that have come and were not taken.

        Raises:
            ApiError: what has ended it, if there are none.
        """
        tokens = self.tokens[self.taken :]
        if not tokens and self.error is not None:
            raise self.error
        self.taken += len(tokens)
        return tokens

    def ask(self, count: int) -> bool:
        """Lets it go on until so many tokens can be taken; returns whether they can."""
        wanted = self.taken + count
        if wanted + LEAST_LEAD > self.limit:
            self.allow(wanted + LEAD)
        return self.over or len(self.tokens) >= wanted

    def allow(self, count: int) -> None:
        """Lets it go on to so many tokens."""
        limit = min(self.most, count)
        if limit > self.limit and not self.over:
            self.limit = limit
            self._stall(is_stalled=False)
            self._changed()

    def lead(self) -> None:
        """It stands still behind its steps under way until the run that guesses its tokens goes on:
        there may be some, where its program waited for its turn behind the start.
        """
        self.is_draft = True
        if self.over:
            return
        self.limit = 1 if self.table is None else self.table.asked(self)
        if len(self.tokens) == self.limit:
            self._stall(is_stalled=True)
        self._changed()

    def correct(self, count: int, token: int) -> None:
        """Goes on as if a token had been its number `count`, and none had come behind it.

        It has come to its limit; the next one is allowed then.
        """
        assert self.table is not None
        self.table.correct(self, count, token)
        del self.received[count:], self.logprobs[count:]
        self.received.append(token)
        self.logprobs.append(nan)  # which the run did not choose; its tokens are no one's to read
        self.taken = min(self.taken, count)
        self.limit = count + 1

    def when(self, count: int, waiter: Waiter) -> None:
        """Makes a waiter ready when so many tokens have come, or it is over; neither is yet."""
        if len(self.waiting) >= self._crowd:  # who was cancelled is forgotten, now and then
            self.waiting = [each for each in self.waiting if not each[1].ready]
            self._crowd = max(CROWD, 2 * len(self.waiting))
        self.waiting.append((count, waiter))
        self.wanted = min(self.wanted, count)
        self._changed()

    def _changed(self) -> None:
        if self.table is not None:
            self.table.changed(self)

    def _stall(self, *, is_stalled: bool) -> None:
        """Stands still, or goes on; it may have done so before."""
        if is_stalled is not self._stalled:
            self._stalled = is_stalled
            self.queue.owner.queued_commands += -1 if is_stalled else 1

    def _wake(self) -> None:
        waiting, self.waiting, self.wanted = self.waiting, [], NEVER
        for wanted, waiter in waiting:
            if self.over or wanted <= len(self.received):
                waiter.resolve()  # which may wait for more, or end it
            elif not waiter.ready:  # or it was cancelled
                self.when(wanted, waiter)

    def page_came(self, error: ApiError | None) -> None:
        """A page that it had to wait for is there; or it cannot be had."""
        if error is not None:
            self.end(error)

    # As a command of its queue

    def written(self) -> Touched:
        """Pages that it fills, its embed and its sampler."""
        return self.pages.written.tolist(), [self.embed, self.sampler.name]

    def trace(self, provenance: Provenance) -> None:
        """Its text is recorded at its end, when its tokens are known."""
        provenance.made(self.sampler.slot)
        provenance.embeds_changed()
        pages = self.pages
        if not pages.masked and self.sampler.attend is None:
            filled = pages.used > 0
            self.trail = provenance.before_run(
                self.queue, pages.pages[filled], pages.used[filled], self.position, self.adapter
            )

    def record(self, provenance: Provenance, tokens: int) -> None:
        """Records what its pages hold, as so many of its tokens stay in them."""
        if self.trail is not None and self.pages.untouched:
            provenance.ran(self.trail, self.pages.pages.tolist(), self.tokens[:tokens])
            if self.queue.branch is not None and self.queue.branch.record is self.trail:
                self.queue.branch.go_on(self.trail)

    def fail(self, error: ApiError) -> None:
        """Ends it. What comes after it in its queue does not fail with it."""
        self.end(error)

    def fail_as_dependant(self) -> None:
        """Ends it."""
        if not self.over:
            self.end(self.queue.dependency_error())


def version_of(adapter: str | None, weights: str) -> str:
    """The version of an adapter, if any, and of a model's weights, as one text."""
    if adapter is None:
        return weights
    return f"{adapter}+{weights}" if weights else adapter


class FirstToken:
    """Takes a run's first token, as a future does."""

    __slots__ = ("_run", "on_cancel")

    def __init__(self, run: RunCommand) -> None:
        self._run = run
        self.on_cancel: Callable[[], None] | None = None

    @property
    def ready(self) -> bool:
        """True if it is not wanted any more: the run is over."""
        return self._run.over

    def resolve(self, value: tuple[int, Any, Any, Any]) -> None:
        """The token, with its log-probability and others that were likely."""
        run = self._run
        if not run.over:
            run.received.append(value[0])
            run.logprobs.append(value[1])
            run.look()

    def fail(self, error: ApiError) -> None:
        """There is none."""
        if self.on_cancel is not None:
            self.on_cancel()  # the program may end the run without reading its error
        self._run.end(error)
