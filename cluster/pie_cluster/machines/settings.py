"""Settings of a cluster, from a file, and those of its machines, on disk."""

from __future__ import annotations

import hashlib
import json
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import platformdirs
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveInt,
    TypeAdapter,
    ValidationError,
    model_validator,
    with_config,
)

from pie_cluster.directory.asking import Directory
from pie_cluster.directory.policies import load_policy
from pie_cluster.wire.messages import WAITS
from pie_cluster.wire.requests import MEMBER
from pie_py.config.gateway import GatewayConfig
from pie_py.config.keys import ClientKey
from pie_py.config.plugins import UnknownPolicy
from pie_py.config.server import ServerConfig
from pie_py.config.whole_files import write_whole

TOKEN_FILE = "token.json"
STATE_FILE = "machine.json"
NAMES_FILE = "nodes.json"


class ClusterProblem(Exception):
    """A cluster cannot be started, joined or reached; the text says why and how to mend it."""


class WrongSettings(ClusterProblem):
    """What the operator has set, in `cluster.toml` or by an option, can never work."""


class RankConfig(BaseModel):
    """On how many machines the ranks of each node are: `[ranks]` of `cluster.toml`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    machines: PositiveInt = 1
    over_tcp: bool = False  # what ranks compute may pass between machines, in the clear

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.machines > 1 and not self.over_tcp:
            raise ValueError(
                f"machines = {self.machines} sends what ranks compute over the network, in the"
                " clear and slower than within a machine: write over_tcp = true if you want that"
            )
        return self


class ClusterConfig(BaseModel):
    """`cluster.toml`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    endpoint: str = "tcp://127.0.0.1:7743"  # of the gateway
    host: str = "127.0.0.1"  # the head's address, by which other machines reach it
    nodes: NonNegativeInt = 1  # on the head's machine, at first
    policy: str = "cached"
    folder: Path = Path(platformdirs.user_data_dir("pie_py")) / "cluster"
    ray_address: str = ""  # of a Ray that is there already, or `auto`; empty: one of its own
    ray_port: int = Field(default=0, ge=0, le=65535)  # 0: a free one
    directory_port: int = Field(default=0, ge=0, le=65535)
    gateway: GatewayConfig | None = None  # HTTP is served beside it
    ranks: RankConfig = RankConfig()
    server: dict[str, Any] = {}  # each node's, as in a server's configuration

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.ray_address and (self.ray_port or self.ranks.machines > 1):
            raise ValueError(
                "ray_port and nodes on several machines need a Ray of the cluster's own: leave them"
                " out, or --address and ray_address"
            )
        return self


@with_config(ConfigDict(extra="forbid"))
@dataclass(frozen=True)
class Token:
    """What a machine needs to join: it gives every right on the cluster, so it is kept secret."""

    gateway: str
    directory: str
    ray: str  # HOST:PORT
    ray_token: str
    versions: dict[str, str]
    server: dict[str, Any]  # the nodes' configuration
    namespace: str = ""  # of the nodes in a Ray that was there before; empty in the cluster's own
    member_public: str = ""  # the members' pair; empty where all is on loopback
    member_secret: str = ""
    gateway_key: str = ""  # the gateway's public key; likewise
    http: GatewayConfig | None = None  # as the head serves it, on each machine that does
    rank_machines: int = 1  # on which the ranks of each node are

    @property
    def local_ranks(self) -> int:
        """Of each node, on each of its machines."""
        return int(self.server.get("tensor_parallel_size", 1)) // self.rank_machines

    @property
    def is_encrypted(self) -> bool:
        """Whether members encrypt: other machines reach them."""
        return bool(self.member_public)

    @property
    def models(self) -> str:
        """A hash of the models that nodes serve, with their settings: all serve the same."""
        text = json.dumps(self.server.get("models"), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    @staticmethod
    def read(path: Path) -> Token:
        """Reads a token file. Raises `ClusterProblem` if it is none."""
        try:
            return TypeAdapter(Token).validate_json(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ClusterProblem(
                f"the token {path} cannot be read: {error.strerror}; `pie-py cluster up` has"
                f" written it as {TOKEN_FILE} in its folder"
            ) from None
        except (ValidationError, ValueError):
            raise ClusterProblem(
                f"{path} is no token of a cluster, or of another version of pie_py"
            ) from None

    def write(self, path: Path) -> None:
        """Writes a token file, which its owner alone may read."""
        write_private(path, TypeAdapter(Token).dump_json(self, indent=1).decode())


@with_config(ConfigDict(extra="forbid"))
@dataclass(frozen=True)
class Machine:
    """One machine of a cluster, as its folder tells it."""

    role: str  # "head" or "nodes"
    host: str
    nodes: int = 0  # that it brings at first
    room: int = 0  # for so many nodes, those of lost machines too
    policy: str = "cached"
    shares_data: bool = True  # the head's data folder is this machine's
    gpus: int = 0
    gateway: GatewayConfig | None = None  # if HTTP is served here
    settings: str = ""  # of the head: what it was started with

    @staticmethod
    def read(folder: Path) -> Machine:
        """The machine of a folder. Raises `OSError` or `ValidationError` if there is none."""
        text = (folder / STATE_FILE).read_text(encoding="utf-8")
        return TypeAdapter(Machine).validate_json(text)

    def write(self, folder: Path) -> None:
        """Has a folder tell it."""
        write_private(folder / STATE_FILE, TypeAdapter(Machine).dump_json(self, indent=1).decode())


def node_names(folder: Path) -> list[str] | None:
    """The nodes that a machine has brought into the cluster; None before they are named."""
    try:
        names: list[str] = json.loads((folder / NAMES_FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return names


def write_names(folder: Path, names: list[str]) -> None:
    """Has a machine have other nodes from now on."""
    write_private(folder / NAMES_FILE, json.dumps(names))


def read_folder(folder: Path) -> tuple[Token, Machine]:
    """What a machine's folder tells of the cluster and of the machine. Raises as both do."""
    return Token.read(folder / TOKEN_FILE), Machine.read(folder)


def read_config(path: Path | None, ray_address: str = "") -> ClusterConfig:
    """Reads `cluster.toml`, if there is one, and checks what it says of servers; an address of Ray
    counts instead of the file's. Raises `WrongSettings` if something in it is wrong.
    """
    try:
        fields = {} if path is None else tomllib.loads(path.read_text(encoding="utf-8-sig"))
        fields |= {"ray_address": ray_address} if ray_address else {}
        config = ClusterConfig.model_validate(fields)
        for name in ("endpoint", "extension"):
            if name in config.server:
                raise WrongSettings(f"{path}: server.{name} is set by the cluster: leave it out")
        if "gateway" in config.server:
            raise WrongSettings(f"{path}: HTTP is the cluster's: write [gateway], without server.")
        server = _check_server(path, config.server)
        if any(model.on_demand for model in server.models):
            raise WrongSettings(f"{path}: on_demand: models of a cluster serve from the start")
        _check_ranks(path, config, server)
        load_policy(config.policy)
    except OSError as error:
        raise WrongSettings(f"{path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise WrongSettings(f"{path} is no TOML: {error}") from None
    except ValidationError as error:
        raise WrongSettings(_first(path, error, ())) from None
    except UnknownPolicy as error:
        raise WrongSettings(f"{path}: policy: {error}") from None
    return config


def _check_ranks(path: Path | None, config: ClusterConfig, server: ServerConfig) -> None:
    machines, size = config.ranks.machines, server.tensor_parallel_size
    if size % machines:
        raise WrongSettings(
            f"{path}: server.tensor_parallel_size: {size} ranks do not divide among"
            f" {machines} machines; take a multiple of ranks.machines"
        )


def _check_server(path: Path | None, server: dict[str, Any]) -> ServerConfig:
    try:
        return ServerConfig.model_validate(server)
    except ValidationError as error:
        raise WrongSettings(_first(path, error, ("server",))) from None


def _first(path: Path | None, error: ValidationError, within: tuple[str, ...]) -> str:
    """What is wrong first, and where."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in (*within, *first["loc"]))
    return f"{path}: {where}: {first['msg']}"


def write_private(path: Path, text: str) -> None:
    """Writes a file that its owner alone may read, in one step, and on the disk."""
    write_whole(path, text.encode(), durable=True)


def waiting(token: Token, machine: Machine) -> str:
    """Why a node does not start that needs other machines of this kind."""
    gpus = f" and {token.local_ranks} GPUs" if machine.gpus else ""
    return f"{WAITS}{token.rank_machines} machines with room{gpus} each: join another one"


def machine_resource(folder: Path, machine: Machine) -> str:
    """What Ray calls the machine of a folder: a resource that no other machine has."""
    name = f"{machine.host} {folder}"
    return f"pie_machine_{hashlib.sha256(name.encode()).hexdigest()[:16]}"


def member_keys_file(folder: Path, token: Token) -> Path | None:
    """The file of the members' pair in a machine's folder, which is made; None on loopback."""
    if not token.is_encrypted:
        return None
    path = folder / "members.json"
    text = json.dumps({"public": token.member_public, "secret": token.member_secret})
    if not path.exists() or path.read_text(encoding="utf-8") != text:  # of another cluster
        write_private(path, text)
    return path


def directory_of(token: Token) -> Directory:
    """The directory, as this machine asks it."""
    public, secret = token.member_public, token.member_secret
    key = ClientKey(MEMBER, public, secret, token.gateway_key) if token.is_encrypted else None
    return Directory(token.gateway, key)


def without_ray() -> dict[str, str]:
    """This process's environment, without what Ray adds for processes of its own."""
    return {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}


def ray_environment(folder: Path, token: Token, base: Mapping[str, str]) -> dict[str, str]:
    """An environment with that of Ray's processes, and of those that talk to them."""
    host = token.ray.rpartition(":")[0]
    env = {
        **base,
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": token.ray_token,
        "RAY_USAGE_STATS_ENABLED": "0",
        # Ray's own storage: a head that comes back knows its nodes.
        "RAY_gcs_storage": "rocksdb",
        "RAY_gcs_storage_path": str(folder / "gcs"),
        # A machine that is gone is noticed after 1.5 s, not 12.
        "RAY_health_check_initial_delay_ms": "1000",
        "RAY_health_check_period_ms": "500",
        "RAY_health_check_timeout_ms": "1000",
        "RAY_health_check_failure_threshold": "3",
        "RAY_gcs_rpc_server_reconnect_timeout_s": "600",
        # A full machine ends what the kernel chooses: Ray would end all nodes, and tell nobody.
        "RAY_memory_monitor_refresh_ms": "0",
        # A node serves as a server does, which is not nice to others on its machine: Ray's is 15.
        "RAY_worker_niceness": "0",
        "PIE_PY_CLUSTER_FOLDER": str(folder),
    }
    if host.startswith("127."):
        # Else Ray takes the machine's address instead, where other machines reach it.
        env["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    return env
