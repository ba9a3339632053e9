"""The token of a cluster: made by `up`, checked by a joining machine."""

from __future__ import annotations

import ipaddress
import json
import os
import platform
import secrets
import socket
import subprocess
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import zmq

from pie_cluster.config import ClusterProblem
from pie_cluster.machines.settings import (
    ClusterConfig,
    Token,
    WrongSettings,
    read_folder,
)
from pie_py import __version__
from pie_py.config.endpoint import BadEndpoint, answers, parse_endpoint
from pie_py.config.keys import KeyProblem, KeyStore
from pie_py.config.processes import python_command
from pie_py.config.server import ServerConfig
from pie_py.config.shipped_files import contract_version


def make_token(config: ClusterConfig, folder: Path) -> Token:
    """The token of a new cluster, or of the one that was in the head's folder before with the same
    settings: machines that have joined find it again. Raises `WrongSettings` for addresses that are
    none of this machine, or do not go together, and `ClusterProblem` for ports that are in use, and
    keys that cannot be read.
    """
    token = _new(config, folder)
    with suppress(OSError, ValueError, ClusterProblem):
        former, machine = read_folder(folder)
        may = {"nodes", "gateway"}  # be others; with another rest it is another cluster
        was = ClusterConfig.model_validate_json(machine.settings)
        if was.model_dump(exclude=may) == config.model_dump(exclude=may):
            kept = {"gateway", "ray_token", "namespace", "member_public", "member_secret"}
            kept |= set() if token.namespace else {"ray"}  # of which it has just been asked
            token = token.model_copy(update=former.model_dump(include=kept))
    used = [("endpoint", token.gateway)]
    used += [] if token.namespace else [("ray_port", f"tcp://{token.ray}")]
    for name, text in used:
        if answers(parse_endpoint(text)):
            raise ClusterProblem(f"{text.removeprefix('tcp://')} is in use; choose another {name}")
    return token


def _new(config: ClusterConfig, folder: Path) -> Token:
    keys: dict[str, Any] = {}
    server = ServerConfig.model_validate(config.server)
    if "data_folder" not in config.server:
        server = server.model_copy(update={"data_folder": folder / "data"})
    if _is_encrypted(config.endpoint, config.host):
        public, secret = zmq.curve_keypair()
        keys = {"member_public": public.decode(), "member_secret": secret.decode()}
        try:
            keys["gateway_key"] = KeyStore(server.data_folder).server_pair().public
        except KeyProblem as error:
            raise ClusterProblem(str(error)) from None
    ports = free_ports(config.host, 2)
    return Token(
        gateway=config.endpoint.replace(":*", f":{ports[0]}"),
        **_ray(config, ports[1]),
        **keys,
        versions=versions(),
        server=json.loads(server.model_dump_json(exclude={"endpoint", "extension"})),
        http=config.gateway,
    )


def _ray(config: ClusterConfig, free_port: int) -> dict[str, str]:
    """Where Ray's head is or will be, and what lets this cluster in."""
    if config.ray_address:
        namespace = f"pie-{secrets.token_hex(4)}"
        return {"ray": find_ray(config.ray_address), "ray_token": "", "namespace": namespace}
    return {
        "ray": f"{config.host}:{config.ray_port or free_port}",
        "ray_token": os.environ.get("RAY_AUTH_TOKEN") or secrets.token_hex(32),
    }


def find_ray(address: str) -> str:
    """Where the head is, as HOST:PORT, of a Ray of which this machine is a node; `auto` stands for
    the Ray of this machine. Raises `WrongSettings` for an address that is none, or one of Ray's
    server for clients, and `ClusterProblem` if this process cannot be a driver there.
    """
    if address.startswith("ray://"):
        raise WrongSettings(
            f"{address} is for drivers outside of Ray, and nodes need a folder on a machine of it:"
            " call this on one, and name the head of Ray instead (HOST:6379) or auto"
        )
    try:
        if address != "auto" and not answers(parse_endpoint(f"tcp://{address}")):
            raise ClusterProblem(
                f"no Ray answers at {address}: start one with `ray start --head`, or leave"
                " --address out"
            )
    except BadEndpoint:
        raise WrongSettings(f"{address} is no address of Ray: give HOST:PORT or auto") from None
    from ray._common.usage.usage_lib import get_cluster_metadata
    from ray._private.utils import check_version_info
    from ray._raylet import GcsClient  # type: ignore[attr-defined]

    refused = (
        f"the Ray at {address} does not take this machine: is it one, with the same versions of Ray"
        " and Python, and is this machine a node of it?"
    )
    try:
        if address != "auto":  # what is no Ray is waited for, for minutes, by a driver
            check_version_info(get_cluster_metadata(GcsClient(address=address)), "this machine")
    except Exception as error:  # noqa: BLE001  Ray raises what it likes
        raise ClusterProblem(f"{refused} {error}") from None
    # A process of its own: a driver takes over signals, for good.
    command = [*python_command(), "-c", _FIND, address]
    asked = subprocess.run(command, capture_output=True, text=True, check=False)
    if asked.returncode:
        why = (asked.stderr.strip() or "it says nothing").splitlines()[-1]
        raise ClusterProblem(f"{refused} {why}")
    return asked.stdout.splitlines()[-1]


_FIND = """
import logging, sys, ray
with ray.init(sys.argv[1], log_to_driver=False, logging_level=logging.ERROR) as driver:
    print(driver.address_info["gcs_address"])
"""


def versions() -> dict[str, str]:
    """The facts that must be the same on all machines of a cluster."""
    return {
        "pie_py": __version__,
        "contract": contract_version(),
        "Ray": version("ray"),
        "Python": ".".join(platform.python_version_tuple()[:2]),
    }


def check_versions(token: Token) -> None:
    """Checks that this machine has what the cluster has. Raises `ClusterProblem` if not."""
    for name, ours in versions().items():
        theirs = token.versions.get(name, "another")
        if ours != theirs:
            raise ClusterProblem(
                f"this machine has {name} {ours}, the cluster {theirs}: install the same here"
            )


def check_gpus(nodes: int, ranks: int, gpus: int) -> None:
    """Checks that a machine has room for so many nodes, each with so many ranks, on a GPU each; one
    without GPUs computes on its CPU. Raises `ClusterProblem` if not.
    """
    if gpus and nodes * ranks > gpus:
        raise ClusterProblem(
            f"{nodes} nodes of {ranks} ranks (tensor_parallel_size) need {nodes * ranks} GPUs, and"
            f" this machine has {gpus}"
        )


def own_address(token: Token, host: str | None) -> str:
    """This machine's address for the others: the one that was given, or that leads to the cluster.
    Raises `ClusterProblem` if the cluster does not reach it.
    """
    gateway = parse_endpoint(token.gateway)
    assert gateway.host is not None, "checked when the token was made"
    if host is None:
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
                probe.connect((gateway.host, 9))  # sends nothing
                host = str(probe.getsockname()[0])
        except OSError as error:
            raise ClusterProblem(f"no way leads to {token.gateway}: {error.strerror}") from None
    free_ports(host, 1)  # says if it is none of this machine
    if host.startswith("127.") == token.is_encrypted:
        raise ClusterProblem(
            f"the cluster at {token.gateway} does not reach this machine at {host}: give --host an"
            " address of the same network, or its cluster.toml addresses that other machines reach"
            " (host, endpoint)"
        )
    return host


def _is_encrypted(endpoint: str, host: str) -> bool:
    """True if other machines reach the cluster. Raises `WrongSettings` if only a part of it is
    reached, or an address is none.
    """
    try:
        gateway, address = parse_endpoint(endpoint), ipaddress.IPv4Address(host)
    except ValueError as error:
        raise WrongSettings(f"endpoint {endpoint} and IPv4 address host {host}: {error}") from None
    if gateway.host is None:
        raise WrongSettings(f"endpoint: {endpoint} is reached from this machine alone; give tcp://")
    if "0.0.0.0" in (host, gateway.host) or gateway.host == "[::]":
        raise WrongSettings(f"{endpoint}, {host}: 0.0.0.0 tells nobody where to connect")
    if address.is_loopback != gateway.is_loopback:
        raise WrongSettings(
            f"endpoint {endpoint} and host {host} must both be reached from other machines, or"
            " neither: clients of the one are sent to nodes of the other"
        )
    return not gateway.is_loopback


def free_ports(host: str, count: int) -> list[int]:
    """Ports that nothing listens on now. Raises `WrongSettings` if the address is none of this
    machine.
    """
    sockets = [socket.socket(socket.AF_INET) for _ in range(count)]
    try:
        for each in sockets:
            each.bind((host, 0))
        return [int(each.getsockname()[1]) for each in sockets]
    except OSError as error:
        raise WrongSettings(f"host {host} is none of this machine: {error.strerror}") from None
    finally:
        for each in sockets:
            each.close()
