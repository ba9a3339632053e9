"""What an operator does with a cluster: up, join, status, drain, down."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil
from pydantic import ValidationError

from pie_py import __version__
from pie_py.cluster import http_gateway
from pie_py.cluster.asking import Directory, DirectoryAway, DirectoryRefuses
from pie_py.cluster.settings import (
    STATE_FILE,
    TOKEN_FILE,
    ClusterConfig,
    ClusterProblem,
    Machine,
    Names,
    Token,
    member_keys_file,
    write_private,
)
from pie_py.config.cluster import read_member_pair
from pie_py.config.endpoint import BadEndpoint, Endpoint, answers, parse_endpoint
from pie_py.config.keys import KeyProblem
from pie_py.config.server import ServerConfig
from pie_py.wire.cluster import Allot, Allotted, Drain, NodeFacts, NodeList, Nodes
from pie_py.wire.contract import contract_version

START_SECONDS = 300.0  # of `up` and `join`, at most
STOP_SECONDS = 60.0
NODE_SECONDS = 10.0  # for a node to end when its actor has
ASK_SECONDS = 5.0
LOOK_SECONDS = 0.1
FORGET_SECONDS = 4.0  # in which the directory notices that a machine was ended


def up(config: ClusterConfig, say: Callable[[str], None]) -> Token:
    """Starts a cluster on this machine, with its first nodes.

    Raises:
        ClusterProblem: if it cannot; then nothing of it runs.
    """
    _check_ray()
    folder = config.folder.absolute()
    with _locked(folder):
        _check_none_runs(folder)
        token = _token(config, folder)
        http = http_gateway.chosen(config.gateway)
        say(f"starting the cluster at {token.gateway}; logs are in {folder / 'logs'}")
        write_private(folder / "token.json", token.model_dump_json(indent=1))
        head = Machine(role="head", host=config.host, policy=config.policy, gateway=http)
        _write_machine(folder, head)
        try:
            _start_keeper(folder)
            _wait_for_head(folder, token, {"http"} if http else set())
            if config.nodes:
                machine = Machine(role="nodes", host=config.host, nodes=config.nodes)
                _add_nodes(folder / "nodes", token, machine, say)
        except BaseException:
            down(folder)
            raise
    return token


def join(
    address: str,
    token_file: Path,
    folder: Path,
    nodes: int | None,
    host: str,
    say: Callable[[str], None],
) -> list[str]:
    """Makes nodes of this machine.

    Args:
        address: of the cluster's gateway.
        token_file: as `up` has written it.
        folder: of this machine's state.
        nodes: how many; as many as the GPUs make up if None.
        host: this machine's address.
        say: told what goes on.

    Returns:
        The names of the nodes.

    Raises:
        ClusterProblem: if it cannot; then nothing of it runs.
    """
    _check_ray()
    token = Token.read(token_file)
    if address != token.gateway:
        raise ClusterProblem(f"the token is for {token.gateway}, not for {address}")
    _check_versions(token)
    if not answers(parse_endpoint(f"tcp://{token.ray}")):
        raise ClusterProblem(
            f"Ray's head does not answer at {token.ray}: does `pie-py cluster up` run there, and is"
            " the token the one that it has written last?"
        )
    gpus = _gpus()
    size = ServerConfig.model_validate(token.server).tensor_parallel_size
    if nodes is None:
        nodes = max(1, gpus // size)
    if gpus and nodes * size > gpus:
        raise ClusterProblem(
            f"{nodes} nodes of {size} GPUs each need {nodes * size}; this machine has {gpus}"
        )
    folder = folder.absolute()
    with _locked(folder):
        _check_none_runs(folder)
        machine = Machine(role="nodes", host=host, nodes=nodes, shares_data=False, gpus=gpus)
        try:
            return _add_nodes(folder, token, machine, say)
        except BaseException:
            down(folder)
            raise


def nodes_of(token: Token, folder: Path) -> list[NodeFacts]:
    """All nodes, as the directory sees them.

    Raises:
        ClusterProblem: if it does not answer.
    """
    with _directory(token, folder) as directory:
        answer = directory.ask(Nodes(directory.next_number), ASK_SECONDS)
        assert isinstance(answer, NodeList)
        return answer.nodes


def drain(token: Token, folder: Path, node: str, seconds: float) -> None:
    """Has a node take no more, and end when it is empty or after so many seconds.

    Raises:
        ClusterProblem: if it cannot be drained, or the directory does not answer.
    """
    with _directory(token, folder) as directory:
        directory.ask(Drain(directory.next_number, node, seconds), ASK_SECONDS)


def down(folder: Path) -> bool:
    """Ends what this machine runs of a cluster. Returns whether anything ran.

    Raises:
        ClusterProblem: if something does not end.
    """
    ran = False
    for each in (folder / "nodes", folder):
        keeper = _keeper(each)
        if keeper is None:
            continue
        ran = True
        keeper.send_signal(signal.SIGTERM)
        try:
            keeper.wait(STOP_SECONDS)
        except psutil.TimeoutExpired:
            raise ClusterProblem(
                f"process {keeper.pid} does not end within {STOP_SECONDS:g} s; see {each / 'logs'}"
            ) from None
        (each / "keeper.json").unlink(missing_ok=True)
        _await_nodes(each)
    return ran


def _await_nodes(folder: Path) -> None:
    """Waits for a machine's nodes, which end when they see that their actors have."""
    with suppress(ClusterProblem):
        token = Token.read(folder / "token.json")
        named = f'"directory":"{token.directory}"'
        nodes = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                line = " ".join(process.cmdline())
                if named in line and any(f'"node":"{n}"' in line for n in Names(folder).read()):
                    nodes.append(process)
        for process in psutil.wait_procs(nodes, NODE_SECONDS)[1]:
            with suppress(psutil.NoSuchProcess):
                process.kill()


def http_url(folder: Path) -> str | None:
    """Where the cluster of a head's folder serves HTTP; None if it does not."""
    with suppress(OSError, ValidationError):
        machine = Machine.model_validate_json((folder / STATE_FILE).read_text())
        if machine.gateway is not None:
            url: str | None = _told(folder / "logs" / "http.log").get("endpoint")
            return url
    return None


def advice(node: NodeFacts) -> str:
    """What is wrong with a node and what to do; empty if nothing is."""
    match node.state:
        case "silent":
            return f"says nothing for {node.silent_seconds:.0f} s: look at its machine"
        case "starting" if node.reason:
            return f"starts again: {node.reason}"
        case "starting":
            return f"loads its model for {node.silent_seconds:.0f} s"
        case "draining":
            return f"ends when its {node.instances} instances have"
    return ""


# Checks


def _check_ray() -> None:
    try:
        version("ray")
    except PackageNotFoundError:
        raise ClusterProblem(
            "clusters need Ray, which is not installed: pip install 'pie-py[cluster]'"
        ) from None


def versions() -> dict[str, str]:
    """What must be the same on all machines of a cluster."""
    return {
        "pie_py": __version__,
        "contract": contract_version(),
        "Ray": version("ray"),
        "Python": ".".join(platform.python_version_tuple()[:2]),
    }


def _check_versions(token: Token) -> None:
    for name, ours in versions().items():
        theirs = token.versions.get(name, "another")
        if ours != theirs:
            raise ClusterProblem(
                f"this machine has {name} {ours}, the cluster {theirs}: install the same here"
            )


def _check_none_runs(folder: Path) -> None:
    if _keeper(folder) is not None:
        raise ClusterProblem(
            f"this machine runs a part of a cluster in {folder} already; `pie-py cluster down"
            f" --folder {folder}` ends it"
        )


def _gpus() -> int:
    found = Path("/proc/driver/nvidia/gpus")
    return len(list(found.iterdir())) if found.is_dir() else 0


def _endpoint(text: str, what: str) -> Endpoint:
    try:
        endpoint = parse_endpoint(text)
    except BadEndpoint as error:
        raise ClusterProblem(f"{what}: {error}") from None
    if endpoint.host is None:
        raise ClusterProblem(f"{what}: {text} is reached from this machine alone; give tcp://")
    return endpoint


# Parts


def _token(config: ClusterConfig, folder: Path) -> Token:
    """The token of a new cluster, or of the one that was here before with the same addresses."""
    gateway = _endpoint(config.endpoint, "endpoint")
    former = None
    with suppress(ClusterProblem):
        former = Token.read(folder / "token.json")
    server = ServerConfig.model_validate(config.server)
    if "data_folder" not in config.server:
        server = server.model_copy(update={"data_folder": folder / "data"})
    inside = parse_endpoint(f"tcp://{config.host}:1").is_loopback and gateway.is_loopback
    if not inside:
        raise ClusterProblem(
            "clusters of several machines are not served yet: nodes of other machines do not know"
            " the users' keys. Give loopback addresses, as tcp://127.0.0.1:7743"
        )
    ports = iter(_free_ports(config.host, 3))
    gateway_text = config.endpoint
    if gateway_text.endswith(":*"):
        gateway_text = f"{gateway_text[:-1]}{next(ports)}"
    elif answers(gateway):
        raise ClusterProblem(f"{gateway_text} is in use; choose another endpoint")
    ray = f"{config.host}:{config.ray_port or next(ports)}"
    directory = f"tcp://{config.host}:{config.directory_port or next(ports)}"
    token = Token(
        gateway=gateway_text,
        directory=directory,
        ray=ray,
        ray_token=secrets.token_hex(32),
        versions=versions(),
        server=json.loads(server.model_dump_json(exclude={"endpoint", "cluster"})),
    )
    if former is not None and former.server == token.server and not config.endpoint.endswith(":*"):
        # Machines that have joined find the cluster again.
        kept = {"ray_token": former.ray_token}
        if not config.ray_port:
            kept["ray"] = former.ray
        if not config.directory_port:
            kept["directory"] = former.directory
        token = token.model_copy(update=kept)
    for name, text in (("directory_port", token.directory), ("ray_port", f"tcp://{token.ray}")):
        if answers(parse_endpoint(text)):
            raise ClusterProblem(f"{text.removeprefix('tcp://')} is in use; choose another {name}")
    return token


def _add_nodes(
    folder: Path, token: Token, machine: Machine, say: Callable[[str], None]
) -> list[str]:
    """Starts this machine's part, and waits until its nodes serve."""
    folder.mkdir(parents=True, exist_ok=True)
    with _directory(token, folder) as directory:
        names = Names(folder).read()
        if len(names) == machine.nodes:
            _check_not_elsewhere(directory, names)
        else:
            allot = Allot(directory.next_number, machine.nodes, token.models)
            answer = directory.ask(allot, ASK_SECONDS)
            assert isinstance(answer, Allotted)
            names = answer.names
            Names(folder).write(names)
        write_private(folder / "token.json", token.model_dump_json(indent=1))  # it is let in
        _write_machine(folder, machine)
        _start_keeper(folder)
        say(f"starting {', '.join(names)}")
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end:
            time.sleep(LOOK_SECONDS)
            _check_keeper(folder)
            _check_let_in(folder)
            answer = directory.ask(Nodes(directory.next_number), ASK_SECONDS)
            assert isinstance(answer, NodeList)
            found = {node.node: node for node in answer.nodes}
            for name in names:
                if name in found and found[name].state == "starting" and found[name].reason:
                    raise ClusterProblem(f"node {name} does not start: {found[name].reason}")
            if all(name in found and found[name].state == "ready" for name in names):
                return names
    raise ClusterProblem(f"no nodes after {START_SECONDS:g} s; see {folder / 'logs'}")


def _check_let_in(folder: Path) -> None:
    """Ray tries again without end, and tells its log alone why."""
    with suppress(FileNotFoundError):
        if "InvalidAuthToken" in (folder / "logs" / "ray.log").read_text(errors="replace"):
            raise ClusterProblem(
                f"the cluster refuses the token: copy {TOKEN_FILE} again, from the folder of"
                " `pie-py cluster up`"
            )


def _check_not_elsewhere(directory: Directory, names: list[str]) -> None:
    """Nodes of a folder that serve while nothing runs in it are those of a copy of the folder."""
    end = time.monotonic() + FORGET_SECONDS
    while True:
        answer = directory.ask(Nodes(directory.next_number), ASK_SECONDS)
        assert isinstance(answer, NodeList)
        serve = [
            n.node for n in answer.nodes if n.node in names and n.state in ("ready", "draining")
        ]
        if not serve:
            return
        if time.monotonic() > end:
            raise ClusterProblem(
                f"{', '.join(serve)} of this folder serves already, from the folder of which this"
                " is a copy: join with an empty folder"
            )
        time.sleep(LOOK_SECONDS)


def _wait_for_head(folder: Path, token: Token, also: set[str]) -> None:
    end = time.monotonic() + START_SECONDS
    ray = parse_endpoint(f"tcp://{token.ray}")
    waiting = {"directory", "gateway", "ray", *also}
    while waiting and time.monotonic() < end:
        time.sleep(LOOK_SECONDS)
        _check_keeper(folder)
        # What answers at their addresses may be another cluster's that was started meanwhile.
        for name in waiting - {"ray"}:
            told = _told(folder / "logs" / f"{name}.log")
            if "error" in told:
                raise ClusterProblem(f"the {name} does not start: {told['error']}")
            if "ready" in told:
                waiting.remove(name)
        if "ray" in waiting and answers(ray):
            waiting.remove("ray")
    if waiting:
        names = ", ".join(sorted(waiting))
        raise ClusterProblem(f"{names} did not start; see {folder / 'logs'}")


def _told(log: Path) -> dict[str, Any]:
    """What a process has said last of its start: "ready" or "error"; nothing yet if it is empty."""
    with suppress(OSError):
        for line in reversed(log.read_text(errors="replace").splitlines()):
            if line.startswith(('{"error"', '{"ready"')):
                return dict(json.loads(line))
    return {}


def _write_machine(folder: Path, machine: Machine) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_private(folder / STATE_FILE, machine.model_dump_json(indent=1))


def _start_keeper(folder: Path) -> None:
    """Starts the process that keeps this machine's part; it outlives this one."""
    logs = folder / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    for old in logs.glob("*.log"):
        old.unlink()
    with (logs / "keeper.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "pie_py.cluster.machine", str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    told = {"pid": process.pid, "began": _birth(process.pid)}
    write_private(folder / "keeper.json", json.dumps(told))


def _birth(pid: int) -> str:
    """When a process began: the machine's start, and ticks since then, for its clock may jump.

    Raises:
        OSError: if there is no such process.
    """
    ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]  # proc(5)
    return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {ticks}"


def _keeper(folder: Path) -> psutil.Process | None:
    """The process that keeps a folder's part, if it runs."""
    try:
        told = json.loads((folder / "keeper.json").read_text())
        if _birth(told["pid"]) != told["began"]:
            return None
        process = psutil.Process(told["pid"])
        return process if process.status() != psutil.STATUS_ZOMBIE else None
    except (OSError, ValueError, KeyError, psutil.NoSuchProcess):
        return None


def _check_keeper(folder: Path) -> None:
    if _keeper(folder) is None:
        log = (folder / "logs" / "keeper.log").read_text(errors="replace").strip()
        raise ClusterProblem(f"what keeps this machine has ended: {log[-500:]}")


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
def _directory(token: Token, folder: Path) -> Iterator[Directory]:
    try:
        keys = member_keys_file(folder, token)
        pair = None if keys is None else read_member_pair(keys)
        with Directory(token.directory, pair) as directory:
            yield directory
    except (DirectoryAway, DirectoryRefuses, KeyProblem) as error:
        raise ClusterProblem(str(error)) from None


def _free_ports(host: str, count: int) -> list[int]:
    """Ports that nothing listens on now."""
    sockets = [socket.socket(socket.AF_INET) for _ in range(count)]
    try:
        for each in sockets:
            each.bind((host, 0))
        return [int(each.getsockname()[1]) for each in sockets]
    except OSError as error:
        raise ClusterProblem(f"host {host} is none of this machine: {error.strerror}") from None
    finally:
        for each in sockets:
            each.close()
