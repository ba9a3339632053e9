"""Everything a server needs to start."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import platformdirs
from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    field_validator,
)

from pie_py.config import kept_files
from pie_py.config.endpoint import DEFAULT_ENDPOINT, parse_endpoint
from pie_py.config.gateway import GatewayConfig, TelemetryConfig
from pie_py.config.http import HttpConfig
from pie_py.config.limits import Budget, Limits, ProgramGoal, Quota
from pie_py.config.logs import LogConfig
from pie_py.config.mcp import McpConfig
from pie_py.config.model import ModelConfig
from pie_py.config.plugins import ExtensionConfig, ObserverConfig
from pie_py.config.scheduling import InterceptionConfig, PrefixCacheConfig, SchedulerConfig
from pie_py.config.section import Section
from pie_py.config.services import (
    ConfinedConfig,
    DurableConfig,
    GrammarConfig,
    MessagingConfig,
    OnDemandConfig,
    StoreConfig,
)


class ServerConfig(Section):
    """Everything a server needs to start."""

    endpoint: str = DEFAULT_ENDPOINT  # where clients connect; not set by the environment
    data_folder: Path = Path(platformdirs.user_data_dir("pie_py"))  # programs, keys
    cache_folder: Path = kept_files.cache_folder()  # compiled code
    models: tuple[ModelConfig, ...] = (ModelConfig(),)
    on_demand: OnDemandConfig = OnDemandConfig()
    # Users whose keys may load adapters, and see all; users without need of a key may, too.
    admins: tuple[str, ...] = ()
    log: LogConfig = LogConfig()
    limits: Limits = Limits()
    quota: Quota = Quota()  # of each user with a key
    # of single users instead, by their names
    quotas: dict[str, Quota] = Field(default_factory=dict)
    budgets: dict[str, Budget] = Field(default_factory=dict)  # of programs, by their names
    goals: dict[str, ProgramGoal] = Field(default_factory=dict)  # of programs, by their names
    scheduler: SchedulerConfig = SchedulerConfig()
    interception: InterceptionConfig = InterceptionConfig()
    prefix_cache: PrefixCacheConfig = PrefixCacheConfig()
    confined: ConfinedConfig = ConfinedConfig()
    grammar: GrammarConfig = GrammarConfig()
    http: HttpConfig = HttpConfig()  # of inferlets' requests
    gateway: GatewayConfig = GatewayConfig()
    telemetry: TelemetryConfig = TelemetryConfig()
    mcp: McpConfig = McpConfig()
    messaging: MessagingConfig = MessagingConfig()
    store: StoreConfig = StoreConfig()
    durable: DurableConfig = DurableConfig()
    max_instances: PositiveInt = 1000  # alive at once
    # Python runtimes, of some 4 MB each, started before there is a program for them.
    spare_instances: NonNegativeInt = 32
    # Traps of Rust programs tell source lines; only where all programs are trusted, since debug
    # information is read without limits.
    source_lines: bool = False
    # `baseline` compiles the Python runtime in a quarter of the time, to slower code, where no
    # optimized one is kept yet; that is made beside. For a server that runs a program of Python.
    compiler: Literal["optimizing", "baseline"] = "optimizing"
    stop_seconds: NonNegativeFloat = 5.0  # for instances to end, after SIGTERM or Ctrl-C
    # Without an instance and without a client for so long, it ends; None: never.
    idle_seconds: PositiveFloat | None = None
    # That all guests together may have taken, of which a user has a share; None: half of the
    # machine's.
    guest_memory: PositiveInt | None = None
    program_bytes: PositiveInt = 8 << 30  # of the programs on disk, of which a user has a share
    # Programs that were neither uploaded nor launched for so long are removed; None: never.
    program_seconds: PositiveFloat | None = None
    # Devices, a process each, that compute each model together: GPUs, or parts of the CPU.
    tensor_parallel_size: PositiveInt = 1
    # Of PyTorch in the worker. By default each forward gets the number that was best at first.
    worker_threads: PositiveInt | None = None
    worker_module: str = "pie_inference"  # run as the worker's process
    observer: ObserverConfig | None = None  # of benchmarks
    extension: ExtensionConfig | None = None  # set by what extends it, as `pie-py cluster` does

    @field_validator("data_folder", "cache_folder", mode="before")
    @classmethod
    def _is_a_folder(cls, folder: Any) -> Any:
        if folder == "":  # as of a variable that is empty: it would be the working directory
            raise ValueError("a folder is wanted, and the text is empty")
        return Path(folder).expanduser() if isinstance(folder, str) else folder

    @field_validator("endpoint")
    @classmethod
    def _is_an_endpoint(cls, endpoint: str) -> str:
        return parse_endpoint(endpoint).text
