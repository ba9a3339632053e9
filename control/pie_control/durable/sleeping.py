"""Durable instances that wait for long: they are put away, and come back by replay.

One that sleeps has no guest, no pages and no open file: what is left is its entry among the
instances, its messages, its subscriptions, and a timer.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from functools import partial

import structlog
import trio

from pie_control.durable.shelf import Shelf
from pie_control.durable.waits import durable_of
from pie_control.errors import ApiError, Shortage
from pie_control.instances.durable import Durable
from pie_control.instances.instance import Instance, InstanceState
from pie_control.instances.registry import Registry
from pie_control.journal.file import DamagedJournal
from pie_control.journal.past import NEXT_MESSAGE, Past
from pie_control.shares import Shares
from pie_control.tasks import disk_may_refuse
from pie_control.timers import Timer, Timers

log = structlog.get_logger("pie.durable")

MOST = 200_000  # that sleep, of which a user has a share: some 8 KB each
RETRY_SECONDS = 0.5  # between tries to have room for one that wakes
# What opens futures for which an instance may wait asleep.
WAITS = frozenset(
    {"session.receive", "session.receive-blob", "runtime.sleep", "runtime.launch", NEXT_MESSAGE}
)


class Sleepers:
    """The durable instances that sleep, and those that are about to."""

    def __init__(
        self,
        idle_seconds: float,
        registry: Registry,
        shares: Shares,
        timers: Timers,
        date_ns: Callable[[], int],
        is_busy: Callable[[Instance], bool],
        shelf: Shelf,
        begin: Callable[[Instance], Awaitable[None]],
        start_task: Callable[..., None],
    ) -> None:
        """Takes whether an instance has a request under way, and what begins a life of it."""
        self._idle_seconds = idle_seconds
        self._registry = registry
        self._share = shares.add("sleeping instances", MOST, lambda u: registry.users.asleep[u])
        self._timers = timers
        self._date_ns = date_ns
        self._is_busy = is_busy
        self._shelf = shelf
        self._begin = begin
        self._start_task = start_task
        self._alarms: dict[Instance, Timer] = {}
        registry.on_end.append(self._no_alarm)

    async def run(self, instances: Callable[[], list[Instance]]) -> None:
        """Puts instances away that have waited for long enough, until cancelled."""
        while True:
            await trio.sleep(self._idle_seconds / 4)
            now = trio.current_time()
            for instance in instances():
                since = self._waits_since(instance, now)
                if now - since >= self._idle_seconds and not self._share.is_full(instance.user):
                    with disk_may_refuse("let an instance sleep"):
                        await self._put_away(instance)

    def _waits_since(self, instance: Instance, now: float) -> float:
        """When an instance has begun to wait, as far as was looked; `inf` while it does not."""
        durable, guest = durable_of(instance), instance.guest
        if guest is None or self._due(instance) is None:
            durable.waits = None
            return math.inf
        done = guest, guest.cpu_ns, instance.generated_tokens
        if durable.waits is None or durable.waits[0] != done:
            durable.waits = done, now
        return durable.waits[1]

    def _due(self, instance: Instance) -> float | None:
        """Until when an instance waits, by trio's clock; `inf` if only for others; None if it does
        not, or for what this server does, or not for long.
        """
        durable, turn, futures = durable_of(instance), instance.turn, instance.futures
        if turn.awaited is None or turn.scheduled or durable.goes_over or self._is_busy(instance):
            return None
        due = math.inf
        for handle, future in futures.open_ones():
            opened = durable.opened.get(handle)
            if opened is None or opened.maker not in WAITS:
                return None
            if future.ready and turn.awaits(handle):
                return None
            if future.outside is not None and future.outside.due is not None:
                due = min(due, future.outside.due)
        return due if due > trio.current_time() + self._idle_seconds else None

    async def _put_away(self, instance: Instance) -> None:
        durable = durable_of(instance)
        journal = durable.journal
        await journal.until_safe()
        await self._shelf.writer.settled()  # that it has taken messages is known elsewhere, too
        if journal.problem is not None:
            return
        try:
            past = await self._shelf.past(instance.id)
        except DamagedJournal as error:
            self._registry.fail(instance, f"internal: its journal is damaged: {error}")
            return
        due = self._due(instance) if instance.durable is durable and instance.guest else None
        if due is None or journal.size != past.size:  # something has come meanwhile
            return
        seconds = due - trio.current_time()
        date = None if seconds == math.inf else self._date_ns() + int(seconds * 1e9)
        past.asleep = (date,)
        journal.rests = True
        journal.append("asleep", date, past.facts(), past.head["secret"])
        self._registry.put_away(instance)
        self.sleeps(instance, past)

    def sleeps(self, instance: Instance, past: Past) -> None:
        """An instance sleeps from now on, as its past says."""
        assert past.asleep is not None
        before = durable_of(instance)
        lasting = Past(past.head, past.size, received=past.received, topics=past.topics)
        lasting.acked, lasting.children = before.items, past.children
        wake = partial(self._wake, instance)
        instance.durable = Durable(before.journal, lasting, before.depart, before.most, wake=wake)
        instance.durable.asleep = before.journal.rests = True
        (date,) = past.asleep
        if date is not None:
            seconds = max(0.0, (date - self._date_ns()) / 1e9)
            self._alarms[instance] = self._timers.call_later(seconds, wake)

    def _no_alarm(self, instance: Instance) -> None:
        if (alarm := self._alarms.pop(instance, None)) is not None:
            alarm.cancel()

    def _wake(self, instance: Instance) -> None:
        """Has an instance come back, if it sleeps."""
        durable = durable_of(instance)
        if durable.asleep and instance.state is InstanceState.RUNNING:
            durable.asleep = durable.journal.rests = False
            self._no_alarm(instance)
            self._start_task(self._come_back, instance)

    async def _come_back(self, instance: Instance) -> None:
        while instance.state is InstanceState.RUNNING:
            try:
                self._registry.check_room(instance.user, instance.parent)
            except Shortage:
                await trio.sleep(RETRY_SECONDS)
                continue
            except ApiError:  # the server stops
                return
            self._registry.rouse(instance)
            await self._begin(instance)
            return
