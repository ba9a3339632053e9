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
from pie_control.tracing import tracing
from pie_control.wasm import Engine, EngineConfig, Linker
from pie_control.worker.link import WorkerLink
from pie_control.worker.pacing import Dispatcher
from pie_py.config.server import ServerConfig
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
    with tracing(config.trace):
        server = _Server(config)
        await server.run(task_status)


class Server:
    """The parts of one server and their wiring. Made within trio's run, whose clock all parts share."""

    def __init__(self, config: ServerConfig, link: WorkerLink | None = None) -> None:
        """Makes the parts; `run` starts them. `link` replaces the worker process in tests."""
        self._config = config
        clock = trio.lowlevel.current_clock().current_time
        self.link = link or WorkerLink(config)
        self.durations = Durations()
        self.registry = Registry(
            config.max_instances, config.limits, clock, time.time_ns, self.durations.add
        )
        self.timers = Timers(clock)
        self.executor = Executor(self.registry.end, self._after_turn)
        self.models = ServedModels(config, self.executor, self.registry, self.durations, clock)
        self.messaging = Bus(config.messaging)
        self.store = StoreService(config.data_folder / "store.sqlite3", config.store)
        self.http = HttpClient(config.http)
        self.mcp = McpServers(config.mcp, config.http)
        self.grammars = GrammarService(config.grammar)
        self.answers = ThreadAnswers(self.executor)
        self.programs = ProgramStore(
            config.data_folder / "programs", config.max_program_bytes, time.time_ns
        )
        self.launcher = self._make_launcher(clock)
        self.adapters = AdapterLoader(self.models, self.link.order)
        self.dispatcher = Dispatcher(self.models, self.executor, self.timers, self.link, clock)
        self._rpc = RpcServer(config, self._rpc_parts())
        self._join_instances()
        self.link.on_hello = self._worker_ready
        self.link.on_result = self.dispatcher.on_result
        self.link.on_adapter = self.adapters.on_done
        self.link.on_lost = self._worker_lost

    def _make_launcher(self, clock: Callable[[], float]) -> tuple[Launcher, Linker]:
        config = self._config
        engine = Engine(
            EngineConfig(
                max_instances=config.max_instances + config.spare_instances,
                memory_bytes=config.limits.memory,
                table_elements=config.limits.table_elements,
                cache_folder=config.cache_folder / "compiled",
            )
        )
        linker = Linker(engine)
        limits = GuestLimits(
            memory_bytes=config.limits.memory, table_elements=config.limits.table_elements
        )
        is_busy = lambda: self.registry.live_count > 0  # noqa: E731
        spares = Spares(linker, limits, config.spare_instances, is_busy)
        components = Components(engine, config.cache_folder, spares.offer)
        guests = Guests(linker, limits, components, spares)
        return Launcher(self.registry, self.executor, self.timers, self.programs, guests, clock), linker

    def _join_instances(self) -> None:
        """Each part that keeps something of instances learns of their start and end."""
        registry = self.registry
        registry.on_start.append(self.messaging.join)
        registry.on_end += [
            self.executor.discard,
            self.http.drop_instance,
            self.messaging.leave,
            self.models.drop_instance,
        ]
