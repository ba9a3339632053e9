"""Evicts KV pages of instances that do not run, and restores them before these run again.

This is the mechanism. Which instances can give pages is found in `candidates.py`; which of them go
first is the policy's choice. One evictor serves one model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from pie_control.errors import ApiError, Shortage
from pie_control.interception.candidates import EvictionCandidates
from pie_control.interception.eviction_states import (
    EvictionEvent,
    EvictionRecord,
    EvictionRecords,
    EvictionState,
    SwappedPages,
)
from pie_control.wasm.linker import SUSPENDED
from pie_py.wire.rpc import LATER

if TYPE_CHECKING:
    from pie_control.instances.instance import Ends, Instance, Turns
    from pie_control.interception.policy_input import PolicyInput
    from pie_py.config.scheduling import InterceptionConfig
    from pie_py.wire.plan import SwapIn, SwapOut

EXTRA_PAGES = 32  # evicted beyond what a call needs, so that not every call has to look for pages


class Evictor:
    """Gives pages to the instances that need them: first to those of users who hold no more than
    an equal part, and then by launch, the oldest first.

    An instance is *paused* if it waits and has no commands queued: then what it waits for is
    outside, and its pages may move to host memory. The turn that would end the pause restores them
    first. The states and their transitions stand in `eviction_states.py`.

    Pages that others hold too stay where they are. If pages cannot come, because host memory is
    full or no instance can give any, those that have to make way are ended (Pie, section 5.2), as
    without an evictor.
    """

    def __init__(
        self, policy_input: PolicyInput, turns: Turns, ends: Ends, config: InterceptionConfig
    ) -> None:
        """Has moved nothing yet."""
        self._model = policy_input.model
        self._turns = turns
        self._ends = ends
        self._config = config
        self._input = policy_input
        self._outward, self._inward = policy_input.outward, policy_input.inward
        self._clock = policy_input.now
        self._low = policy_input.low_water
        self._relieved = -1  # plans sent when pages were last evicted ahead of need
        self._records = EvictionRecords(self)
        self.waiting = self._records.waiting  # instances that wait for pages
        self._candidates = EvictionCandidates(self._records, policy_input)
        policy_input.wanted = self._wanted
        self._counts = dict.fromkeys(
            ("evictions", "pages_evicted", "pages_restored", "page_waits", "held", "host_full"), 0
        )

    # Asked by the API and the executor

    def call(
        self,
        instance: Instance,
        count: int,
        take: Callable[[], Any],
        answer: Callable[[Any], None] | None = None,
    ) -> Any:
        """Carries out a call that takes pages, or has the instance wait until it can be.

        The pages were checked against the instance's limits. If they are short all the same, `take`
        ends others or fails. What it gives is returned; or `SUSPENDED` is, and `answer` gets it, or
        its error, later: by default the guest.
        """
        # Pages that are free belong to the first that waits: to take them here would starve it.
        first = not self.waiting or self._line((instance, count))[0] is instance
        if first and (
            self._evict_for(instance, count) or not self._candidates.will_come(instance, count)
        ):
            return take()
        self._counts["page_waits"] += 1
        record = self._record(instance)
        record.count, record.take = count, take
        record.answer = answer or partial(self._turns.answer, instance)
        self._happen(record, EvictionEvent.ASK)
        return SUSPENDED

    def wants_to_run(self, instance: Instance) -> None:
        """Called before the turn of an instance that this evictor blocks. It may unblock it."""
        record = self._record(instance)
        record.woken = True
        before = record.state
        self._happen(record, EvictionEvent.WAKE)
        if before is not EvictionState.SWAPPED:
            return
        if any(
            other.instance.turn.scheduled and other.instance.number < instance.number
            for other in self._records.those(EvictionState.SWAPPED)
        ):
            return  # an older one has its turn soon, too; its end serves both in order
        self._candidates.stepping = instance
        try:
            self.settle()
        finally:
            self._candidates.stepping = None

    def has_work(self, instance: Instance) -> None:
        """A run of an instance that this evictor blocks may go on without a turn of its guest."""
        record = self._records.find(instance)
        if (
            record is not None
            and record.state is EvictionState.SWAPPED
            and instance.queued_commands
        ):
            self._happen(
                record, EvictionEvent.WAKE
            )  # the end of the next turn brings its pages back

    def after_turn(self) -> None:
        """Called at the end of every turn: serves those that wait, and evicts ahead of need."""
        if self.waiting or self._records.held:
            self.settle()
        elif self._low and self._model.pages.free < self._low:
            self._relieve()

    def forget(self, instance: Instance) -> None:
        """Drops all notes about an instance that ends, before its space is closed."""
        self._records.forget(instance)
        if self.waiting:
            self._turns.give_another()

    # Those that wait

    def settle(self) -> None:
        """Gives pages to the instances that wait for them, in turn, as far as they suffice."""
        for instance in self._line():
            # Serving one may have ended or moved another of the list.
            record = self._records.find(instance)
            if record and record.state is EvictionState.WAITING and not self._serve(record):
                break  # those behind it must not take what comes free for it
        if not self.waiting:
            for record in self._records.those(EvictionState.HELD):
                self._let_run(record, EvictionEvent.RELEASE)

    def _wanted(self) -> int:
        """Pages that waiting instances need."""
        return sum(record.need for record in self.waiting.values())

    def _line(self, *more: tuple[Instance, int]) -> list[Instance]:
        """The instances that wait, the next one first, with one more that needs so many pages.

        Users who ask for no more than their part come first; within a user the oldest launch does.
        """
        waiting = [
            (record.instance, record.need) for record in self._records.those(EvictionState.WAITING)
        ]
        waiting = sorted([*waiting, *more], key=lambda one: one[0].number)
        allotments = self._model.reclaim.page_allotments() if len(waiting) > 1 else None
        within: dict[str, bool] = {}
        for instance, need in waiting:
            if allotments is not None and instance.user not in within:
                within[instance.user] = allotments.within(instance.user, need)
        line = [instance for instance, _ in waiting]
        return sorted(line, key=lambda instance: not within.get(instance.user))

    def _serve(self, record: EvictionRecord) -> bool:
        """Lets one go on if there are pages, or will be none; whether the next may be served."""
        instance, need = record.instance, record.need
        if not self._evict_for(instance, need):
            if self._may_wait(record) and self._candidates.will_come(instance, need):
                self._hold_for(instance, need)
                return False
            if not self._model.reclaim.end_younger(instance, need):
                self._refuse(record)
                return True
        if not self._restore(record):
            return False
        if record.take is not None:
            record.answer(_outcome(record.take))
        self._let_run(record, EvictionEvent.SERVE)
        return True

    def _may_wait(self, record: EvictionRecord) -> bool:
        """True if one may go on waiting: not for long where others hold what is its user's part."""
        owed = self._model.reclaim.page_allotments().owe(record.instance.user, record.need)
        most = self._config.wait_seconds
        if owed:
            # Those others have so long to send what they have queued, so that their pages can move;
            # then instances of theirs are ended.
            most = min(0.15, most)
        return self._clock() < record.since + most

    def _restore(self, record: EvictionRecord) -> bool:
        """Brings pages back that an instance waits for; returns whether all are there."""
        swapped = record.swapped
        if swapped.pages:
            # Beside others they come back as they went: as many per step as hide behind it.
            most = self._inward.left if self._others_run() else swapped.pages
            if most > 0:
                moved = swapped.bring_back(partial(self._send, record.instance), most)
                self._inward.spend(moved)
                self._counts["pages_restored"] += moved
        return not swapped.pages

    def _others_run(self) -> bool:
        """True if plans are sent by themselves: what an instance that is not resident has queued,
        such as a run that is parked, waits for its pages.
        """
        return self._input.costs is not None and any(
            instance.queued_commands and self._records.find(instance) is None
            for instance in self._model.spaces
        )

    def _refuse(self, record: EvictionRecord) -> None:
        """Pages did not come in time: the call fails, or the instance ends for want of its own."""
        instance = record.instance
        text = f"{record.need} pages did not become free within {self._config.wait_seconds:g} s"
        if record.take is not None and not record.swapped.pages:
            record.answer(Shortage(text, "out-of-resources"))
            self._let_run(record, EvictionEvent.SERVE)
        else:
            text = f"{text}, and its own had been swapped out{LATER}"
            self._ends.kill(instance, f"out-of-resources: {text}")

    def _hold_for(self, instance: Instance, count: int) -> None:
        """Holds those that must stop so that others can give enough; lets all others run."""
        chosen = self._candidates.to_hold(instance, count)
        for record in self._records.those(EvictionState.HELD):
            if record.instance not in chosen:
                self._let_run(record, EvictionEvent.RELEASE)
        for other in chosen:
            record = self._record(other)
            if record.state is not EvictionState.HELD:
                self._counts["held"] += 1
                self._happen(record, EvictionEvent.HOLD)

    # Those that give

    def _evict_for(self, instance: Instance, count: int) -> bool:
        """Evicts pages until `count` are free, or none if that cannot be reached."""
        if self._model.pages.free >= count:
            return True
        found = self._candidates.enough(instance, count)
        if found is None:
            return False
        self._counts["host_full"] += found.host_full
        if not found.suffice:
            return False
        self._evict_until(found.all, count)
        # A few more of those that the policy would swap anyway: the next call finds them free.
        self._evict_until(found.willing, count + min(self._low, EXTRA_PAGES))
        return True

    def _evict_until(self, candidates: Iterable[Instance], count: int) -> None:
        """Evicts pages of instances, in turn, until `count` are free."""
        pool = self._model.pages
        for candidate in candidates:
            if pool.free >= count:
                return
            self._evict(candidate, count - pool.free)

    def _evict(self, instance: Instance, most: int) -> int:
        """Evicts up to `most` pages of an instance, and returns how many."""
        record = self._record(instance)
        first = not record.swapped.pages
        self._model.scheduler.park(instance)
        moved = record.swapped.move_out(partial(self._send, instance), most)
        if moved:
            self._counts["evictions"] += first
            self._counts["pages_evicted"] += moved
            self._happen(record, EvictionEvent.EVICT)
        elif record.state is EvictionState.RESIDENT:
            self._model.scheduler.resume(instance)
        return moved

    def _relieve(self) -> None:
        """Pages are scarce: evicts as many as hide behind the step under way, once for each plan:
        to look whose they may be is a walk over all instances.
        """
        plan = self._model.scheduler.plans_sent
        if plan == self._relieved:
            return
        self._relieved = plan
        left = self._outward.left
        paused = self._candidates.paused() if left > 0 else []
        willing, _ = self._candidates.in_order(paused, left, 0)
        for instance in willing:
            if left > 0:
                moved = self._evict(instance, left)
                self._outward.spend(moved)
                left -= moved

    # States

    def _record(self, instance: Instance) -> EvictionRecord:
        """The record of an instance; a new one, not entered yet, if it is resident."""
        found = self._records.find(instance)
        return found or EvictionRecord(instance, SwappedPages(self._model.spaces[instance]))

    def _happen(self, record: EvictionRecord, event: EvictionEvent) -> None:
        """Moves an instance to its next state; from where it begins to wait, its time counts."""
        before = record.state
        self._records.happen(record, event)
        if record.state is EvictionState.RESIDENT:
            self._model.scheduler.resume(record.instance)
        else:
            self._model.scheduler.park(record.instance)
        if record.state is EvictionState.WAITING and before is not EvictionState.WAITING:
            record.since = self._clock()

    def _let_run(self, record: EvictionRecord, event: EvictionEvent) -> None:
        """Lets an instance run again, and gives it the turn that it was refused."""
        self._happen(record, event)
        instance = record.instance
        if (
            record.woken
            and instance is not self._candidates.stepping
            and not instance.turn.blockers
        ):
            self._turns.give_turn(instance)

    # Parts

    def _send(self, instance: Instance, batch: SwapIn | SwapOut) -> None:
        self._model.scheduler.send_first(batch, partial(self._lose, instance))

    def _lose(self, instance: Instance, error: str) -> None:
        """The worker could not move pages: what was in them is lost."""
        text = f"internal: pages could not be moved to or from host memory: {error}"
        self._ends.fail(instance, text)

    def stats(self) -> dict[str, int]:
        """Counters since the start, and how it is now."""
        waiting = list(self._records.those(EvictionState.WAITING))
        absent = len(list(self._records.those(EvictionState.SWAPPED)))
        absent += sum(bool(record.swapped.pages) for record in waiting)
        return {**self._counts, "absent": absent, "waiting": len(waiting)}


def _outcome(take: Callable[[], Any]) -> Any:
    """The value of a call, or its error as a value."""
    try:
        return take()
    except ApiError as error:
        return error
