"""Makes the parts of a server and joins them: all but the engine, the worker and the clients."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import structlog
import trio

from pie_control.api import (
    adapter,
    allocate,
    encode,
    forward,
    images,
    offload,
    prefix,
    run,
    run_text,
    runtime,
    sample,
    session,
    text,
)
from pie_control.api.adapter import AdapterCalls
from pie_control.api.binder import implement
from pie_control.api.encode import EncodeCalls
from pie_control.api.grammar.functions import LONG_CALLS, GrammarCalls
from pie_control.api.grammar.service import GrammarService
from pie_control.api.http.functions import HttpClient
from pie_control.api.http.request import HEADER_BYTES
from pie_control.api.images import MEASURED_CALLS, ImageCalls
from pie_control.api.mcp.functions import McpServers
from pie_control.api.messaging.channel import OWN_BYTES
from pie_control.api.messaging.functions import Bus
from pie_control.api.offload import OffloadCalls
from pie_control.api.run_text import RunTextCalls
from pie_control.api.runtime import GuestClocks, RuntimeCalls, SourceCalls
from pie_control.api.sample import SamplerCalls
from pie_control.api.store.entries import ON_DISK
from pie_control.api.store.service import StoreService
from pie_control.api.tokenize import SLOW_CALLS, TokenizeCalls
from pie_control.confined.pool import ConfinedPool
from pie_control.data_folder import SettingsFolder
from pie_control.device_programs.reading import KnownPrograms
from pie_control.durable.calls import DurableCalls
from pie_control.durable.exports import ExportCalls
from pie_control.durable.outside import OutsideCalls
from pie_control.durable.runs import run_calls
from pie_control.durable.service import DurableInstances
from pie_control.instances.goals import Goals
from pie_control.instances.guest_memory import GuestMemory, default_bytes
from pie_control.instances.launcher import Launcher
from pie_control.instances.ledger import Ledger
from pie_control.instances.registry import Registry
from pie_control.instances.result_store import BYTES_OF_USER, ResultStore
from pie_control.instances.turns import Executor, SlowCalls
from pie_control.interception.policy_input import Durations
from pie_control.models.adapter_loading import AdapterLoader
from pie_control.models.image_sizes import ImageSizes
from pie_control.models.model import ModelDependencies, ModelService
from pie_control.models.on_demand import OnDemandModels
from pie_control.models.served import ServedModels
from pie_control.models.tokenizer_files import UnusableTokenizer
from pie_control.models.weights import Weights
from pie_control.programs.guests import Guests
from pie_control.programs.store import ProgramStore
from pie_control.scheduler.dispatcher import Dispatcher
from pie_control.scheduler.link import Answers, Order, Worker
from pie_control.scheduler.pacing import RESULT_TURN_SECONDS, TURN_SECONDS
from pie_control.shares import Shares
from pie_control.timers import Timers
from pie_control.wasm.linker import HostFunction
from pie_py.config.kept_files import (
    FILES_FOLDER,
    RESPONSES_FILE,
    bytes_on_disk,
    folder_of,
    on_disk,
    told_bytes,
)
from pie_py.config.server import ServerConfig
from pie_py.wire.plan import AdapterDone, Hello, ImageMeasured, Located, WeightsDone

log = structlog.get_logger("pie.server")

MESSAGE_BYTES = 1 << 30  # waiting between instances and clients; a user has a share of them
FUTURES = 1 << 17  # open at once, of which a user has a share; some 600 bytes each
# Results of instances that were launched detached are kept for so long, also by a server that
# starts again.
RESULT_SECONDS = 86400.0


@dataclass(frozen=True)
class Scope:
    """Duties of a server: one by itself has them all."""

    id_suffix: str = ""  # of its instances' ids
    settings: bool = True  # it stores the adapters and MCP servers that clients set
    topics: bool = True  # all instances of a user are here
    durable: bool = True  # journals of instances are in its data folder, or in a database
    store: bool = True  # its data folder has all that programs of a user have stored


class Wiring:
    """The parts of one server, each made with what it needs. Nothing runs before `run`."""

    def __init__(
        self,
        config: ServerConfig,
        guests: Guests,
        programs: ProgramStore,
        worker: Worker,
        confined: ConfinedPool,
        clock: Callable[[], float],
        clocks: GuestClocks,
        scope: Scope = Scope(),
    ) -> None:
        """Makes the parts. All of them measure by `clock`, trio's, in seconds; `clocks` are what
        users and guests read.
        """
        self.clock = clock
        self.durations = Durations()
        self.shares = Shares.of(config)
        self.registry = Registry(
            config.max_instances,
            MESSAGE_BYTES,
            FUTURES,
            config.guest_memory or default_bytes(),
            config.limits,
            self.shares,
            clock,
            clocks.date_ns,
            self.durations.add,
            scope.id_suffix,
        )
        self.timers = Timers(clock)
        self.executor = Executor(
            self.registry.end,
            TURN_SECONDS,
            RESULT_TURN_SECONDS,
            clocks.monotonic_ns,
            self.shares.quotas.weight,
            GuestMemory(self.registry.check_memory),
        )
        self.registry.do_later = self.executor.do_later
        self.launcher = Launcher(self.registry, self.executor, self.timers, programs, guests, clock)
        self.models = ServedModels(
            ModelDependencies(
                config,
                self.shares,
                self.executor,
                self.registry,
                self.durations,
                clock,
                self.timers,
                clocks.monotonic_ns,
            )
        )
        folder = config.data_folder if scope.settings else None
        self._worker = worker
        self.image_sizes = ImageSizes(self._send)
        self.adapters = AdapterLoader(
            self.models,
            self._send,
            SettingsFolder(
                *(folder and folder / "adapters", "model", "name", "folder"), user="", version=""
            ),
        )
        self.dispatcher = Dispatcher(
            self.models.resident, self.executor, worker, self.timers, clock
        )
        self.executor.after_turn.append(self.dispatcher.after_turn)
        self.weights = Weights(
            self.models,
            self._send,
            self.executor.give_another,
            self.registry,
            lambda: self.durable.worker_lost(),
        )
        self.worker_answers: Answers = {
            AdapterDone: self.adapters.on_done,
            ImageMeasured: self.image_sizes.on_measured,
            WeightsDone: self.weights.on_done,
        }
        self.on_demand = OnDemandModels(
            *(config, self.models, self.adapters, self.worker_answers, self._lose),
            *(self.executor, self.timers, clock),
        )
        self.messaging = Bus(config.messaging, alone=scope.topics)
        self.store = StoreService(
            config.data_folder / "store.sqlite3", config.store, of_all=scope.store
        )
        self.http = HttpClient(config.http)
        self.mcp = McpServers(config.mcp, config.http, folder and folder / "mcp")
        self.grammars = GrammarService(config.grammar, confined)
        self.answers = SlowCalls(self.executor)
        self.confined = confined
        self.results = ResultStore(config.data_folder / "results", RESULT_SECONDS, clocks.date_ns)
        self.ledger = Ledger(
            config.data_folder / "usage.sqlite3",
            config.budgets,
            clocks.date_ns,
            self.registry.live,
            self.models.page_seconds_of,
            self.registry.end,
        )
        self.goals = Goals(config.goals, Durations(), clock)
        self._declare_kept(config)
        self.programs = programs
        self.clocks = clocks
        self._config = config.durable
        self._alone = scope.topics
        self.durable = DurableInstances(
            config.durable,
            config.data_folder / "journals" if scope.durable else None,
            config.cache_folder,
            self.registry,
            self.launcher,
            self.results,
            self.shares,
            self.timers,
            clocks.date_ns,
            self.http.is_busy,
            self.messaging,
            self.store.forget,
        )
        self._join_instances()

    def _declare_kept(self, config: ServerConfig) -> None:
        """Declares what is kept of users when no instance of theirs is alive."""
        shares, folder, servers = self.shares, config.data_folder, config.mcp.client_servers
        read, files = trio.to_thread.run_sync, folder / FILES_FOLDER
        queues = config.messaging.user_bytes + config.messaging.queues * OWN_BYTES
        shares.add(
            "bytes of results", BYTES_OF_USER, self.results.bytes_of, lambda _: BYTES_OF_USER
        )
        shares.add("bytes of work queues", queues, self.messaging.bytes_of, lambda _: queues)
        shares.add_measured(
            "bytes of files and batches",
            config.gateway.file_bytes,
            lambda user: read(bytes_on_disk, folder_of(files, user)),
        )
        shares.add_measured(
            "bytes of responses", None, lambda user: read(told_bytes, folder / RESPONSES_FILE, user)
        )
        shares.add_measured(
            "bytes of MCP servers",
            servers * on_disk(2 * HEADER_BYTES),
            lambda user: read(self.mcp.registry.bytes_of, user),
        )
        store = config.store
        shares.add_measured(
            "bytes of the store", store.bytes + store.keys * ON_DISK, self.store.bytes_of
        )

    def _join_instances(self) -> None:
        """Each part with a table by instance learns of their start and their end."""
        registry = self.registry
        registry.on_start += [self.messaging.join, self.goals.on_start]
        registry.on_drop += [
            self.executor.discard,
            self.answers.drop_instance,
            self.http.drop_instance,
            self.messaging.leave,
            self.models.drop_instance,
        ]
        registry.on_end += [self.results.on_end, self.ledger.on_end, self.goals.on_end]
        registry.aim = self.goals.aim
        registry.check_budget = self.ledger.check

    def host_functions(self) -> tuple[HostFunction, ...]:
        """All functions of the contract. Call it once: it has the grammars' handles forgotten."""
        grammar = GrammarCalls(self.models, self.grammars, self.executor, self.shares)
        self.registry.on_drop.append(grammar.drop_instance)
        calls = RuntimeCalls(
            self.models,
            self.on_demand.load,
            self.answers,
            self.launcher,
            self.executor,
            self.timers,
            self.clocks,
        )
        texts = RunTextCalls(self.models, self.executor)
        tokens = TokenizeCalls(self.models, self.answers, self.confined)
        samplers = SamplerCalls(KnownPrograms(self.confined), self.answers, self.programs)
        return (
            *implement("runtime", calls, runtime, suspends=("wait", "model-info", "create-queue")),
            *implement("source", SourceCalls(self.launcher), suspends=("read",)),
            *implement("session", session),
            *implement("http", self.http),
            *implement("mcp", self.mcp),
            *implement("messaging", self.messaging),
            *implement("store", self.store),
            *implement("allocate", allocate, suspends=("alloc-kvpage",), arrays=("used",)),
            *implement("forward", forward, arrays=("masks",)),
            *implement("adapter", AdapterCalls(self.models), adapter),
            *implement("introspect", adapter),
            *implement(
                "offload", OffloadCalls(self.models, self.durations), offload, suspends=("swap-in",)
            ),
            *implement("prefix-cache", prefix, suspends=("match-prefix",), arrays=("tokens",)),
            *implement("input-text", text),
            *implement("output-text", text),
            *implement(
                "encode",
                *(EncodeCalls(self.models, self.answers, self.confined), encode),
                suspends=("encode",),
            ),
            *implement(
                "input-image",
                *(ImageCalls(self.models, self.image_sizes, self.answers), images),
                suspends=MEASURED_CALLS,
            ),
            *implement(
                "sample",
                *(samplers, texts, sample, run, run_text),
                suspends=("create-sampler", "next-tokens"),
                arrays=("mask",),
            ),
            *implement("grammar", grammar, suspends=LONG_CALLS),
            *implement("tokenize", tokens, suspends=SLOW_CALLS),
        )

    def durable_functions(self, made: tuple[HostFunction, ...]) -> tuple[HostFunction, ...]:
        """The functions that guests of durable instances call."""
        retry, date_ns = self._config.retry, self.clocks.date_ns
        outside = OutsideCalls(self.http, self.mcp, self.executor, date_ns, retry)
        special = {
            **run_calls(self.models),
            **ExportCalls(self.executor, self.timers).taps(),
            **self.durable.checkpoint_calls(),
            **(self.durable.message_calls(self.executor).taps() if self._alone else {}),
        }
        return DurableCalls(outside, special, has_messages=self._alone).tap(made)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Runs the parts until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.registry.sweep)
            for forever in (self.timers, self.executor, self.models):
                nursery.start_soon(forever.run)
            for part in (
                self.http,
                self.mcp,
                self.store,
                self.answers,
                self.adapters,
                self.on_demand,
                self.launcher,
                self.results,
                self.ledger,
                self.durable,
            ):
                await nursery.start(part.run)
            task_status.started()

    def _send(self, message: Order) -> None:
        """Sends to the worker that serves a model."""
        order = self.on_demand.order_of(message.model) or self._worker.order
        order(message)

    def model_located(self, found: Located) -> None:
        """A worker that loads a model has its files: its tokenizer is read beside that. What is
        wrong with it is said when the worker is ready.
        """
        with suppress(UnusableTokenizer):
            self.models.read(found.model, found.folder)

    def worker_ready(self, hello: Hello) -> None:
        """A worker serves its models from now on."""
        self.models.start(hello.models, self.models.resident, self._worker.order)
        self.adapters.on_ready(self.models.resident)
        self.launcher.models_ready.set()
        log.info(
            "worker ready", pid=hello.pid, device=hello.device, models=list(self.models.resident)
        )

    def worker_lost(self, reason: str) -> None:
        """Its pools are gone: instances that held something of them fail; new ones wait."""
        self.launcher.models_lost()
        self.durable.worker_lost()
        self._lose(self.models.resident, reason)

    def _lose(self, models: dict[str, ModelService], reason: str) -> None:
        """The worker of these models is gone."""
        names = [*models]
        self.models.lose(models, reason)
        for part in (self.adapters, self.image_sizes, self.weights):
            part.on_lost(names)
