"""A node's part in launches that outlive it: runs that hold only with its lease."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import TypeVar

import structlog
import trio

from pie_cluster.database.statements import Connection, DatabaseAway
from pie_cluster.database.tables import Launch, Launches
from pie_cluster.node.lease import NodeLease
from pie_control.errors import ApiError, Refusal
from pie_control.instances.instance import Fence, Instance, InstanceState
from pie_control.instances.launcher import Launcher
from pie_control.instances.registry import Registry
from pie_control.programs.store import Program, ProgramStore

log = structlog.get_logger("pie.cluster")

AGAIN_SECONDS = 0.5  # before what the database has not taken is tried again

Value = TypeVar("Value")


class RecordedLaunches:
    """Records launches, and ends their instances when the lease is lost."""

    def __init__(
        self,
        connection: Connection,
        lease: NodeLease,
        life: str,
        registry: Registry,
        launcher: Launcher,
        programs: ProgramStore,
        fetch: Callable[[str, str], Awaitable[None]],
    ) -> None:
        """Nothing is sent before `run`. `fetch` has a program here, by its hash and for a user."""
        self._life = life
        self._registry = registry
        self._launcher = launcher
        self._programs = programs
        self._fetch = fetch
        self._lease = lease
        self._table, self._in_thread = Launches(connection), connection.ask
        self._held: set[Instance] = set()
        self._ends: dict[Instance, Callable[[], None]] = {}  # not recorded yet, so not told
        self._nursery: trio.Nursery | None = None
        registry.hold_end = self._hold_end
        lease.on_lost.append(self._lose)

    async def run(self) -> None:
        """Records ends until cancelled."""
        async with trio.open_nursery() as self._nursery:
            await trio.sleep_forever()

    def _lose(self, reason: str) -> None:
        text = f"node-lost: node {self._life} has lost its lease: {reason}"
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
        """Starts an instance whose launch is in the database when this returns. It may be launched
        so many times again when its node is lost; `keep` has its result kept in the database.

        Raises `ApiError` as `Launcher.start`; `busy` if nothing was recorded, for want of a lease.
        Raises `Refusal`: `node-lost` if it may have been recorded, and runs later.
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
        """Starts the run of a launch after that one. Raises `ApiError`: `conflict` if it waits no
        more; else as `launch`. Raises `Refusal`: `not-found` if its program is gone; else as
        `launch`.
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
        lease = self._lease.number
        if lease is None:
            raise ApiError(
                "busy", "this node has no lease in the database, which may be away: try again"
            )
        return lease

    async def _begin(self, fence: Fence, write: Callable[[], bool]) -> bool:
        """Has a run's beginning written; what may have been written by an error is undone. Raises
        `Refusal`: `node-lost` if the database is away: until it is undone, what may have been
        written is a run, so the launch must not be sent to another node.
        """
        try:
            return await self._in_thread(write)
        except DatabaseAway as error:
            self._undo(fence)
            raise Refusal(
                "node-lost", f"{fence.launch} may have been recorded, the database is away: {error}"
            ) from None
        except BaseException:
            self._undo(fence)
            raise

    def _start(self, program: Program, args: list[str], user: str, fence: Fence) -> Instance:
        if self._lease.number != fence.lease:
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
        while self._lease.number == fence.lease:
            try:
                await self._in_thread(partial(self._table.undo, fence))
                return
            except DatabaseAway:
                await trio.sleep(AGAIN_SECONDS)

    # Ends

    def _hold_end(self, instance: Instance, settle: Callable[[], None]) -> None:
        """An end is told once no other run can come."""
        assert instance.fence is not None
        assert self._nursery is not None, "the lease is held"
        self._held.discard(instance)
        if instance.fence.lease != self._lease.number:
            settle()
            return
        self._ends[instance] = settle
        self._nursery.start_soon(self._record_end, instance, instance.fence)

    async def _record_end(self, instance: Instance, fence: Fence) -> None:
        assert instance.ended is not None
        finish = partial(self._table.finish, fence, instance.ended.state.value, instance.ended.text)
        while instance in self._ends:
            try:
                is_last = await self._in_thread(finish)
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
        """What a statement gives. Raises `ApiError`: `busy` if the database is away."""
        try:
            return await self._in_thread(statement)
        except DatabaseAway as error:
            raise ApiError("busy", f"the database is away: {error}") from None


def _lost(instance: Instance, text: str) -> None:
    assert instance.ended is not None
    instance.ended = replace(instance.ended, state=InstanceState.FAILED, text=text)
