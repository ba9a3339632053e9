"""Operators' commands for a cluster: up, join, status, drain, down."""

from __future__ import annotations

import fcntl
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

import psutil
from packaging.requirements import Requirement

from pie_cluster.config import ClusterProblem
from pie_cluster.directory.asking import DirectoryAway
from pie_cluster.machines.keepers import (
    end_agent,
    forget_processes,
    keeper,
    left_agent,
    processes_of,
    start_keeper,
)
from pie_cluster.machines.settings import (
    NAMES_FILE,
    TOKEN_FILE,
    ClusterConfig,
    Machine,
    Token,
    WrongSettings,
    directory_of,
    node_names,
    read_folder,
    write_folder,
)
from pie_cluster.machines.token import check_gpus, check_versions, find_ray, make_token, own_address
from pie_cluster.wire.messages import NodeFacts
from pie_py.config.gateway import GatewayConfig, parse_address

START_SECONDS = 300.0  # of `up` and `join`, at most
STOP_SECONDS = 60.0
NODE_SECONDS = 10.0  # for a node to end when its actor has
LOOK_SECONDS = 0.1
WORDS = {"gateway": "the gateway", "http": "HTTP", "ray": "Ray's head", "agent": "Ray's agent"}


def up(config: ClusterConfig, say: Callable[[str], None]) -> Token:
    """Starts a cluster on this machine, with its first nodes; those that run already, for their
    keeper has died, go on. Raises `ClusterProblem` if it cannot; then nothing of it runs but what
    ran before.
    """
    _check_ray()
    folder = config.folder.absolute()
    with _locked(folder):
        settings = config.model_dump_json()
        _check_none_runs(folder, settings)
        if keeper(folder) is not None:
            token, machine = read_folder(folder)
            say(f"{', '.join(node_names(folder) or ()) or 'the head'} runs already")
            _wait(folder, token, machine, say)
            return token
        token = make_token(config, folder)
        if left_agent(folder) is not None and Token.read(folder / TOKEN_FILE) != token:
            raise ClusterProblem(
                "nodes of the cluster that was here run still, and it had other settings;"
                f" `pie-py cluster down --folder {folder}` ends them"
            )
        gpus = _gpus() if token.namespace else 0  # which others share by way of Ray
        check_gpus(config.nodes, token.ranks, gpus)
        machine = Machine(
            is_head=True,
            host=config.host,
            nodes=config.nodes,
            gpus=gpus,
            gateway=_checked(config.gateway),
            settings=settings,
        )
        say(f"starting the cluster at {token.gateway}; logs are in {folder / 'logs'}")
        if token.is_encrypted:
            say("Ray's own ports are not encrypted: keep them among the cluster's machines")
        _start(folder, token, machine, say)
    return token


def join(
    address: str,
    token_file: Path,
    folder: Path,
    nodes: int | None,
    host: str | None,
    say: Callable[[str], None],
    http: str | None = None,
) -> list[str]:
    """Makes nodes of this machine, or has it serve HTTP, or both; returns the names of the nodes.
    Raises `ClusterProblem` if it cannot; then nothing of it runs.

    Without a number of nodes there are as many as the GPUs make up. The host is this machine's
    address, by which the others reach it; without one, the one by which it reaches the cluster.
    With `http`, HOST:PORT, it serves HTTP there as the head does.
    """
    _check_ray()
    token = Token.read(token_file)
    if address != token.gateway:
        raise ClusterProblem(f"the token is for {token.gateway}, not for {address}")
    check_versions(token)
    host = own_address(token, host)
    if token.namespace:
        find_ray(token.ray)
    gpus = _gpus()
    nodes = max(1, gpus // token.ranks) if nodes is None else nodes
    if nodes == 0 and http is None:
        raise WrongSettings("this machine would do nothing: give --nodes or --http")
    check_gpus(nodes, token.ranks, gpus)
    folder = folder.absolute()
    with _locked(folder):
        _check_none_runs(folder)
        directory_of(token).ask(
            "allot", count=0, cluster=token.cluster
        )  # whether it takes this token
        gateway = None
        if http is not None:
            try:
                parse_address(http)
            except ValueError as error:
                raise WrongSettings(f"--http: {error}") from None
            served = token.http or GatewayConfig()
            gateway = _checked(served.model_copy(update={"enabled": True, "http": http}))
        machine = Machine(is_head=False, host=host, nodes=nodes, gpus=gpus, gateway=gateway)
        _start(folder, token, machine, say)
        return node_names(folder) or []


def _start(folder: Path, token: Token, machine: Machine, say: Callable[[str], None]) -> None:
    """Starts a machine's keeper, and waits until what it keeps serves. If that fails, it ends, and
    what it has started.
    """
    has_left = left_agent(folder) is not None
    if not has_left and len(node_names(folder) or ()) != machine.nodes:
        (folder / NAMES_FILE).unlink(missing_ok=True)  # others are named
    write_folder(folder, token, machine)
    try:
        start_keeper(folder)
        _wait(folder, token, machine, say)
    except BaseException:
        if not has_left:
            down(folder)
        elif (kept := keeper(folder)) is not None:
            kept.kill()  # with all that it keeps, but for the agent of Ray and the nodes
            kept.wait()
        raise


def down(folder: Path) -> list[str]:
    """Ends what this machine runs of a cluster. Returns what that was, in words. Raises
    `ClusterProblem` if something does not end.
    """
    kept, agent = keeper(folder), left_agent(folder)
    if kept is None and agent is None:
        return []
    ended = [WORDS[name] for name in processes_of(folder) if name in WORDS]
    ended += [f"node {name}" for name in node_names(folder) or ()]
    if kept is not None:
        kept.send_signal(signal.SIGTERM)
        try:
            kept.wait(STOP_SECONDS)
        except psutil.TimeoutExpired:
            raise ClusterProblem(
                f"process {kept.pid} does not end within {STOP_SECONDS:g} s; see {folder / 'logs'}"
            ) from None
    if (agent := left_agent(folder)) is not None:
        end_agent(agent)  # its keeper was killed
    forget_processes(folder)
    _await_nodes(folder)
    return ended


def _await_nodes(folder: Path) -> None:
    """Waits for a machine's nodes, which end when they see that their actors have."""
    with suppress(ClusterProblem):
        named = f'"gateway":"{Token.read(folder / TOKEN_FILE).gateway}"'
        ours = [f'"node":"{name}"' for name in node_names(folder) or ()]
        nodes = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                line = " ".join(process.cmdline())
                if named in line and any(each in line for each in ours):
                    nodes.append(process)
        for process in psutil.wait_procs(nodes, NODE_SECONDS)[1]:
            with suppress(psutil.NoSuchProcess):
                process.kill()


def http_url(folder: Path) -> str | None:
    """Where the machine of a folder serves HTTP; None if it does not."""
    url: str | None = processes_of(folder).get("http", {}).get("endpoint")
    return url


def advice(node: NodeFacts) -> str:
    """The fault of a node and how to mend it; empty if there is none."""
    silent = f"{node.silent_seconds:.0f} s"
    return {
        "silent": f"says nothing for {silent}: look at its machine",
        "starting": f"starts again: {node.reason}" if node.reason else f"loads for {silent}",
        "lost": f"lost {silent} ago: {node.reason}; look at its machine, `pie-py cluster join`"
        " brings it back",
        "no-worker": f"its worker has ended, and another one loads: see logs/{node.node}.log",
        "draining": f"ends when its {node.instances} instances have",
    }.get(node.state, "")


# Checks


def _check_ray() -> None:
    needed = next(each for each in map(Requirement, requires("pie-py") or ()) if each.name == "ray")
    try:
        if needed.specifier.contains(here := version("ray")):
            return
        problem = f"Ray{needed.specifier}, and {here} is installed"
    except PackageNotFoundError:
        problem = "Ray, which is not installed"
    raise ClusterProblem(f"clusters need {problem}: pip install 'pie-py[cluster]'")


def _check_none_runs(folder: Path, settings: str = "") -> None:
    """True if nothing runs, but for a head that was started with the same settings."""
    if keeper(folder) is not None and not (settings and Machine.read(folder).settings == settings):
        others = " with other settings" if settings else ""
        raise ClusterProblem(
            f"this machine runs a part of a cluster{others} in {folder} already; `pie-py cluster"
            f" down --folder {folder}` ends it"
        )


def _gpus() -> int:
    found = Path("/proc/driver/nvidia/gpus")
    return len(list(found.iterdir())) if found.is_dir() else 0


def _checked(gateway: GatewayConfig | None) -> GatewayConfig | None:
    """How HTTP is served; None if it is not. Raises `WrongSettings` if a file cannot be read."""
    if gateway is None or not gateway.enabled:
        return None
    files = {"tls_certificate": gateway.tls_certificate, "tls_key": gateway.tls_key}
    given = {name: path.absolute() for name, path in files.items() if path is not None}
    for name, path in given.items():
        if not os.access(path, os.R_OK):
            raise WrongSettings(f"gateway.{name}: {path} cannot be read")
    if len(given) == 1:
        raise WrongSettings("gateway.tls_certificate and gateway.tls_key go together")
    return gateway.model_copy(update=given)


def _wait(folder: Path, token: Token, machine: Machine, say: Callable[[str], None]) -> None:
    parts = ["gateway"] * machine.is_head + ["http"] * (machine.gateway is not None)
    parts += ["placing"] * (machine.nodes > 0)
    end, said = time.monotonic() + START_SECONDS, False
    seen: dict[str, int] = {}  # the lives that started at first
    while time.monotonic() < end:
        time.sleep(LOOK_SECONDS)
        if keeper(folder) is None:
            log = (folder / "logs/keeper.log").read_text(errors="replace").strip()
            raise ClusterProblem(f"what keeps this machine has ended: {log[-500:]}")
        # As they say themselves: what answers at their addresses may be another cluster's.
        told = {name: processes_of(folder).get(name, {}) for name in parts}
        for name, report in told.items():
            if error := report.get("error"):
                of = "" if name == "placing" else f"the {name} does not start: "
                raise ClusterProblem(of + error)
        if waiting := [name for name, report in told.items() if "ready" not in report]:
            continue
        names = node_names(folder) or ()
        if names and not said:
            said = True
            say(f"starting {', '.join(names)}")
        try:
            found = {node.node: node for node in directory_of(token).nodes()}
        except DirectoryAway:  # of a machine with much to do
            continue
        for name in names:
            node = found.get(name)
            if node is None or node.state != "starting":
                continue
            if node.incarnation > seen.setdefault(name, node.incarnation):
                raise ClusterProblem(f"node {name} does not start: {node.reason}")
        if all(name in found and found[name].state == "ready" for name in names):
            return
    late = ", ".join(waiting) or "the nodes"
    raise ClusterProblem(f"{late} did not start in {START_SECONDS:g} s; see {folder / 'logs'}")


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keeps a second `up` or `join` of the same folder out."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / "lock", os.O_CREAT | os.O_RDWR, 0o600)
    except OSError as error:
        raise ClusterProblem(f"{folder} cannot be used: {error.strerror}") from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise ClusterProblem(f"another `pie-py cluster` is at work in {folder}") from None
    except OSError as error:
        raise ClusterProblem(f"{folder}: {error.strerror or error}") from None
    finally:
        os.close(handle)
