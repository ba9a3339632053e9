"""A real cluster on loopback: Ray's head and agents, gateway, nodes with a worker that
answers at once. What tests kill they find by its process identifier.
"""

from __future__ import annotations

import itertools
import json
import socket
import threading
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import psutil
from click.testing import CliRunner, Result

from pie_cluster.machines import operate
from pie_cluster.machines.keepers import processes_of as kept_processes
from pie_cluster.machines.machine import ray_folder
from pie_cluster.machines.settings import ClusterConfig, Token, directory_of
from pie_cluster.wire.messages import NodeFacts
from pie_py.cli import main
from pie_py.client.sync import Client, Instance
from pie_py.config.endpoint import answers, parse_endpoint
from pie_py.config.gateway import GatewayConfig
from support.child_processes import command_line

ROOT = Path(__file__).parent.parent.parent
MODEL = ROOT / "inference/pie_inference/embedded/pie-tiny"
ECHO = b"""
from inferlet import session


async def main(args):
    while (message := await session.receive()) != "end":
        session.send(f"{message}!")
    return "done"
"""
SERVER: dict[str, Any] = {
    "models": [{"source": str(MODEL)}],
    "worker_module": "benchmarks.instant_worker",
    "spare_instances": 2,
    "stop_seconds": 0,
    "http": {"allow": ["127.0.0.1:*"], "allow_networks": ["127.0.0.0/8"]},
    "log": {"level": "warning"},
}
INSTANT = f"""\
[server]
worker_module = "benchmarks.instant_worker"
spare_instances = 2
[[server.models]]
source = "{MODEL}"
"""
FREE = "tcp://127.0.0.1:*"
WAIT_SECONDS = 40.0
NUMBERS = itertools.count()  # of programs


class Cluster:
    """A cluster in a short folder; a second machine joins with a folder of its own."""

    def __init__(self, folder: Path, database: str = "") -> None:
        """Two nodes at first; a store in a database if one is named."""
        self.folder = folder
        server = {**SERVER, "store": {"database": database}}
        self.config = ClusterConfig(
            endpoint="tcp://127.0.0.1:*",
            nodes=2,
            folder=folder,
            gateway=GatewayConfig(http="127.0.0.1:0"),
            server=server,
        )
        self.token: Token | None = None
        self.others: list[Path] = []

    def __enter__(self) -> Self:
        self.token = operate.up(self.config, lambda text: None)
        return self

    def __exit__(self, *_: object) -> None:
        for other in self.others:
            operate.down(other)
        operate.down(self.folder)

    @property
    def endpoint(self) -> str:
        assert self.token is not None
        return self.token.gateway

    @property
    def url(self) -> str:
        """Where it serves HTTP."""
        url = operate.http_url(self.folder)
        assert url is not None
        return url

    def client(self, **options: Any) -> Client:
        """A sync client, to be used in a `with`."""
        return Client(self.endpoint, **options)

    def join(
        self,
        folder: Path,
        nodes: int = 1,
        gateway: str | None = None,
        database: str | None = None,
        http: str | None = None,
    ) -> list[str]:
        """Another machine, as far as its folder tells; it may know other ways to the gateway and to
        the database.
        """
        token = self.folder / "token.json"
        if gateway is not None or database is not None:
            facts = json.loads(token.read_text())
            facts["gateway"] = gateway or facts["gateway"]
            if database is not None:
                facts["server"]["store"]["database"] = database
            token = folder.with_suffix(".token")
            token.write_text(json.dumps(facts))
        address = gateway or self.endpoint
        names = operate.join(address, token, folder, nodes, "127.0.0.1", lambda text: None, http)
        self.others.append(folder)
        return names

    def drained(self, node: str) -> None:
        """Drains a node, and waits until it has gone."""
        assert self.token is not None
        directory_of(self.token).ask("drain", node=node, seconds=0)
        wait_for(lambda: self.state(node) == "gone")

    def leave(self, folder: Path) -> None:
        """A machine goes."""
        operate.down(folder)
        self.others.remove(folder)

    # What runs

    def nodes(self) -> dict[str, NodeFacts]:
        """All nodes by name."""
        assert self.token is not None
        return {node.node: node for node in directory_of(self.token).nodes()}

    def control(self, node: str) -> psutil.Process:
        """The control process of a node's present life."""
        wanted = f'"node":"{node}"'
        for process in self.processes():
            line = command_line(process)
            if "-m pie_control --with-parent" in line and wanted in line:
                return process
        raise AssertionError(f"no control process of {node} runs")

    def kept(self, name: str, folder: Path | None = None) -> psutil.Process:
        """A process of a machine's keeper: "gateway", "http", "ray", "agent"."""
        return psutil.Process(kept_processes(folder or self.folder)[name]["pid"])

    def started_again(self, name: str, former: psutil.Process) -> None:
        """Waits until a keeper has started another process."""

        def again() -> bool:
            pid = kept_processes(self.folder).get(name, {}).get("pid", former.pid)
            return bool(pid != former.pid)

        wait_for(again)
        if name == "gateway":  # those that connect for the first time do not wait for one
            wait_for(lambda: answers(parse_endpoint(self.endpoint)))

    def processes(self) -> list[psutil.Process]:
        """All that live and name the folder, or that of its Ray."""
        return processes_of(self.folder) + processes_of(ray_folder(self.folder))

    def lives_again(self, former: str | None, seconds: float = WAIT_SECONDS) -> None:
        """Waits until a later life of a node takes launches."""
        assert former is not None
        name, _, incarnation = former.partition(".")

        def again() -> bool:
            node = self.nodes().get(name)
            return (
                node is not None and node.state == "ready" and node.incarnation > int(incarnation)
            )

        wait_for(again, seconds)

    def serves(self, node: str) -> bool:
        """Whether it takes launches."""
        return self.state(node) == "ready"

    def state(self, node: str) -> str:
        """Of a node; "gone" if the directory does not know it, or that it is lost."""
        found = self.nodes().get(node)
        return "gone" if found is None or found.state == "lost" else found.state


class Wire:
    """A way to an endpoint that can be cut: what is sent waits, and no connection is closed."""

    def __init__(self, endpoint: str, host: str = "127.0.0.1") -> None:
        """To `tcp://HOST:PORT`, or to the path of a Unix socket; from an address of its own."""
        self._to = endpoint
        self._whole = threading.Event()
        self._whole.set()
        self._listener = socket.create_server((host, 0))
        self.endpoint = f"tcp://{host}:{self._listener.getsockname()[1]}"
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._whole.set()
        for each in (self._listener, *self._sockets):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def to(self, database: str) -> str:
        """The address of a database by this way to its server."""
        name = database.partition("@")[2].partition("?")[0]
        return f"postgresql://postgres@{self.endpoint.removeprefix('tcp://')}{name}"

    def cut(self) -> None:
        """From now on nothing comes through."""
        self._whole.clear()

    def mend(self) -> None:
        """What waits comes through."""
        self._whole.set()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near = self._listener.accept()[0]
                try:
                    far = _connected(self._to)
                except OSError:  # nothing listens there now
                    near.close()
                    continue
                self._sockets += near, far
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=self._carry, args=pair, daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while part := source.recv(65536):
                self._whole.wait()
                sink.sendall(part)
            sink.shutdown(socket.SHUT_RDWR)


def settings_of(file: Path, folder: Path, endpoint: str = FREE, more: str = "") -> list[str]:
    """Writes `cluster.toml`; what `up` takes."""
    file.write_text(f'endpoint = "{endpoint}"\nfolder = "{folder}"\n{more}')
    return ["--config", str(file)]


def run(*args: str) -> Result:
    """`pie-py cluster`, in this process."""
    return CliRunner().invoke(main, ["cluster", *args])


def echoes(instance: Instance, message: str = "here") -> bool:
    """Whether an instance of `ECHO` answers."""
    instance.send(message)
    return instance.receive() == f"{message}!"


def chat_at(url: str, model: str, text: str, key: str = "") -> None:
    """A chat of one token over HTTP."""
    body = {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": 1}
    headers = {"content-type": "application/json"} | ({"x-api-key": key} if key else {})
    data = json.dumps(body).encode()
    request = urllib.request.Request(f"{url}/v1/chat/completions", data, headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert json.load(answer)["usage"]["completion_tokens"] == 1


def launched_on(client: Client, node: str, mark: str = "") -> Instance:
    """An instance of `ECHO` on a node, of a program that no node has: launches follow its pages."""
    end = time.monotonic() + WAIT_SECONDS  # a node that comes back may be started twice
    while time.monotonic() < end:
        new = client.upload(ECHO + f"# {mark} {next(NUMBERS)}".encode(), name="echo")
        instance = client.launch(new)
        if (instance.node or "").split(".")[0] == node:
            return instance
        instance.cancel()
    raise AssertionError(f"no launch went to {node}")


def _connected(endpoint: str) -> socket.socket:
    if endpoint.startswith("/"):
        unix = socket.socket(socket.AF_UNIX)
        unix.connect(endpoint)
        return unix
    host, port = endpoint.removeprefix("tcp://").split(":")
    return socket.create_connection((host, int(port)))


def processes_of(folder: Path) -> list[psutil.Process]:
    """All that live and name a folder: Ray's too."""
    return [p for p in psutil.process_iter() if str(folder) in command_line(p)]


def wait_for(condition: Callable[[], bool], seconds: float = WAIT_SECONDS) -> float:
    """Waits until a condition holds; returns the seconds that took."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > seconds:
            raise AssertionError(f"not within {seconds:g} s")
        time.sleep(0.05)
    return time.monotonic() - began
