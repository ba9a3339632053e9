"""`python -m pie_cluster.machines.machine FOLDER`: keeps what a machine runs of a cluster.

On the head that is the store of Ray's head, and the gateway; where nodes are, an agent of Ray, or
in a Ray that was there before what has it start nodes; on either, HTTP. What has ended is started
again. Nodes are Ray's to start: see `actors.py`. An agent outlives a keeper that is killed, with
its nodes, and the next keeper takes it over.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
import psutil

from pie_cluster.config import ClusterProblem, MemberConfig
from pie_cluster.machines.keepers import AGENT, PROCESSES, end_agent, left_agent, note, runs
from pie_cluster.machines.settings import (
    TOKEN_FILE,
    Token,
    directory_of,
    machine_resource,
    ray_environment,
    read_folder,
    write_private,
)
from pie_cluster.wire.messages import Document
from pie_py.config.endpoint import answers, parse_endpoint
from pie_py.config.keys import KeyStore
from pie_py.config.processes import Backoff, Child, Supervisor
from pie_py.config.server import ServerConfig
from pie_py.config.whole_files import write_whole

log = logging.getLogger("pie.machine")

ACTORS, PLACING = "pie_cluster.machines.actors", "placing"
LOOK_SECONDS = 0.05
ASK_SECONDS = 1.0  # between two questions for users' keys
FIRST_PAUSE, MOST_PAUSE = 0.05, 5.0  # before a process is started again
LONGEST_PATH = 40  # of Ray's folder: with what Ray adds, sockets have 107 at most
MOST_NODES = 1024  # that Ray lets a machine have
STOP_SECONDS = 15.0  # for Ray's processes to end
FORGET_SECONDS = 10.0  # for Ray to end this machine's nodes; its head may be away


class MachineKeeper:
    """The processes of one machine."""

    def __init__(self, folder: Path) -> None:
        """Reads the folder; starts nothing yet."""
        self._folder = folder
        self._token, self._machine = read_folder(folder)
        self._stopping = False
        self._kept: dict[str, Supervisor[Child]] = {}
        self._said: dict[str, dict[str, Any]] = {}  # by process: that it is ready, or an error
        self._placing: Child | None = None
        self._agent: psutil.Process | None = None
        self._starting = threading.Lock()  # an agent, which would outlive who does not know it yet
        self._users = -1  # the version of users' keys that HTTP has here

    def run(self) -> None:
        """Keeps them until SIGTERM, then ends them all."""
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGINT, self._stop)
        has_own_ray = not self._token.namespace
        for name, (is_here, start) in self._starts().items():
            if is_here:
                pauses = Backoff(first=FIRST_PAUSE, most=MOST_PAUSE)
                hear, lost = partial(self._hear, name), partial(_on_lost, name)
                self._kept[name] = Supervisor(name, start, lost, attend=hear, backoff=pauses)
        if self._machine.nodes and has_own_ray:
            threading.Thread(target=self._keep_agent, daemon=True).start()
        looked = 0.0
        while not self._stopping:
            if self._copies_users() and time.monotonic() - looked > ASK_SECONDS:
                try:
                    self._users = copy_users(self._token, self._folder / "http", self._users)
                except (ClusterProblem, OSError) as error:  # what is known counts
                    log.warning("the users' keys are not copied: %s", error)
                looked = time.monotonic()
            self._write_processes()
            time.sleep(LOOK_SECONDS)
        if self._placing is not None:
            self._placing.kill()
        end = time.monotonic() + STOP_SECONDS
        with self._starting:
            agent = self._agent
        if agent is not None:
            self._forget_nodes()
            end_agent(agent)  # Ray would wait for actors, and they die with the agent
        for name, kept in reversed(self._kept.items()):
            kept.ask_to_end()
            if name == "ray" and kept.child is not None:
                kept.child.kill()
        for kept in self._kept.values():
            kept.stop(max(0.1, end - time.monotonic()))

    def _keep_agent(self) -> None:
        """Keeps the agent of Ray, at first one that a killed keeper has left, with the nodes."""
        pauses = Backoff(first=FIRST_PAUSE, most=MOST_PAUSE)
        while not self._stopping:
            pauses.start()
            try:
                self._agent = left_agent(self._folder) or self._started_agent()
                self._place(self._agent)
                reason = "it has ended"
            except (OSError, psutil.NoSuchProcess) as error:
                reason = str(error)
            pause = pauses.pause()
            _on_lost("agent", reason, pause)
            time.sleep(pause)

    def _hear(self, name: str, child: Child) -> None:
        """Hears of a process whether it serves, until it ends."""
        with suppress(EOFError):
            while name != "ray" and (said := child.next_line()) is not None:
                if said.keys() & {"ready", "error"}:
                    self._said[name] = said
        child.wait()

    def _place(self, agent: psutil.Process) -> None:
        """Has Ray place this machine's nodes, once per start of its agent, which may be a left one;
        returns when that has ended.
        """
        backoff, placed = Backoff(first=FIRST_PAUSE, most=MOST_PAUSE), False
        while not (placed or self._stopping) and runs(agent):
            backoff.start()
            with suppress(OSError), self._actors(PLACING) as placing:
                self._placing = placing
                self._hear(PLACING, placing)
                placed = placing.status == 0
            if not placed:
                time.sleep(backoff.pause())
        agent.wait()

    def _starts(self) -> dict[str, tuple[bool, Callable[[], Child]]]:
        """Its processes beside the agent: whether they are here, and how they are started."""
        machine, has_own_ray = self._machine, not self._token.namespace
        return {
            "ray": (machine.is_head and has_own_ray, self._ray),
            "gateway": (machine.is_head, self._gateway),
            PLACING: (machine.nodes > 0 and not has_own_ray, partial(self._actors, PLACING)),
            "http": (machine.gateway is not None, self._http),
        }

    def _copies_users(self) -> bool:
        machine = self._machine
        return machine.gateway is not None and not machine.is_head and self._token.is_encrypted

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._stopping = True

    def _wait(self, condition: Callable[[], bool]) -> None:
        while not condition():
            if self._stopping:
                raise InterruptedError
            time.sleep(LOOK_SECONDS)

    def _forget_nodes(self) -> None:
        """Has Ray end this machine's nodes, if its head is there."""
        with suppress(OSError):
            end = time.monotonic() + FORGET_SECONDS
            leaving = self._actors("leaving", "forget")
            while leaving.status is None and time.monotonic() < end:
                time.sleep(LOOK_SECONDS)
            leaving.kill()

    def _write_processes(self) -> None:
        """Writes which processes run, and what they have said of their start."""
        told = {}
        for name, kept in self._kept.items():
            pid = {"pid": child.pid} if (child := kept.child) is not None else {}
            told[name] = {**pid, **self._said.get(name, {})}
        if self._agent is not None:
            told["agent"] = {"pid": self._agent.pid}
            told[PLACING] = self._said.get(PLACING, {})
        text = json.dumps(told)
        path = self._folder / PROCESSES
        if not path.exists() or path.read_text() != text:
            with suppress(OSError):  # a full disk: it is written once there is room
                write_whole(path, text.encode())

    def _ray(self) -> Child:
        port = self._token.ray.rpartition(":")[2]
        (self._folder / "gcs").mkdir(exist_ok=True)
        # Left by a head that was killed; Ray would take an agent of ours for it.
        (ray_folder(self._folder) / "ray_current_cluster").unlink(missing_ok=True)
        return self._ray_start("ray", "--head", f"--port={port}")

    def _started_agent(self) -> psutil.Process:
        self._wait(lambda: answers(parse_endpoint(f"tcp://{self._token.ray}")))
        own = machine_resource(self._folder, self._machine)
        options = (
            f"--address={self._token.ray}",
            "--num-cpus=1",
            f"--num-gpus={self._machine.gpus}",
            f"--resources={json.dumps({own: MOST_NODES})}",
            "--include-log-monitor=false",  # it sends to drivers; ours do not listen
            f"--object-store-memory={100 << 20}",
        )
        with self._starting:
            if self._stopping:
                raise InterruptedError
            child = self._ray_start("agent", *options)
            with suppress(OSError):  # a full disk
                note(self._folder / AGENT, child.pid)
            self._agent = psutil.Process(child.pid)
        return self._agent

    def _ray_start(self, name: str, *options: str) -> Child:
        always = ("--block", "--disable-usage-stats", f"--node-ip-address={self._machine.host}")
        folder = ("--temp-dir", str(ray_folder(self._folder)))
        module, env = "pie_cluster.machines.ray_start", ray_environment(self._folder, self._token)
        return self._child(name, env, module, "start", *always, *folder, *options, reports=False)

    def _gateway(self) -> Child:
        member = MemberConfig(
            folder=self._folder,
            cluster=self._token.cluster,
            token=self._folder / TOKEN_FILE if self._token.is_encrypted else None,
        )
        config = ServerConfig.model_validate(self._token.server).model_copy(
            update={
                "endpoint": self._token.gateway,
                "extension": member.extension(),
                "max_instances": 1,  # it runs none
                "spare_instances": 0,
            }
        )
        return self._module("gateway", "pie_cluster.gateway", config.model_dump_json())

    def _http(self) -> Child:
        gateway = self._machine.gateway
        assert gateway is not None
        if (said := self._said.get("http")) is not None and "endpoint" in said:
            address = str(said["endpoint"]).rpartition("//")[2]
            gateway = gateway.model_copy(update={"http": address})  # where it was before
        update: dict[str, object] = {"endpoint": self._token.gateway, "gateway": gateway}
        if self._copies_users():
            update["data_folder"] = self._folder / "http"
            self._wait(lambda: self._users != -1)
        config = ServerConfig.model_validate(self._token.server).model_copy(update=update)
        return self._module("http", "pie_gateway", config.model_dump_json())

    def _module(self, name: str, module: str, config: str) -> Child:
        return self._child(name, None, module, "--with-parent", "--config", config)

    def _actors(self, name: str, *arguments: str) -> Child:
        env = None if self._token.namespace else ray_environment(self._folder, self._token)
        return self._child(name, env, ACTORS, str(self._folder), *arguments)

    def _child(
        self,
        name: str,
        env: dict[str, str] | None,
        module: str,
        *arguments: str,
        reports: bool = True,
    ) -> Child:
        logs = self._folder / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        return Child(module, *arguments, log=logs / f"{name}.log", env=env, reports=reports)


def copy_users(token: Token, folder: Path, version: int) -> int:
    """Has a folder know users' keys as the head does, public ones, where an HTTP gateway looks them
    up; it has this version. Returns that which it has then. Raises as the directory, or `OSError`.
    """
    told = directory_of(token).ask("document", version=version)
    if told is None:
        return version
    # Of the server's pair clients need the public half alone.
    write_private(
        folder / "keys/server.json", json.dumps({"public": token.gateway_key, "secret": ""})
    )
    KeyStore(folder).become(told["users"])
    return msgspec.convert(told, Document).version


def _on_lost(name: str, reason: str, pause: float) -> None:
    log.warning("%s was lost: %s; another starts in %g s", name, reason, pause)


def ray_folder(folder: Path) -> Path:
    """Where Ray keeps its sockets. Their paths must be short: where a cluster's folder is too deep,
    it is one of this user below `/tmp`. Raises `PermissionError` if another user has made that.
    """
    own = folder / "ray"
    if len(os.fsencode(own)) <= LONGEST_PATH:
        return own
    name = hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
    short = Path(f"/tmp/pie-ray-{name}")
    short.mkdir(mode=0o700, exist_ok=True)
    if short.lstat().st_uid != os.getuid():
        raise PermissionError(f"{short} is another user's: set a `folder` with a shorter path")
    return short / "ray"  # which Ray opens to everybody


if __name__ == "__main__":
    if sys.stdin.buffer.read(1):  # what starts it may end before it is noted down
        MachineKeeper(Path(sys.argv[1])).run()
