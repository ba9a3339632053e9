"""A node's part in launches that outlive it: its lease, and runs that hold only with it.

The control loop has the lease renewed, so a process that is stopped lets it run out. Statements run
in two threads, one for renewals alone, and the loop waits for none of them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import TypeVar

import structlog
import trio

from pie_control.errors import ApiError, Refusal
from pie_control.instances.instance import Fence, Instance, State
from pie_control.instances.launcher import Launcher
from pie_control.instances.registry import Registry
from pie_control.programs.store import Program, ProgramStore
from pie_control.store.launches import LEASE_SECONDS, DatabaseAway, Launch, Launches

log = structlog.get_logger("pie.cluster")

RENEW_SECONDS = 1.0
# The node ends what runs under its lease so long before the database does.
MARGIN_SECONDS = 3.0
LOOK_SECONDS = 0.25  # between two looks whether the lease is over
AGAIN_SECONDS = 0.5  # before what the database has not taken is tried again
GIVE_BACK_SECONDS = 2.0  # that a node which ends has for that

Value = TypeVar("Value")


class RecordedLaunches:
    """Holds the lease, records launches, and ends their instances when the lease is lost."""

    def __init__(
        self,
        address: str,
        life: str,
        registry: Registry,
        launcher: Launcher,
        programs: ProgramStore,
        fetch: Callable[[str, str], Awaitable[None]],
        clock: Callable[[], float],
    ) -> None:
        """Nothing is sent before `run`.

        Args:
            address: of the database.
            life: of this node.
            registry: of its instances.
            launcher: starts them.
            programs: that are here.
            fetch: has one here, by its hash and for a user.
            clock: trio's; it only grows.
        """
        self._life = life
        self._registry = registry
        self._launcher = launcher
        self._programs = programs
        self._fetch = fetch
        self._clock = clock
        self._leases, self._renewing = Launches(address), trio.CapacityLimiter(1)
        self._table, self._writing = Launches(address), trio.CapacityLimiter(1)
        self._lease: int | None = None
        self._until = 0.0  # by `clock`: when this node gives its lease up
        self._held: set[Instance] = set()
        self._ends: dict[Instance, Callable[[], None]] = {}  # not recorded yet, so not told
        self._leaving = False
        self._nursery: trio.Nursery | None = None
        registry.hold_end = self._hold_end

    async def run(self) -> None:
        """Holds the lease until cancelled."""
        try:
            async with trio.open_nursery() as self._nursery:
                self._nursery.start_soon(self._watch)
                while True:
                    began = self._clock()
                    try:
                        await self._renew(began)
                    except DatabaseAway as error:
                        log.warning("the lease is not renewed", reason=str(error))
                    await trio.sleep(max(0.0, began + RENEW_SECONDS - self._clock()))
        finally:
            if self._lease is not None and self._leaving:
                with trio.move_on_after(GIVE_BACK_SECONDS) as scope:
                    scope.shield = True
                    try:
                        await self._in_thread(
                            self._writing, partial(self._table.give_back, self._lease)
                        )
                    except DatabaseAway:
                        log.warning("the lease is not given back, and runs out")

    def leave(self) -> None:
        """The node is about to end its instances, which other nodes may launch again."""
        self._leaving = True

    # The lease

    async def _renew(self, sent: float) -> None:
        lease = self._lease
        if lease is None:
            hold = partial(self._leases.hold, self._life)
            self._lease = await self._in_thread(self._renewing, hold)
            self._until = sent + LEASE_SECONDS - MARGIN_SECONDS
            log.info("lease", number=self._lease)
        elif not await self._in_thread(self._renewing, partial(self._leases.renew, lease)):
            self._lose(lease, "it was taken over")
        elif self._lease == lease:
            self._until = sent + LEASE_SECONDS - MARGIN_SECONDS

    async def _watch(self) -> None:
        while True:
            await trio.sleep(LOOK_SECONDS)
            if self._lease is not None and self._clock() >= self._until:
                self._lose(self._lease, "the database did not renew it in time")

    def _lose(self, lease: int, reason: str) -> None:
        if self._lease != lease:
            return
        self._lease = None
        text = f"node-lost: node {self._life} has lost its lease: {reason}"
        log.error("lease lost", reason=reason, instances=len(self._held))
        ends, self._ends = self._ends, {}
        for instance, settle in ends.items():
            _lost(instance, text)
            settle()
        for instance in list(self._held):
            self._registry.fail(instance, text)

    # Launches

    async def launch(
        self, program: Program, args: list[str], user: str, *, restart: int, keep: bool
    ) -> Instance:
        """Starts an instance whose launch is in the database when this returns.

        Args:
            program: what it runs.
            args: its arguments.
            user: whose it is.
            restart: how many times it may be launched again when its node is lost.
            keep: whether its result is kept in the database.

        Raises:
            ApiError: as `Launcher.start`; `busy` if nothing was recorded, for want of a lease.
            Refusal: `node-lost` if it may have been recorded, and runs later.
        """
        await self._launcher.until_can_start(program)
        while True:
            lease = self._valid_lease()
            name = self._registry.new_name(program)
            fence = Fence(name, 1, lease)
            launch = Launch(name, user, program.hash, args, restart + 1, 1, lease, self._life, keep)
            if await self._begin(fence, partial(self._table.record, launch)):
                return self._start(program, args, user, fence)

    async def launch_again(self, name: str, run: int) -> Instance:
        """Starts the next run of a launch.

        Args:
            name: of the launch.
            run: that was the last one.

        Raises:
            ApiError: `conflict` if it waits no more; else as `launch`.
            Refusal: `not-found` if its program is gone; else as `launch`.
        """
        launch = await self._ask(partial(self._table.find, name))
        waits = launch is not None and (launch.run, launch.lease, launch.state) == (run, None, None)
        if launch is None or not waits or self._registry.knows(self._registry.id_of(name)):
            raise ApiError("conflict", f"{name} does not wait for a run after {run} here")
        if not self._programs.has(launch.program):
            await self._fetch(launch.program, launch.user)
        program = self._programs.find(launch.program, launch.user)
        await self._launcher.until_can_start(program)
        fence = Fence(name, run + 1, self._valid_lease())
        claim = partial(self._table.claim, name, run, fence.lease, self._life)
        if not await self._begin(fence, claim):
            raise ApiError("conflict", f"another node has launched {name}")
        return self._start(program, launch.args, launch.user, fence)

    def _valid_lease(self) -> int:
        if self._lease is None:
            raise ApiError(
                "busy", "this node has no lease in the database, which may be away: try again"
            )
        return self._lease

    async def _begin(self, fence: Fence, write: Callable[[], bool]) -> bool:
        """Has a run's beginning written; what may have been written by an error is undone."""
        try:
            return await self._ask(write)
        except BaseException:
            self._undo(fence)
            raise

    def _start(self, program: Program, args: list[str], user: str, fence: Fence) -> Instance:
        if self._lease != fence.lease:
            raise Refusal(
                "node-lost", f"the lease was lost while {fence.launch} was launched; it may go on"
            )
        try:
            instance = self._launcher.start(program, args, user, detached=True, fence=fence)
        except BaseException:
            self._undo(fence)
            raise
        self._held.add(instance)
        return instance

    def _undo(self, fence: Fence) -> None:
        assert self._nursery is not None, "the lease is held"
        self._nursery.start_soon(self._keep_undoing, fence)

    async def _keep_undoing(self, fence: Fence) -> None:
        while self._lease == fence.lease:
            try:
                await self._in_thread(self._writing, partial(self._table.undo, fence))
                return
            except DatabaseAway:
                await trio.sleep(AGAIN_SECONDS)

    # Ends

    def _hold_end(self, instance: Instance, settle: Callable[[], None]) -> None:
        """An end is told once no other run can come."""
        assert instance.fence is not None
        assert self._nursery is not None, "the lease is held"
        self._held.discard(instance)
        if self._leaving or instance.fence.lease != self._lease:
            settle()
            return
        self._ends[instance] = settle
        self._nursery.start_soon(self._record_end, instance, instance.fence)

    async def _record_end(self, instance: Instance, fence: Fence) -> None:
        assert instance.ended is not None
        finish = partial(self._table.finish, fence, instance.ended.state.value, instance.ended.text)
        while instance in self._ends:
            try:
                is_last = await self._in_thread(self._writing, finish)
            except DatabaseAway as error:
                log.warning("an end is not recorded", instance=instance.id, reason=str(error))
                await trio.sleep(AGAIN_SECONDS)
                continue
            settle = self._ends.pop(instance, None)
            if settle is not None:  # else the lease was lost meanwhile, which it was told
                if not is_last:
                    _lost(instance, f"node-lost: node {self._life} has lost its lease")
                settle()

    # Threads

    async def _ask(self, statement: Callable[[], Value]) -> Value:
        """What a statement gives.

        Raises:
            ApiError: `busy` if the database is away.
        """
        try:
            return await self._in_thread(self._writing, statement)
        except DatabaseAway as error:
            raise ApiError("busy", f"the database is away: {error}") from None

    @staticmethod
    async def _in_thread(limiter: trio.CapacityLimiter, statement: Callable[[], Value]) -> Value:
        return await trio.to_thread.run_sync(statement, limiter=limiter, abandon_on_cancel=True)


def _lost(instance: Instance, text: str) -> None:
    assert instance.ended is not None
    instance.ended = replace(instance.ended, state=State.FAILED, text=text)
