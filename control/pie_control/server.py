"""The control process: puts the parts together and runs them until it is stopped."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import structlog
import trio

from pie_control.api.runtime import GuestClocks
from pie_control.confined.pool import ConfinedPool
from pie_control.data_folder import open_data_folder
from pie_control.extension import load_extension
from pie_control.programs.components import Components
from pie_control.programs.guests import Guests, Instantiation, WarmInstances
from pie_control.programs.optimizing import is_optimized
from pie_control.programs.store import PROGRAM_BYTES, ProgramStore
from pie_control.rpc.requests import Requests
from pie_control.rpc.server import RpcServer
from pie_control.scheduler.link import WorkerLink
from pie_control.scheduler.worker_process import WorkerProcess
from pie_control.tasks import disk_may_refuse
from pie_control.wasm.engine import TABLE_ELEMENTS, Engine, EngineConfig, GuestLimits, room_for
from pie_control.wasm.linker import Linker
from pie_control.wiring import Wiring
from pie_py.config.child import report
from pie_py.config.endpoint import parse_endpoint
from pie_py.config.memory import bound_collections, trim
from pie_py.config.plugins import observing
from pie_py.config.server import ServerConfig
from pie_py.config.turns import Turns

log = structlog.get_logger("pie.server")


class _LoopTurns(Turns, trio.abc.Instrument):
    """The turns of the event loop, which begin and end where it waits."""

    before_io_wait = Turns.end  # type: ignore[assignment]  # its result is of no use here
    after_io_wait = Turns.begin


INSTANTIATED = 8  # of the spare instances: as many as are instantiated while one has its turn


async def serve(
    config: ServerConfig,
    stop: trio.Event,
    worker: WorkerProcess | None = None,
    *,
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Runs a server until cancelled, or until `stop` is set and its instances have had time to end;
    reports the endpoint once it can answer. `worker` is the first one, if it runs already.

    Raises:
        DataFolderUnusable: if a newer pie_py has written the data folder.
        StoreUnusable: if the users' keys and values can't be read.
        IndexUnusable: if the index of uploaded programs can't be.
        WorkerFailed: if the worker cannot start (bad checkpoint, no memory).
        EndpointInUse: if something else listens there.
        ExtensionMissing: if what extends it is not installed.
    """
    with observing(config.observer, "control", WorkerLink):
        server = _Server(config, worker)
        await server.run(stop, task_status)


class _Server:
    """The engine, the worker and the clients of one server, around its parts."""

    def __init__(self, config: ServerConfig, worker: WorkerProcess | None) -> None:
        # All parts measure by trio's clock. Its method is taken here, once: `trio.current_time`
        # would look for the running loop at every call of the hot path.
        clock = trio.lowlevel.current_clock().current_time
        config = within_address_space(config)
        open_data_folder(config.data_folder)
        extension = load_extension(config)
        linker = Linker(make_engine(config))
        durable = Linker(linker.engine)  # with functions of their own, the others' cost nothing
        limits = GuestLimits(config.limits.memory, TABLE_ELEMENTS)
        ahead = min(INSTANTIATED, config.spare_instances)
        instantiation = Instantiation(linker, limits, ahead)
        warm = WarmInstances(instantiation, config.spare_instances - ahead, self._is_busy)
        self._confined = ConfinedPool(config.confined)
        self._components = Components(
            linker.engine, config.cache_folder, warm.offer, self._confined
        )
        programs = ProgramStore(config.data_folder / "programs", PROGRAM_BYTES, time.time_ns)
        self._programs, self._program_seconds = programs, config.program_seconds
        self._stop_seconds, self._idle_seconds = config.stop_seconds, config.idle_seconds
        self._link = WorkerLink(config, worker)
        self._is_resident = any(not model.on_demand for model in config.models)
        self._wiring = Wiring(
            config,
            Guests(instantiation, self._components, warm, Instantiation(durable, limits, 0)),
            programs,
            self._link,
            self._confined,
            clock,
            GuestClocks(time.time_ns, time.monotonic_ns),
            extension.scope,
        )
        self._role = extension.role(self._wiring, programs)
        functions = self._wiring.host_functions()
        linker.define(functions)
        durable.define(self._wiring.durable_functions(functions))
        durable.offers_as(linker)
        self._turns = _LoopTurns("control")
        own = self._doing, self._long_turns, self._role.fetch
        requests = partial(Requests, config, self._wiring, *own)
        self._rpc = RpcServer(
            config,
            self._wiring.shares,
            requests,
            clock,
            facts=extension.facts,
            users=self._role.users,
        )
        self._link.on_located = self._wiring.model_located
        self._wiring.dispatcher.has_requests = self._rpc.has_requests
        self._link.on_hello = self._wiring.worker_ready
        self._link.on_results = self._wiring.dispatcher.on_results
        self._link.answers = self._wiring.worker_answers
        self._link.on_lost = self._wiring.worker_lost
        self._link.on_doing = lambda text: report({"doing": text})

    def _doing(self) -> list[str]:
        """Work that is done once, or at the start, and that a launch may wait for."""
        link = [] if self._link.ready or not self._is_resident else [self._link.doing]
        return [*self._components.doing, *link, *self._wiring.on_demand.doing]

    def _long_turns(self) -> dict[str, tuple[int, float]]:
        """How many turns of each loop were over their budget, and the longest of those."""
        own = self._turns.long, self._turns.worst
        return {"control": own, "worker": self._link.long_turns}

    def _is_busy(self) -> bool:
        return self._wiring.registry.live_count > 0

    async def run(self, stop: trio.Event, task_status: trio.TaskStatus[str]) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_trim)
            if self._program_seconds is not None:
                nursery.start_soon(self._expire_programs, self._program_seconds)
            await nursery.start(self._wiring.run)
            # Clients come first, so that a port in use is known before a checkpoint is loaded;
            # launches wait for the model.
            endpoint = await nursery.start(self._rpc.run)
            nursery.start_soon(self._components.load_ahead)
            if self._is_resident:
                await nursery.start(self._link.run)
            else:
                self._wiring.launcher.models_ready.set()
            if self._role.is_one_of_many:  # launches shall not wait here while others are ready
                await self._components.load_ahead(compiled=True)
            bound_collections()
            nursery.start_soon(self._role.run, endpoint, stop)
            if self._idle_seconds is not None:
                nursery.start_soon(self._end_when_idle, self._idle_seconds, endpoint, stop)
            trio.lowlevel.add_instrument(self._turns)
            task_status.started(endpoint)
            try:
                await stop.wait()
                await self._let_end()
            finally:
                self._role.end_instances()
                self._confined.close()
                nursery.cancel_scope.cancel()

    async def _expire_programs(self, seconds: float) -> None:
        """Removes programs that are used no more, now and then."""
        while True:
            running = {instance.program.hash for instance in self._wiring.registry.instances()}
            running |= self._wiring.adapters.versions
            with disk_may_refuse("remove old programs"):
                for _ in self._programs.expire(seconds, running):
                    await trio.lowlevel.checkpoint()  # a program takes a millisecond
            await trio.sleep(min(seconds / 4, 3600.0))

    async def _end_when_idle(self, seconds: float, endpoint: str, stop: trio.Event) -> None:
        """Stops the server after so long without instances and clients. A client that is about to
        connect then is served to its end; the next one finds no socket.
        """
        await self._idle(seconds)
        if (path := parse_endpoint(endpoint).path) is not None:
            Path(path).unlink(missing_ok=True)  # noqa: ASYNC240  one call of the system, at the end
        await self._idle(1.0)  # from a client's look at a socket to its session
        log.info("idle: stopping", seconds=seconds)
        stop.set()

    async def _idle(self, seconds: float) -> None:
        """Returns once there have been no instances and clients for so long."""
        end = trio.current_time() + seconds
        while (left := end - trio.current_time()) > 0:
            await trio.sleep(min(left, 0.5))
            if self._is_busy() or len(self._rpc.sessions):
                end = trio.current_time() + seconds

    async def _let_end(self) -> None:
        """Takes no more launches, and lets the instances run for a while."""
        registry, seconds = self._wiring.registry, self._stop_seconds
        ended, before = registry.close(), registry.live_count
        log.info("stopping: no more launches", instances=before, seconds=seconds)
        with trio.move_on_after(seconds):
            await ended.wait()
        log.info("stopping", ended=before - registry.live_count, killed=registry.live_count)


async def _trim() -> None:
    """Gives memory of this process back now and then, see `pie_control.__main__`."""
    while True:
        await trio.sleep(20.0)
        await trio.to_thread.run_sync(trim)


def within_address_space(config: ServerConfig) -> ServerConfig:
    """The configuration, with as many instances as the system grants address space for: some CPUs
    and limits have less than a thousand guests reserve.

    Raises:
        MemoryError: it grants none.
    """
    wanted = config.max_instances + config.spare_instances
    room = room_for(wanted)
    if room == wanted:
        return config
    spare = min(config.spare_instances, room // 4)
    log.warning(
        "the system grants little address space, 8 GiB for a guest: fewer instances at once",
        max_instances=room - spare,
        configured=config.max_instances,
    )
    return config.model_copy(update={"max_instances": room - spare, "spare_instances": spare})


def make_engine(config: ServerConfig) -> Engine:
    """The engine that compiles and runs the guests of a server."""
    engine = EngineConfig(
        max_instances=config.max_instances + config.spare_instances,
        memory_bytes=config.limits.memory,
        cache_folder=config.cache_folder / "compiled",
        source_lines=config.source_lines,
    )
    if config.compiler == "baseline" and not is_optimized("python", config.cache_folder, engine):
        engine = replace(engine, baseline=True)
    return Engine(engine)
