"""Turns of guests: which ready one is next, and what follows from how a turn ended."""

from __future__ import annotations

import itertools
import time
from collections.abc import Awaitable, Callable, Sequence, Set
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from operator import itemgetter
from typing import Any

import structlog
import trio

from pie_control.errors import ApiError
from pie_control.fairness import FairQueue, Owner, Work
from pie_control.instances.cool_down import CoolDown
from pie_control.instances.futures import unheard
from pie_control.instances.guest_memory import GuestMemory
from pie_control.instances.instance import Instance, InstanceState, Turns
from pie_control.tasks import Service
from pie_control.wasm.guest import Guest, Status
from pie_control.wasm.linker import SUSPENDED
from pie_control.wasm.trap import GuestTrap

CREDIT_NS = 100_000_000  # of a guest that was idle, against those of its user
# Of a user whose guests were idle, against others: they wait so long for what that one begins with.
USER_CREDIT_NS = 30_000_000
LEAD_NS = 20_000_000  # of the guest that is next, which ends a turn if another is ready again


class ReadyGuests:
    """The least served user's guests are next, and of them the least served one.

    While all are of one user they wait in a heap, and are charged together at the end of a turn:
    the order is the same, and costs a fifth. A burst of launches makes it long, and a turn serves
    few. Otherwise they wait in a line for each user.
    """

    def __init__(self, weight_of: Callable[[str], float]) -> None:
        self.line: FairQueue[Instance] = FairQueue(CREDIT_NS, weight_of, USER_CREDIT_NS)
        self._single: str | None = None  # the user whose all are, if they are in the heap
        self.heap: list[tuple[float, int, Instance]] = []  # by what each has had, then as it came
        self._came = itertools.count()
        self._costs: list[tuple[str, float]] = []  # of instances of that user in this turn

    def __bool__(self) -> bool:
        return bool(self.heap or self.line)

    def begin_turn(self, arrived: Sequence[Instance], *, some_rest: bool) -> None:
        """These are ready, too. If users rest, the others are looked for in lines."""
        users = {instance.user for instance in arrived}
        if self.heap and self._single is not None:
            users.add(self._single)
        if len(users) == 1 and not self.line and not some_rest:
            self._single = single = users.pop()
            starts = self.line.enter_all(single, [instance.id for instance in arrived])
            for start, instance in zip(starts, arrived, strict=True):
                heappush(self.heap, (start, next(self._came), instance))
            return
        self._single = None
        self.heap.sort(key=itemgetter(1))
        for instance in (*[waiting for _, _, waiting in self.heap], *arrived):
            self.line.push(instance.owner, instance)
        self.heap = []

    def take(self, resting: Set[str]) -> Instance | None:
        """Takes the next guest out, of a user who does not rest; None if there is none."""
        if self._single is not None:
            may = self.heap and self._single not in resting
            return heappop(self.heap)[2] if may else None
        taken = self.line.pop(others_than(resting))
        return None if taken is None else taken[1]

    def charge(self, instance: Instance, nanoseconds: int) -> None:
        """The guest that was taken has had a turn."""
        if self._single is not None:
            self._costs.append((instance.id, nanoseconds))
        else:
            self.line.charge(instance.owner, nanoseconds)

    def charge_user(self, user: str, nanoseconds: int) -> None:
        """Charges a user for what was done outside turns: a user's time is one."""
        self.line.charge_user(user, nanoseconds)

    def end_turn(self) -> None:
        """Charges what has not been charged yet."""
        if self._single is not None and self._costs:
            self.line.served_round(self._single, self._costs, all_of_them=not self.heap)
            self._costs = []

    def makes_way(self, user: str) -> bool:
        """True if the next guest waits a turn for a ready one of this user who was served less."""
        if self._single is not None:
            return user != self._single
        return self.line.lead(user) > LEAD_NS

    def next_user(self, but: Set[str]) -> str | None:
        """The user of the guest that is next, without some users."""
        if self.heap:
            return None if self._single in but else self._single
        return self.line.next_user(but)

    def is_less_served(self, user: str, than: str) -> bool:
        """True if a user comes before another one, if both wait."""
        return self.line.is_less_served(user, than)


def others_than(users: Set[str]) -> Callable[[str], bool] | None:
    """Tells of a user whether it is none of these; None if there are none."""
    return (lambda user: user not in users) if users else None


log = structlog.get_logger("pie.executor")

_NOTHING = object()
BACKGROUND_NS = 2_000_000  # of a turn, after which nothing more of the background is begun


@dataclass(frozen=True)
class _Late:
    """An answer that is made when the guest gets it."""

    make: Callable[[], Any]


class Executor:
    """Runs every guest on the calling thread.

    Users take turns, and so do the instances of each, by the time that their guests have used, host
    calls included (`fairness.py`). A guest that used its whole slice goes to the background, which
    has a bounded time of each turn. What else is done for users by and by, such as freeing what
    their instances held, is there, too. The background waits for guests of users who have been
    served less. A user whose guest had a long turn rests (`cool_down.py`).

    A result of the worker begins a turn of the guests that it wakes alone. The next plan waits for
    these, whose next commands are one batch, and for guests that are new. What else is ready, such
    as one that gives its turn away and wants another, or spins, has turns once that plan is sent.
    """

    def __init__(
        self,
        on_end: Callable[[Instance, InstanceState, str], None],
        turn_seconds: float,
        result_turn_seconds: float,
        clock_ns: Callable[[], int] = time.perf_counter_ns,
        weight_of: Callable[[str], float] = lambda user: 1.0,
        memory: GuestMemory | None = None,
    ) -> None:
        """Has no guest yet.

        `on_end` ends an instance whose guest has returned, trapped, or broken a limit. A turn is
        cut short after `turn_seconds`, or `result_turn_seconds` if a result began it.
        """
        self._on_end = on_end
        # Called after every turn, with whether a result of the worker began it.
        self.after_turn: list[Callable[[bool], None]] = []
        self._turn_ns = int(turn_seconds * 1e9)
        self._result_turn_ns = int(result_turn_seconds * 1e9)
        self._clock_ns = clock_ns
        self._memory = memory or GuestMemory()
        self._cool_down = CoolDown(weight_of)
        self._arrived: list[Instance] = []  # are ready in the next turn
        self._ready = ReadyGuests(weight_of)
        self._background: FairQueue[Instance | Work] = FairQueue(
            CREDIT_NS, weight_of, USER_CREDIT_NS
        )
        self._answers: dict[Instance, Any] = {}
        self._work = trio.Event()
        self._in_turn = False
        self._due: set[Instance] = set()  # guests that the next plan waits for

    def add(self, instance: Instance) -> None:
        """Takes a started guest in; it runs in the next turn."""
        instance.futures.announce = partial(self._announce, instance)
        self._due.add(instance)
        self._cool_down.comes(instance.user, self._clock_ns())
        self.give_turn(instance)

    def answer(self, instance: Instance, value: Any) -> None:
        """Resumes a guest that a host function other than `wait` suspended.

        An ApiError becomes the error of that function.
        """
        self._answers[instance] = value
        self.give_turn(instance)

    def answer_late(self, instance: Instance, make: Callable[[], Any]) -> None:
        """As `answer`, with what `make` returns when the guest has its turn."""
        self.answer(instance, _Late(make))

    def give_turn(self, instance: Instance) -> None:
        """Resumes a guest that waits, whether or not a future of it is ready."""
        if not instance.turn.scheduled:
            instance.turn.scheduled = True
            self._arrived.append(instance)
            if not self._in_turn:  # its end looks for itself
                self._work.set()

    def do_later(self, owner: Owner, work: Work) -> None:
        """Does something for an owner in a later turn, which pays for it. It must raise nothing."""
        self._background.push(owner, work)
        if not self._in_turn:  # its end looks for itself
            self._work.set()

    def discard(self, instance: Instance) -> None:
        """Forgets an instance that has ended."""
        self._answers.pop(instance, None)
        self._due.discard(instance)
        instance.futures.announce = unheard  # the other one holds the instance, a circle
        instance.turn.clear()

    def turn(self, deliver: Callable[[], None] | None = None) -> None:
        """Runs guests that are ready, for a bounded time, then has their commands scheduled.
        `deliver` is called first; the guests that it wakes have their turn in this one.
        """
        self._in_turn = True
        try:
            if deliver is None:
                self._run_ready(self._turn_ns, of_result=False)
                for call in self.after_turn:
                    call(False)
                self._run_background()
            else:
                ready_before = len(self._arrived)
                deliver()
                self._due.update(self._arrived[ready_before:])
                if self._due:
                    self._run_ready(self._result_turn_ns, of_result=True)
                for call in self.after_turn:
                    call(True)
        finally:
            self._in_turn = False
            if self._goes_on():
                self._work.set()

    @property
    def caught_up(self) -> bool:
        """True if every guest that the last results have woken, or that is new, has run."""
        return not self._due

    @property
    def has_ready(self) -> bool:
        """True if a guest is ready that has not used up its slice."""
        return bool(self._arrived or self._ready)

    def give_another(self) -> None:
        """Another turn comes soon, with or without guests that are ready."""
        self._work.set()

    async def run(self) -> None:
        """Gives turns for as long as there is work, until cancelled."""
        while True:
            rest = self._cool_down.left(self._clock_ns())
            if rest is None:
                await self._work.wait()
            else:
                with trio.move_on_after(rest / 1e9):
                    await self._work.wait()
            self._work = trio.Event()
            self.turn()
            await trio.lowlevel.checkpoint()

    def _run_ready(self, nanoseconds: int, *, of_result: bool) -> None:
        # Guests that become ready meanwhile run in the next turn. Otherwise one that does so at
        # once (`wait` for nothing, in a loop) would keep the scheduler from the others' commands.
        arrived, self._arrived = self._arrived, []
        self._memory.begin()
        now = self._clock_ns()
        end = now + nanoseconds
        ready, resting = self._ready, self._cool_down.at(now)
        ready.begin_turn(arrived, some_rest=bool(resting))
        while now <= end and ready and (self._due or not of_result):
            if self._arrived and ready.makes_way(self._arrived[-1].user):
                break
            instance = ready.take(resting)
            if instance is None:
                break
            after = self._step(instance, now)
            ready.charge(instance, after - now)
            if self._cool_down.ran(instance.user, now, after):
                self._work.set()  # `run` looks when the rest ends
            now, resting = after, self._cool_down.at(after)
        ready.end_turn()
        if resting:  # no plan waits for these
            self._due = {instance for instance in self._due if instance.user not in resting}
        self._memory.end()

    def _run_background(self) -> None:
        """Goes on in the background for a bounded time, while the worker has its plan."""
        if not self._background:
            return
        self._memory.begin()
        now = self._clock_ns()
        end = now + BACKGROUND_NS
        for _ in range(len(self._background)):
            resting = self._cool_down.at(now)
            if now >= end or self._is_other_first(resting):
                break
            taken = self._background.pop(others_than(resting))
            if taken is None:
                break
            owner, item = taken
            if isinstance(item, Instance):
                after = self._step(item, now)
            else:
                item()
                after = self._clock_ns()
            self._background.charge(owner, after - now)
            self._ready.charge_user(owner.user, after - now)
            self._cool_down.ran(owner.user, now, after)
            now = after
            self._work.set()  # a guest may have queued commands, and wait now
        self._memory.end()

    def _is_other_first(self, resting: Set[str]) -> bool:
        """True if a guest is ready of a user who was served less than the next one in the
        background.
        """
        user = self._background.next_user(resting)
        if user is None:
            return False
        others = {instance.user for instance in self._arrived[-1:]} - resting
        if (ready := self._ready.next_user(resting)) is not None:
            others.add(ready)
        return any(self._ready.is_less_served(other, user) for other in others)

    def _goes_on(self) -> bool:
        """True if a guest is ready whose user does not rest."""
        if self._arrived:
            return True
        resting = self._cool_down.until and self._cool_down.at(self._clock_ns())
        if not resting:
            return bool(self._ready.heap or self._ready.line.size or self._background.size)
        lines = self._ready, self._background
        return any(line.next_user(resting) is not None for line in lines)

    def _step(self, instance: Instance, now: int) -> int:
        """Gives a guest its turn, unless it has ended or is blocked; returns the time then."""
        turn = instance.turn
        turn.scheduled = False
        self._due.discard(instance)
        if turn.blockers and instance.guest is not None:
            for blocker in list(turn.blockers):
                blocker.wants_to_run(instance)
        if turn.blockers or instance.guest is None:
            return self._clock_ns()
        waited_for = _waited_for(instance)
        self._resume(instance, instance.guest)
        after = self._clock_ns()
        self._memory.ran(instance, after - now)
        waits_for = "other programs" if turn.scheduled else "the server"
        instance.timeline.turn(waited_for, now, after, waits_for)
        return after

    def _resume(self, instance: Instance, guest: Guest) -> None:
        """Runs a guest until it waits, ends, or has used its slice."""
        turn = instance.turn
        try:
            if turn.awaited is not None:
                waited = _end_of_wait(instance, turn.awaited)
                if instance.guest is None:  # it has left its journal
                    return
                if waited is not SUSPENDED:  # else it waits for something else now
                    guest.resume(waited)
            else:
                answer = self._answers.pop(instance, _NOTHING)
                if answer is not _NOTHING:
                    made = _made(answer) if isinstance(answer, _Late) else answer
                    if instance.guest is None:
                        return
                    guest.resume(made)
            status = guest.poll()
        except GuestTrap as trap:
            self._on_end(instance, InstanceState.FAILED, f"trap: {trap}")
            return
        except ApiError as error:  # a future was cancelled under the guest, or its answer is none
            self._on_end(instance, InstanceState.FAILED, str(error))
            return
        if instance.guest is None:  # it has ended during its turn
            return
        if status is Status.DONE:
            ok, text = guest.outcome
            self._on_end(instance, InstanceState.FINISHED if ok else InstanceState.FAILED, text)
        elif guest.cpu_ns > instance.limits.cpu_seconds * 1e9:
            self._on_end(
                instance,
                InstanceState.FAILED,
                f"limit-exceeded: {instance.limits.cpu_seconds:g} s of CPU time are used up: a loop"
                " that does not end, or work for a client's machine (limits.cpu_seconds)",
            )
        elif status is Status.RUNNING and turn.gives_way:
            turn.gives_way = False
            self._due.add(instance)
            self.give_turn(instance)
        elif status is Status.RUNNING:
            turn.scheduled = True  # its place is in the background: `give_turn` gives it no other
            self._background.push(instance.owner, instance)

    def _announce(self, instance: Instance, handle: int) -> None:
        if instance.turn.awaits(handle):
            self.give_turn(instance)


def _waited_for(instance: Instance) -> str | None:
    """The name of what the guest has waited for; None if for no future."""
    for handle in instance.turn.awaited or ():
        future = instance.futures.find(handle)
        if future is not None and future.ready:
            return future.waits_for
    return None


def _end_of_wait(instance: Instance, awaited: list[int]) -> Any:
    """The answer of the function in which a guest has waited for futures."""
    turn = instance.turn
    make = turn.answers_with
    turn.awaited = turn.answers_with = None
    if make is None:
        return instance.futures.ready_of(awaited)
    try:
        return make(instance, awaited[0])
    except ApiError as error:  # what the future stood for has failed
        return error


def _made(answer: _Late) -> Any:
    """The value of a late answer.

    Raises:
        ApiError: if it cannot be made, whatever the reason: only this instance fails.
    """
    try:
        return answer.make()
    except ApiError:
        raise
    except Exception as error:
        log.exception("an answer cannot be made")
        raise ApiError("internal", f"{type(error).__name__}: {error}") from error


class SlowCalls(Service):
    """Slow host functions: what they return is computed in a task while the guest is suspended."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._under_way: dict[Instance, trio.CancelScope] = {}

    def start(self, instance: Instance, work: Callable[[], Awaitable[Any]]) -> Any:
        """Does the work and answers the guest, which its host function suspends: by what this
        returns.

        An ApiError is the guest's error; any other exception becomes one with the code `internal`.
        """
        scope = self._under_way[instance] = trio.CancelScope()
        self._start_task(self._answer, instance, work, scope)
        return SUSPENDED

    def drop_instance(self, instance: Instance) -> None:
        """Gives up what is computed for an instance that has ended."""
        scope = self._under_way.pop(instance, None)
        if scope is not None:
            scope.cancel()

    async def _answer(
        self, instance: Instance, work: Callable[[], Awaitable[Any]], scope: trio.CancelScope
    ) -> None:
        with scope:
            try:
                answer = await work()
            except ApiError as error:
                answer = error
            except Exception as error:  # noqa: BLE001  a fault of ours is this call's error
                answer = ApiError("internal", f"{type(error).__name__}: {error}")
            # A thread cannot be given up: its answer may come when the instance has ended, or has
            # begun another life.
            if self._under_way.get(instance) is scope:
                del self._under_way[instance]
                self._turns.answer(instance, answer)
