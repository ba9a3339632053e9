"""The control process: puts the parts together and runs them until it is told to stop."""

from __future__ import annotations

import gc
from pathlib import Path

import structlog
import trio

from pie_control.api import FUNCTIONS
from pie_control.grammar import GrammarService
from pie_control.host import Host
from pie_control.http import HttpClient
from pie_control.instances.registry import Lifecycle
from pie_control.instances.timers import Timers
from pie_control.instances.turns import Executor
from pie_control.mcp import McpServers
from pie_control.messaging.bus import Bus
from pie_control.models.adapter_loading import AdapterLoader
from pie_control.models.model import ModelService
from pie_control.models.tokenizer import TextCodec
from pie_control.programs.store import ProgramStore
from pie_control.rpc.server import RpcServer
from pie_control.store.service import StoreService
from pie_control.wasm import Engine, EngineConfig, Linker
from pie_control.worker.link import WorkerLink
from pie_control.worker.pacing import Dispatcher
from pie_py.config.server import ServerConfig
from pie_py.wire.observer import observing
from pie_py.wire.plan import Hello

log = structlog.get_logger("pie.server")


async def serve(
    config: ServerConfig, *, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED
) -> None:
    """Runs a server until cancelled; reports the endpoint once it can answer.

    Raises:
        StoreUnusable: if the users' keys and values can't be read.
        WorkerFailed: if the worker cannot start (bad checkpoint, no memory).
        EndpointInUse: if something else listens there.
    """
    with observing(config.observer, "control", WorkerLink):
        server = _Server(config)
        await server.run(task_status)


class _Server:
    """The parts of one server and their wiring."""

    def __init__(self, config: ServerConfig) -> None:
        self._config = config
        engine = Engine(
            EngineConfig(
                max_instances=config.max_instances + config.spare_instances,
                memory_bytes=config.limits.memory,
                table_elements=config.limits.table_elements,
                cache_folder=config.cache_folder / "compiled",
            )
        )
        programs = ProgramStore(config.data_folder / "programs", config.max_program_bytes)
        lifecycle = Lifecycle(config, engine, Linker(engine, FUNCTIONS), programs)
        self._link = WorkerLink(config)
        self._host = Host(
            executor=Executor(on_end=lifecycle.end, after_turn=self._after_turn),
            timers=Timers(),
            lifecycle=lifecycle,
            grammars=GrammarService(config.grammar),
            http=HttpClient(config.http),
            mcp=McpServers(config.mcp, config.http),
            messaging=Bus(config.messaging),
        )
        self._host.store = StoreService(config.data_folder / "store.sqlite3", config.store)
        self._host.adapters = AdapterLoader(self._host, self._link.order)
        lifecycle.host = self._host
        self._dispatcher = Dispatcher(self._host, self._link)
        self._link.on_hello = self._worker_ready
        self._link.on_result = self._dispatcher.on_result
        self._link.on_adapter = self._host.adapters.on_done
        self._link.on_lost = self._worker_lost
        self._rpc = RpcServer(config, self._host, programs)

    async def run(self, task_status: trio.TaskStatus[str]) -> None:
        host = self._host
        async with trio.open_nursery() as nursery:
            nursery.start_soon(host.timers.run)
            nursery.start_soon(host.executor.run)
            await nursery.start(host.http.run)
            await nursery.start(host.mcp.run)
            await nursery.start(host.store.run)
            await nursery.start(host.lifecycle.run)
            # The door opens first, so that a port in use is known before a checkpoint is loaded;
            # launches wait for the model.
            endpoint = await nursery.start(self._rpc.run)
            await nursery.start(self._link.run)
            # What is loaded by now stays: the collector need not look at it at every turn.
            gc.collect()
            gc.freeze()
            # What guests' calls allocate is freed by its counts; cycles are few, so look for them seldom.
            gc.set_threshold(10_000, 20, 20)
            task_status.started(endpoint)
            try:
                await trio.sleep_forever()
            finally:
                host.lifecycle.end_all("the server stops")

    def _after_turn(self, result: bool) -> None:
        # Between two steps the worker comes first: it is idle. What new instances say goes out before the
        # worker takes the cores for their prompts.
        if not result:
            self._rpc.flush()
            if self._rpc.has_requests() and self._dispatcher.may_gather():
                self._host.executor.give_another()
                return
        for service in self._host.services.values():
            if service.evictor is not None:
                service.evictor.after_turn()
        self._dispatcher.pump()
        for service in self._host.services.values():
            if service.evictor is not None and service.evictor.waits:
                service.evictor.settle()  # commands have been sent, so pages may have become free

    def _worker_ready(self, hello: Hello) -> None:
        host = self._host
        for description in hello.models:
            host.services[description.name] = ModelService(
                description,
                self._config.scheduler,
                self._config.interception,
                host.durations,
                prefix_cache=self._config.prefix_cache,
            )
            if description.name not in host.codecs:
                host.codecs[description.name] = TextCodec(Path(description.folder))
        host.adapters.on_ready()
        host.lifecycle.models_ready.set()
        log.info("worker ready", pid=hello.pid, device=hello.device, models=list(host.services))

    def _worker_lost(self, reason: str) -> None:
        """Its pools are gone: whoever held something of them ends; new ones wait for the next worker."""
        host = self._host
        host.lifecycle.models_ready = trio.Event()
        services = dict(host.services)
        for name, service in services.items():
            service.scheduler.fail_all(reason)
            host.lifecycle.end_users_of(name, reason)
        host.services.clear()
        host.adapters.on_lost()
