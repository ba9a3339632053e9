"""Operators' commands for a cluster: up, join, status, drain, down."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

import psutil
from packaging.requirements import Requirement

from pie_cluster.directory.asking import Directory, DirectoryAway, DirectoryRefuses
from pie_cluster.machines.keepers import (
    check_keeper,
    end_agent,
    forget_processes,
    keeper,
    kill_keeper,
    left_agent,
    processes_of,
    start_keeper,
)
from pie_cluster.machines.settings import (
    NAMES_FILE,
    TOKEN_FILE,
    ClusterConfig,
    ClusterProblem,
    Machine,
    Token,
    WrongSettings,
    directory_of,
    node_names,
    ray_environment,
    read_folder,
    write_names,
)
from pie_cluster.machines.token import check_room, check_versions, make_token, own_address
from pie_cluster.wire.messages import WAITS, NodeFacts
from pie_py.config.endpoint import answers, parse_endpoint
from pie_py.config.gateway import DEFAULT_HTTP, GatewayConfig, parse_address
from pie_py.config.processes import python_command

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
                "nodes of the cluster that was here run still, and it had another address or other"
                f" settings; `pie-py cluster down --folder {folder}` ends them"
            )
        machine = _head(config, token, settings)
        say(f"starting the cluster at {token.gateway}; logs are in {folder / 'logs'}")
        if token.is_encrypted:
            also = " and what ranks compute" if token.rank_machines > 1 else ""
            say(f"Ray's own ports{also} are not encrypted: keep them among the cluster's machines")
        _start(folder, token, machine, say)
    return token


def join(
    address: str,
    token_file: Path,
    folder: Path,
    nodes: int | None,
    host: str | None,
    say: Callable[[str], None],
    room: int | None = None,
    http: str | None = None,
) -> list[str]:
    """Makes nodes of this machine, or has it serve HTTP, or both; returns the names of the nodes.
    Raises `ClusterProblem` if it cannot; then nothing of it runs.

    Without a number of nodes there are as many as the GPUs make up, or none where nodes are on
    several machines: then it makes room for them. The host is this machine's address, by which the
    others reach it; without one, the one by which it reaches the cluster. There is `room` for so
    many nodes, those of lost machines too; by default for those that start now. With `http`,
    HOST:PORT, it serves HTTP there as the head does.
    """
    _check_ray()
    token = Token.read(token_file)
    if address != token.gateway:
        raise ClusterProblem(f"the token is for {token.gateway}, not for {address}")
    check_versions(token)
    host = own_address(token, host)
    if token.namespace:
        from pie_cluster.machines.foreign import find_ray  # imports Ray

        find_ray(token.ray)
    else:
        _check_let_in(token)
    gpus = _gpus()
    most = max(1, gpus // token.local_ranks)
    if nodes is None and token.rank_machines > 1:
        nodes, room = 0, room or most
    elif nodes is None:
        nodes = most
    room = max(nodes, room or 0)
    if room or http is None:
        check_room(room, token.local_ranks, token.rank_machines, gpus)
    folder = folder.absolute()
    with _locked(folder):
        _check_none_runs(folder)
        machine = Machine(
            role="nodes",
            host=host,
            nodes=nodes,
            room=room,
            shares_data=False,
            gpus=gpus,
            gateway=_chosen(_served_at(http, token.http)),
        )
        _start(folder, token, machine, say)
        return node_names(folder) or []


def _start(folder: Path, token: Token, machine: Machine, say: Callable[[str], None]) -> None:
    """Starts a machine's keeper, and waits until what it keeps serves. If that fails, it ends, and
    what it has started.
    """
    has_left = left_agent(folder) is not None
    if not has_left and len(node_names(folder) or ()) != machine.nodes:
        (folder / NAMES_FILE).unlink(missing_ok=True)  # others are named
        if machine.nodes and machine.role != "head":
            with _directory(token) as directory:
                write_names(folder, directory.allot(machine.nodes, token.models))
    token.write(folder / TOKEN_FILE)
    machine.write(folder)
    try:
        start_keeper(folder)
        _wait(folder, token, machine, say)
    except BaseException:
        if has_left:
            kill_keeper(folder)
        else:
            down(folder)
        raise


def nodes_of(token: Token) -> list[NodeFacts]:
    """All nodes, as the directory sees them. Raises `ClusterProblem` if it does not answer."""
    with _directory(token) as directory:
        return directory.nodes()


def drain(token: Token, node: str, seconds: float, again: bool = False) -> None:
    """Has a node take no more, and end when it is empty or after so many seconds; then another life
    of it begins, if it is to serve `again`. Raises `ClusterProblem` if it cannot be drained, or the
    directory does not answer.
    """
    with _directory(token) as directory:
        directory.drain(node, seconds, again)


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
        token = Token.read(folder / TOKEN_FILE)
        named = f'"directory":"{token.directory}"'
        ours = [f'"node":"{name}"' for name in node_names(folder) or ()]
        ours.append(f'"data_folder":"{folder / "data"}"')  # those that other machines brought
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
    """What is wrong with a node and what to do; empty if nothing is."""
    match node.state:
        case "silent":
            return f"says nothing for {node.silent_seconds:.0f} s: look at its machine"
        case "starting" if node.reason.startswith(WAITS):
            return node.reason
        case "starting" if node.reason:
            return f"starts again: {node.reason}"
        case "starting":
            return f"loads its model for {node.silent_seconds:.0f} s"
        case "lost":
            ago = f"lost {node.silent_seconds:.0f} s ago"
            return (
                f"{ago}: {node.reason}; look at its machine, `pie-py cluster join` brings it back"
            )
        case "no-worker":
            return f"its worker has ended, and another one loads: see logs/{node.node}.log"
        case "draining":
            return f"ends when its {node.instances} instances have"
    return ""


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
    """Whether nothing runs, but for a head that was started with the same settings."""
    if keeper(folder) is not None and not (settings and Machine.read(folder).settings == settings):
        others = " with other settings" if settings else ""
        raise ClusterProblem(
            f"this machine runs a part of a cluster{others} in {folder} already; `pie-py cluster"
            f" down --folder {folder}` ends it"
        )


def _gpus() -> int:
    found = Path("/proc/driver/nvidia/gpus")
    return len(list(found.iterdir())) if found.is_dir() else 0


def _chosen(gateway: GatewayConfig | None) -> GatewayConfig | None:
    """The settings with the address where it will serve; None if there is to be none.

    Without an address that is a server's default one, or another port if that is taken. Raises
    `WrongSettings` if a file cannot be read, and `ClusterProblem` if the address is in use.
    """
    if gateway is None or not gateway.enabled:
        return None
    try:
        address = _free(gateway.http or DEFAULT_HTTP)
    except OSError as error:
        if gateway.http is not None:
            why = (error.strerror or str(error)).partition(" (")[0]
            raise ClusterProblem(
                f"HTTP cannot be served at {gateway.http}: {why}; choose another http in [gateway]"
            ) from None
        address = _free(f"{DEFAULT_HTTP.rpartition(':')[0]}:0")
    files = {}
    for name in ("tls_certificate", "tls_key"):
        path = getattr(gateway, name)
        if path is not None:
            if not os.access(path, os.R_OK):
                raise WrongSettings(f"gateway.{name}: {path} cannot be read")
            files[name] = path.absolute()
    if len(files) == 1:
        raise WrongSettings("gateway.tls_certificate and gateway.tls_key go together")
    return gateway.model_copy(update={"http": address, **files})


def _served_at(http: str | None, gateway: GatewayConfig | None) -> GatewayConfig | None:
    """The cluster's settings of HTTP at another address, if one is given; raises `WrongSettings` if
    it is none.
    """
    if http is None:
        return None
    try:
        parse_address(http)
    except ValueError as error:
        raise WrongSettings(f"--http: {error}") from None
    return (gateway or GatewayConfig()).model_copy(update={"http": http, "enabled": True})


def _free(address: str) -> str:
    """HOST:PORT where nothing listens now; port 0 is any. Raises `OSError` if nothing can."""
    host, port = parse_address(address)
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    with socket.create_server((host, port), family=family) as bound:
        return f"{address.rpartition(':')[0]}:{bound.getsockname()[1]}"


# Parts


def _head(config: ClusterConfig, token: Token, settings: str) -> Machine:
    """The head's own machine, where the first nodes are. Raises `ClusterProblem` if it has not what
    they need.
    """
    nodes, gpus = config.nodes, 0
    # Their parts need the same of all their machines; or others share the GPUs by way of Ray.
    if nodes and (token.rank_machines > 1 or token.namespace):
        gpus = _gpus()
        check_room(nodes, token.local_ranks, token.rank_machines, gpus)
    return Machine(
        role="head",
        host=config.host,
        nodes=nodes,
        room=nodes,
        policy=config.policy,
        gpus=gpus,
        gateway=_chosen(config.gateway),
        settings=settings,
    )


def _wait(folder: Path, token: Token, machine: Machine, say: Callable[[str], None]) -> None:
    """Waits until this machine's processes and nodes serve, or these wait for other machines."""
    parts = ["gateway"] * (machine.role == "head") + ["http"] * (machine.gateway is not None)
    parts += ["placing"] * (machine.room > 0)
    end, said = time.monotonic() + START_SECONDS, False
    while time.monotonic() < end:
        time.sleep(LOOK_SECONDS)
        check_keeper(folder)
        if waiting := _starting(folder, parts):
            continue
        names = node_names(folder)
        if names and not said:
            said = True
            say(f"starting {', '.join(names)}")
        try:
            found = {node.node: node for node in directory_of(token).nodes()}
        except DirectoryAway:  # of a machine with much to do
            continue
        for name in names or ():
            if name in found and (reason := _failure(found[name])):
                raise ClusterProblem(f"node {name} does not start: {reason}")
        if token.rank_machines > 1 and all(name in found for name in names or ()):
            for name in names or ():  # they start when there are machines
                say(f"{name} {advice(found[name]) or 'serves'}")
            return
        if all(name in found and found[name].state == "ready" for name in names or ()):
            return
    late = ", ".join(waiting) or "the nodes"
    raise ClusterProblem(f"{late} did not start in {START_SECONDS:g} s; see {folder / 'logs'}")


def _failure(node: NodeFacts) -> str:
    """Why a life of a node that starts has ended; empty if it has not."""
    waits = node.state != "starting" or node.reason.startswith(WAITS)
    return "" if waits else node.reason


def _check_let_in(token: Token) -> None:
    """Whether the cluster's Ray knows this machine's token: it would try again without end."""
    if not answers(parse_endpoint(f"tcp://{token.ray}")):
        raise ClusterProblem(
            f"Ray's head does not answer at {token.ray}: does `pie-py cluster up` run there, and is"
            " the token the one that it has written last?"
        )
    asked = subprocess.run(
        python_command("-c", _ASK_RAY, token.ray),
        env=ray_environment(Path(), token, os.environ),
        capture_output=True,
        text=True,
        check=False,
    )
    if asked.returncode:
        why = (asked.stderr.strip() or "it says nothing").splitlines()[-1]
        raise ClusterProblem(
            f"the cluster refuses the token: copy {TOKEN_FILE} again, from the folder of"
            f" `pie-py cluster up` ({why})"
        )


_ASK_RAY = """
import sys
from ray._raylet import GcsClient
GcsClient(address=sys.argv[1]).get_all_node_info(timeout=20)
"""


def _starting(folder: Path, names: list[str]) -> list[str]:
    """Those of a machine's processes that do not serve yet, as they say themselves: what answers at
    their addresses may be another cluster's that was started meanwhile. Raises `ClusterProblem` if
    one says why it cannot.
    """
    told = processes_of(folder)
    for name in names:
        if error := told.get(name, {}).get("error"):
            of = "" if name == "placing" else f"the {name} does not start: "
            raise ClusterProblem(of + error)
    return [name for name in names if "ready" not in told.get(name, {})]


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keeps a second `up` or `join` of the same folder out."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / "lock", os.O_CREAT | os.O_RDWR, 0o600)
    except OSError as error:
        raise ClusterProblem(f"{folder} cannot be used: {error.strerror}") from None
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ClusterProblem(f"another `pie-py cluster` is at work in {folder}") from None
        yield
    except OSError as error:
        raise ClusterProblem(f"{folder}: {error.strerror or error}") from None
    finally:
        os.close(handle)


@contextmanager
def _directory(token: Token) -> Iterator[Directory]:
    try:
        yield directory_of(token)
    except (DirectoryAway, DirectoryRefuses) as error:
        raise ClusterProblem(str(error)) from None
