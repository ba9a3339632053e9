"""Settings of a cluster, from a file, and those of its machines, on disk."""

from __future__ import annotations

import hashlib
import json
import os
import tomllib
from pathlib import Path
from typing import Any, Self

import platformdirs
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    ValidationError,
    model_validator,
)

from pie_cluster.config import MEMBER, ClusterProblem
from pie_cluster.directory.asking import Directory
from pie_py.config.gateway import GatewayConfig
from pie_py.config.keys import ClientKey
from pie_py.config.server import ServerConfig
from pie_py.config.whole_files import write_whole

TOKEN_FILE = "token.json"
STATE_FILE = "machine.json"
NAMES_FILE = "nodes.json"


class WrongSettings(ClusterProblem):
    """A setting of the operator, in `cluster.toml` or by an option, can never work."""


class Settings(BaseModel):
    """The content of a file."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ClusterConfig(Settings):
    """`cluster.toml`."""

    endpoint: str = "tcp://127.0.0.1:7743"  # of the gateway
    host: str = "127.0.0.1"  # the head's address, by which other machines reach it
    nodes: NonNegativeInt = 1  # on the head's machine, at first
    folder: Path = Path(platformdirs.user_data_dir("pie_py")) / "cluster"
    ray_address: str = ""  # of a Ray that is there already, or `auto`; empty: one of its own
    ray_port: int = Field(default=0, ge=0, le=65535)  # 0: a free one
    gateway: GatewayConfig | None = None  # HTTP is served beside it
    server: dict[str, Any] = {}  # each node's, as in a server's configuration

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.ray_address and self.ray_port:
            raise ValueError(
                "ray_port needs a Ray of the cluster's own: leave it out, or --address and"
                " ray_address"
            )
        return self


class Token(Settings):
    """The secret of a machine that joins: it gives every right on the cluster."""

    gateway: str
    ray: str  # HOST:PORT
    ray_token: str
    versions: dict[str, str]
    server: dict[str, Any]  # the nodes' configuration
    namespace: str = ""  # of the nodes in a Ray that was there before; empty in the cluster's own
    member_public: str = ""  # the members' pair; empty where all is on loopback
    member_secret: str = ""
    gateway_key: str = ""  # the gateway's public key; likewise
    http: GatewayConfig | None = None  # as the head serves it, on each machine that does

    @property
    def ranks(self) -> int:
        """Of each node."""
        return int(self.server.get("tensor_parallel_size", 1))

    @property
    def is_encrypted(self) -> bool:
        """True if members encrypt: other machines reach them."""
        return bool(self.member_public)

    @property
    def cluster(self) -> str:
        """A hash of what all machines must have: the models with their settings, and secrets."""
        same = self.server.get("models"), self.ray_token, self.namespace
        return hashlib.sha256(json.dumps(same, sort_keys=True).encode()).hexdigest()

    @staticmethod
    def read(path: Path) -> Token:
        """Reads a token file. Raises `ClusterProblem` if it is none."""
        try:
            return Token.model_validate_json(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ClusterProblem(
                f"the token {path} cannot be read: {error.strerror}; `pie-py cluster up` has"
                f" written it as {TOKEN_FILE} in its folder"
            ) from None
        except ValueError:
            raise ClusterProblem(
                f"{path} is no token of a cluster, or of another version of pie_py"
            ) from None


class Machine(Settings):
    """One machine of a cluster, as its folder tells it."""

    is_head: bool
    host: str
    nodes: int = 0  # that it has
    gpus: int = 0
    gateway: GatewayConfig | None = None  # if HTTP is served here
    settings: str = ""  # of the head: what it was started with

    @staticmethod
    def read(folder: Path) -> Machine:
        """The machine of a folder. Raises `OSError` or `ValidationError` if there is none."""
        return Machine.model_validate_json((folder / STATE_FILE).read_text(encoding="utf-8"))


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
    """Reads the settings of cluster and machine in a machine's folder. Raises as both do."""
    return Token.read(folder / TOKEN_FILE), Machine.read(folder)


def write_folder(folder: Path, token: Token, machine: Machine) -> None:
    """Has a folder tell both."""
    write_private(folder / TOKEN_FILE, token.model_dump_json(indent=1))
    write_private(folder / STATE_FILE, machine.model_dump_json(indent=1))


def read_config(path: Path | None, ray_address: str = "") -> ClusterConfig:
    """Reads `cluster.toml`, if there is one, and checks what it says of servers; an address of Ray
    counts instead of the file's. Raises `WrongSettings` if something in it is wrong.
    """
    try:
        fields = {} if path is None else tomllib.loads(path.read_text(encoding="utf-8-sig"))
        fields |= {"ray_address": ray_address} if ray_address else {}
        config = ClusterConfig.model_validate(fields)
        for name in {"endpoint", "extension", "gateway"} & config.server.keys():
            why = "is set by the cluster: leave it out, or write it without server."
            raise WrongSettings(f"{path}: server.{name} {why}")
    except OSError as error:
        raise WrongSettings(f"{path} cannot be read: {error.strerror}") from None
    except ValidationError as error:
        raise WrongSettings(_first(path, error)) from None
    except ValueError as error:  # also of a number with thousands of digits
        raise WrongSettings(f"{path} is no TOML: {error}") from None
    try:
        if any(model.on_demand for model in ServerConfig.model_validate(config.server).models):
            raise WrongSettings(f"{path}: on_demand: models of a cluster serve from the start")
    except ValidationError as error:
        raise WrongSettings(_first(path, error, "server.")) from None
    return config


def _first(path: Path | None, error: ValidationError, within: str = "") -> str:
    """The first fault, and where it is."""
    first = error.errors()[0]
    where = within + ".".join(map(str, first["loc"]))
    return f"{path}: {where}: {first['msg']}"


def write_private(path: Path, text: str) -> None:
    """Writes a file that its owner alone may read, in one step, and on the disk."""
    write_whole(path, text.encode(), durable=True)


def machine_resource(folder: Path, machine: Machine) -> str:
    """Ray's name of the machine of a folder: a resource that no other machine has."""
    name = f"{machine.host} {folder}"
    return f"pie_machine_{hashlib.sha256(name.encode()).hexdigest()[:16]}"


def directory_of(token: Token) -> Directory:
    """The directory, as this machine asks it."""
    public, secret = token.member_public, token.member_secret
    key = ClientKey(MEMBER, public, secret, token.gateway_key) if token.is_encrypted else None
    return Directory(token.gateway, key)


def without_ray() -> dict[str, str]:
    """This process's environment, without what Ray adds for processes of its own."""
    return {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}


def ray_environment(folder: Path, token: Token) -> dict[str, str]:
    """The environment of Ray's processes, and of those that talk to them."""
    host = token.ray.rpartition(":")[0]
    env = {
        **os.environ,
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
