"""Configuration of a server: one typed tree, from defaults, a TOML file, the environment, options."""

from __future__ import annotations

import re
from contextlib import suppress
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import platformdirs
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, SettingsConfigDict

from pie_py.config.endpoint import DEFAULT_ENDPOINT
from pie_py.config.host_rule import HostRule
from pie_py.config.observer import ObserverConfig

ADAPTER_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}"
MCP_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}"
EMBEDDED_MODEL = "pie-tiny"


def _read_network(value: Any) -> Any:
    """The network that a text names; other values are left to pydantic.

    Raises:
        ValueError: if it names none; the text says what would do.
    """
    if not isinstance(value, str):
        return value
    with suppress(ValueError):
        return ip_network(value)
    try:
        network = ip_network(value, strict=False)
    except ValueError:
        raise ValueError(f"{value!r} is no network; give one as 10.0.0.0/8 or fd00::/8") from None
    raise ValueError(
        f"{value!r} has host bits set, beyond its first {network.prefixlen} bits; give {network}"
    )


Network: TypeAlias = Annotated[IPv4Network | IPv6Network, BeforeValidator(_read_network)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class FlashInferConfig(_Section):
    """Which kernels of FlashInfer a GPU runs; PyTorch's in the place of those that are switched off."""

    prefill: Literal["auto", "fa2", "fa3"] = "auto"  # generation of the attention kernels
    decode: Literal["auto", "tensor-cores", "cuda-cores"] = "auto"
    append: bool = True  # storing keys and values
    norm: bool = True
    rope: bool = True
    activation: bool = True
    workspace: PositiveInt = 256 << 20  # bytes, for parts of attention that are put together


class ModelConfig(_Section):
    """One model to serve."""

    source: str = EMBEDDED_MODEL  # a folder, a hub id, or the embedded model's name
    name: str | None = None  # how inferlets call it; the folder's or id's last part unless told
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    page_size: int = Field(default=16, ge=8, le=32, multiple_of=8)  # tokens a KV page
    kv_memory: PositiveInt | None = None  # bytes of KV pool; a share of free memory unless told
    kv_pages: PositiveInt | None = None  # pages of KV pool; overrides kv_memory
    embeds: PositiveInt | None = None  # embeds in the pool
    adapters: dict[str, Path] = {}  # PEFT folders of LoRAs, by the names that inferlets use
    host_memory: NonNegativeInt | None = None  # bytes for swapped pages; a share unless told
    host_pages: NonNegativeInt | None = None  # pages for swapped ones; overrides host_memory
    max_batch_tokens: PositiveInt = 2048  # most inputs in one forward batch
    max_batch_commands: PositiveInt = 512  # most commands in one batch
    device: str = "auto"  # "cpu", "cuda", "cuda:1"; a GPU if there is one unless told
    # "dummy" needs no weights: they are random, of config.json's shapes, to measure with.
    load_format: Literal["auto", "dummy"] = "auto"
    kv_dtype: Literal["auto", "fp8"] = "auto"  # of keys and values; the model's unless told
    attention: Literal["auto", "flashinfer", "torch"] = "auto"  # FlashInfer where it can serve
    flashinfer: FlashInferConfig = FlashInferConfig()
    fused_sampling: bool = True  # a GPU chooses tokens with kernels of Triton's; else of PyTorch's
    cuda_graphs: bool = True  # decoding steps are recorded at start and replayed
    graph_batch: PositiveInt = 256  # most sequences of a recorded step
    # Share of a GPU's memory that a server uses: weights, pools, and what computing takes.
    gpu_memory_utilization: float = Field(default=0.9, gt=0, le=1)

    @field_validator("adapters")
    @classmethod
    def _adapters_have_names(cls, adapters: dict[str, Path]) -> dict[str, Path]:
        for name in adapters:
            if not re.fullmatch(ADAPTER_NAME, name):
                raise ValueError(f"{name!r}: a name has letters, digits, `_`, `-`, `.`, at most 64")
        return adapters


class Limits(_Section):
    """What one instance may use. A breach ends it with a named error."""

    memory: PositiveInt = 256 << 20  # bytes of linear memory
    table_elements: PositiveInt = 100_000
    cpu_seconds: PositiveFloat = 60.0  # time on the control thread, all slices together
    wall_seconds: PositiveFloat = 3600.0  # life, from launch
    kv_pages: PositiveInt | None = None  # pages held; the pool unless told
    host_pages: PositiveInt | None = None  # swapped pages held; the pool unless told
    embeds: PositiveInt | None = None  # embeds held; the pool unless told
    samplers: PositiveInt = 256  # open at once, of one model
    grammars: PositiveInt = 64  # compiled and held
    matchers: PositiveInt = 256  # open at once
    image_pixels: PositiveInt = 1 << 25  # of one image: small files may hold very many
    image_bytes: PositiveInt = 64 << 20  # of image files that are queued
    queues: PositiveInt = 256
    queued_commands: PositiveInt = 4096  # commands sent to queues and not done
    futures: PositiveInt = 4096  # open futures
    children: PositiveInt = 256  # child instances alive
    child_depth: NonNegativeInt = 8  # generations of children below an instance of a client
    message_bytes: PositiveInt = (
        2 << 20
    )  # one message between instance and client; Wasmtime lifts 2.6 MB
    mailbox_bytes: PositiveInt = 16 << 20  # messages kept for a reader that does not read
    mailbox_messages: PositiveInt = 4096
    log_lines: PositiveInt = 1000  # newest lines kept
    detached_seconds: PositiveFloat = 60.0  # life after the client that waits for it has vanished


class SchedulerConfig(_Section):
    """What batches hold."""

    # Inputs of prompts that one step of others may have beside it. Longer prompts run in parts then, so
    # that the others do not wait for the whole of them. None runs them whole.
    prompt_tokens: PositiveInt | None = 512


class InterceptionConfig(_Section):
    """What the server does with the pages of instances that wait outside while others need pages."""

    # "min-waste", "swap", "preserve" (nothing), or `package.module:function`; see docs/interception.md.
    policy: str = "min-waste"
    low_water: float = Field(default=0.1, ge=0, le=1)  # free share of the pool that is kept up
    swap_share: PositiveFloat = 0.25  # of a step's time, for pages that are moved ahead of need
    wait_seconds: PositiveFloat = 60.0  # the most that an instance waits for pages

    @field_validator("policy")
    @classmethod
    def _can_be_carried_out(cls, policy: str) -> str:
        if policy not in ("min-waste", "swap", "preserve") and ":" not in policy:
            raise ValueError(
                f"{policy!r}: give min-waste, swap, preserve or package.module:function; the server can't"
                " discard pages, because only their program can compute them anew"
            )
        return policy


class PrefixCacheConfig(_Section):
    """Pages of texts' beginnings, kept for whoever computes the same."""

    enabled: bool = True
    # Whether users find what others have computed. How long a text takes then tells whether anybody has
    # had one that begins alike.
    shared: bool = False


class MessagingConfig(_Section):
    """What waits between the instances of a user; the bytes of a subscriber are `mailbox_bytes`."""

    subscriptions: PositiveInt = 256  # of one instance
    subscribers: PositiveInt = 2000  # of one topic, in all instances of a user
    box_messages: PositiveInt = 4096  # not yet read by one subscriber
    queues: PositiveInt = 4096  # work queues of one user that hold messages
    queue_messages: PositiveInt = 65536  # in one work queue
    queue_bytes: PositiveInt = 16 << 20  # in one work queue
    user_bytes: PositiveInt = 64 << 20  # in all work queues of one user
    idle_bytes: NonNegativeInt = 64 << 20  # in those of all users who have no instance


class StoreConfig(_Section):
    """What one user may keep in the store."""

    keys: PositiveInt = 100_000
    bytes: PositiveInt = 256 << 20  # keys and values together
    value_bytes: int = Field(default=1 << 20, ge=1, le=2 << 20)  # one value; Wasmtime lifts 2.6 MB
    waiting_bytes: PositiveInt = 16 << 20  # an instance's writes under way and values not yet taken


class HttpConfig(_Section):
    """HTTP requests of inferlets: off unless a host is allowed."""

    # `HOST`, `*.HOST`, an address or `*`, and then `:PORT` or `:*`; without a port 80 and 443.
    allow: tuple[str, ...] = ()
    # Addresses that may be reached though they are not public (private, loopback, ...).
    allow_networks: tuple[Network, ...] = ()
    # Addresses that may not be reached though they are public.
    deny_networks: tuple[Network, ...] = ()
    timeout_seconds: PositiveFloat = 60.0  # from the request to the body's end, unless told
    max_timeout_seconds: PositiveFloat = 600.0  # the most that a program may ask for
    connect_seconds: PositiveFloat = 10.0
    redirects: NonNegativeInt = 5  # followed in a row
    header_bytes: PositiveInt = 32 << 10  # URL and headers of a request; headers of an answer
    request_bytes: int = Field(default=2 << 20, ge=0, le=2 << 20)  # body; Wasmtime lifts 2.6 MB
    response_bytes: PositiveInt = 64 << 20  # body, unpacked
    concurrent: PositiveInt = 32  # requests of one instance under way
    user_concurrent: PositiveInt = 64  # of all instances of one user
    connections: PositiveInt = 512  # of the server; more requests wait
    bodies: PositiveInt = 256  # of one instance, not closed
    rate: PositiveFloat = 20.0  # requests of one instance a second
    burst: PositiveInt = 100  # requests that an instance may make at once after a rest

    @field_validator("allow")
    @classmethod
    def _rules_can_be_read(cls, allow: tuple[str, ...]) -> tuple[str, ...]:
        for text in allow:
            HostRule.parse(text)
        return allow


class McpServerConfig(_Section):
    """One MCP server: a `command` that talks over its standard streams, or a `url`.

    `${NAME}` in values of `env` and `headers` stands for the server's environment variable, so that
    no secret need be in a file.
    """

    command: str | None = None
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}  # besides HOME, PATH and the like
    folder: Path | None = None  # where the command runs; the server's working folder unless told
    url: str | None = None  # of streamable HTTP
    headers: dict[str, str] = {}
    users: tuple[str, ...] | None = None  # who may use it; everybody unless told
    start_seconds: PositiveFloat = 30.0
    call_seconds: PositiveFloat = 60.0
    message_bytes: PositiveInt = 4 << 20  # one message from the server

    @model_validator(mode="after")
    def _is_one_kind(self) -> McpServerConfig:
        if (self.command is None) == (self.url is None):
            raise ValueError("an MCP server has either a `command` or a `url`")
        if self.url is not None and not self.url.startswith(("http://", "https://")):
            raise ValueError(f"url: {self.url!r} does not start with http:// or https://")
        misplaced = ("headers",) if self.url is None else ("args", "env", "folder")
        for name in misplaced:
            if getattr(self, name):
                other = "url" if self.url is None else "command"
                raise ValueError(f"`{name}` goes with a `{other}`, which is not there")
        return self


class McpConfig(_Section):
    """Tools of MCP servers that inferlets may call."""

    servers: dict[str, McpServerConfig] = {}  # by the name that programs use
    # Servers that clients register for their own user. What [http] says of hosts and addresses holds
    # for their URLs.
    client_servers: NonNegativeInt = 8  # of one user
    client_commands: bool = False  # whether they may be commands, which run on this machine
    concurrent: PositiveInt = 16  # calls of one instance under way
    user_concurrent: PositiveInt = 64  # of all instances of one user

    @field_validator("servers")
    @classmethod
    def _names_are_names(cls, servers: dict[str, McpServerConfig]) -> dict[str, McpServerConfig]:
        for name in servers:
            if not re.fullmatch(MCP_NAME, name):
                raise ValueError(f"{name!r}: a name has letters, digits, `_`, `-`, `.`, at most 64")
        return servers


class GrammarConfig(_Section):
    """Compilation of grammars, for all instances together."""

    text_characters: PositiveInt = 256 << 10  # one grammar
    compile_seconds: PositiveFloat = 10.0
    threads: PositiveInt = 2  # that compile; a user has one of them at a time
    user_compilations: PositiveInt = 64  # of all instances of one user, under way
    kept: PositiveInt = 128  # compiled grammars kept for whoever wants the same
    kept_characters: PositiveInt = 4 << 20  # their texts together


class ServerConfig(BaseSettings):
    """Everything a server needs to start."""

    model_config = SettingsConfigDict(
        env_prefix="PIE_PY_", env_nested_delimiter="__", extra="forbid", frozen=True
    )

    endpoint: str = DEFAULT_ENDPOINT  # where clients connect
    data_folder: Path = Path(platformdirs.user_data_dir("pie_py"))  # programs, keys
    cache_folder: Path = Path(platformdirs.user_cache_dir("pie_py"))  # compiled code
    models: tuple[ModelConfig, ...] = (ModelConfig(),)
    admins: tuple[str, ...] = ()  # users whose keys may load adapters; who needs no key may, too
    limits: Limits = Limits()
    scheduler: SchedulerConfig = SchedulerConfig()
    interception: InterceptionConfig = InterceptionConfig()
    prefix_cache: PrefixCacheConfig = PrefixCacheConfig()
    grammar: GrammarConfig = GrammarConfig()
    http: HttpConfig = HttpConfig()
    mcp: McpConfig = McpConfig()
    messaging: MessagingConfig = MessagingConfig()
    store: StoreConfig = StoreConfig()
    max_instances: PositiveInt = 1000  # alive at once
    # Python runtimes, of some 4 MB each, started before there is a program for them.
    spare_instances: NonNegativeInt = 32
    max_program_bytes: PositiveInt = 256 << 20
    # Devices, a process each, that compute each model together: GPUs, or parts of the CPU.
    tensor_parallel_size: PositiveInt = 1
    # Of PyTorch in the worker. Unless told, each forward gets what was found worth it at start.
    worker_threads: PositiveInt | None = None
    worker_module: str = "pie_inference"  # run as the worker's process
    observer: ObserverConfig | None = None  # of benchmarks
