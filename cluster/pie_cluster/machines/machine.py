"""`python -m pie_cluster.machines.machine FOLDER`: keeps what a machine runs of a cluster.

On the head that is the store of Ray's head, and the gateway; where nodes are, an agent of Ray, or
in a Ray that was there before what has it start nodes (`foreign.py`); on either, HTTP. What has
ended is started again. Nodes are Ray's to start: see `actors.py`. An agent outlives a keeper that
is killed, with its nodes, and the next keeper takes it over.
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

from pie_cluster.config import MemberConfig
from pie_cluster.directory.asking import DirectoryAway, DirectoryRefuses
from pie_cluster.machines.keepers import PROCESSES, end_agent, left_agent, note_agent
from pie_cluster.machines.settings import (
    Token,
    directory_of,
    machine_resource,
    member_keys_file,
    ray_environment,
    read_folder,
    write_private,
)
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
STOP_SECONDS = 15.0  # for Ray's processes to end
FORGET_SECONDS = 10.0  # for Ray to end this machine's nodes; its head may be away


class MachineKeeper:
    """The processes of one machine."""

    def __init__(self, folder: Path) -> None:
        """Reads the folder; starts nothing yet."""
        self._folder = folder
        self._token, self._machine = read_folder(folder)
        self._keys = member_keys_file(folder, self._token)
        self._stopping = False
        self._kept: dict[str, Supervisor[Child]] = {}
        self._said: dict[str, dict[str, Any]] = {}  # by process: that it is ready, or an error
        self._placing: Child | None = None
        self._users: CopiedUsers | None = None
        if self._machine.gateway and self._machine.role != "head" and self._token.is_encrypted:
            self._users = CopiedUsers(self._token, folder / "http")
            threading.Thread(target=self._users.follow, daemon=True).start()

    def run(self) -> None:
        """Keeps them until SIGTERM, then ends them all."""
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGINT, self._stop)
        for name, start in self._starts().items():
            self._keep(name, start)
        while not self._stopping:
            self._write_processes()
            time.sleep(LOOK_SECONDS)
        if self._placing is not None:
            self._placing.kill()
        end = time.monotonic() + STOP_SECONDS
        for name, kept in reversed(self._kept.items()):
            if name == "agent":
                self._forget_nodes()
            kept.ask_to_end()
            if name in ("agent", "ray") and kept.child is not None:
                end_agent(kept.child)  # Ray would wait for actors, and they die with the agent
        for kept in self._kept.values():
            kept.stop(max(0.1, end - time.monotonic()))

    def _keep(self, name: str, start: Callable[[], Child]) -> None:
        is_agent = name == "agent"
        self._kept[name] = Supervisor(
            name,
            start,
            partial(_on_lost, name),
            attend=self._place if is_agent else partial(self._hear, name),
            child=left_agent(self._folder) if is_agent else None,
            backoff=Backoff(first=FIRST_PAUSE, most=MOST_PAUSE),
        )

    def _hear(self, name: str, child: Child) -> None:
        """Hears of a process whether it serves, until it ends."""
        with suppress(EOFError):
            while name != "ray" and (said := child.next_line()) is not None:
                if said.keys() & {"ready", "error"}:
                    self._said[name] = said
        child.wait()

    def _place(self, agent: Child) -> None:
        """Has Ray place this machine's nodes, once per start of its agent, which may be a left one;
        returns when that has ended.
        """
        backoff, placed = Backoff(first=FIRST_PAUSE, most=MOST_PAUSE), False
        while not (placed or self._stopping or agent.status is not None):
            backoff.start()
            with suppress(OSError), self._of_ray(PLACING, ACTORS, str(self._folder)) as placing:
                self._placing = placing
                self._hear(PLACING, placing)
                placed = placing.status == 0
            if not placed:
                time.sleep(backoff.pause())
        agent.wait()

    def _starts(self) -> dict[str, Callable[[], Child]]:
        """How each of its processes is started, Ray's first."""
        starts: dict[str, Callable[[], Child]] = {}
        has_own_ray, is_head = not self._token.namespace, self._machine.role == "head"
        if is_head and has_own_ray:
            starts["ray"] = self._ray
        if is_head:
            starts["gateway"] = self._gateway
        if self._machine.room and has_own_ray:
            starts["agent"] = self._agent
        elif self._machine.room:
            starts[PLACING] = self._foreign
        if self._machine.gateway is not None:
            starts["http"] = self._http
        return starts

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
            leaving = self._of_ray("leaving", ACTORS, str(self._folder), "forget")
            while leaving.status is None and time.monotonic() < end:
                time.sleep(LOOK_SECONDS)
            leaving.kill()

    def _write_processes(self) -> None:
        """Writes which processes run, and what they have said of their start."""
        told = {}
        for name, kept in self._kept.items():
            pid = {"pid": child.pid} if (child := kept.child) is not None else {}
            told[name] = {**pid, **self._said.get(name, {})}
        if PLACING in self._said:
            told.setdefault(PLACING, self._said[PLACING])
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

    def _agent(self) -> Child:
        self._wait(lambda: answers(parse_endpoint(f"tcp://{self._token.ray}")))
        room = {"pie_node": self._machine.room, machine_resource(self._folder, self._machine): 1}
        child = self._ray_start(
            "agent",
            f"--address={self._token.ray}",
            "--num-cpus=1",
            f"--num-gpus={self._machine.gpus}",
            f"--resources={json.dumps(room)}",
            "--include-log-monitor=false",  # it sends to drivers; ours do not listen
            f"--object-store-memory={100 << 20}",
        )
        with suppress(OSError):  # a full disk
            note_agent(self._folder, child.pid)
        return child

    def _ray_start(self, name: str, *options: str) -> Child:
        always = ("--block", "--disable-usage-stats", f"--node-ip-address={self._machine.host}")
        folder = ("--temp-dir", str(ray_folder(self._folder)))
        module, env = "pie_cluster.machines.ray_start", self._ray_environment()
        return self._child(name, env, module, "start", *always, *folder, *options, reports=False)

    def _foreign(self) -> Child:
        return self._child(PLACING, None, "pie_cluster.machines.foreign", str(self._folder))

    def _gateway(self) -> Child:
        member = MemberConfig(
            directory=self._token.directory,
            folder=self._folder,
            models=self._token.models,
            policy=self._machine.policy,
            keys=self._keys,
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
        update: dict[str, object] = {
            "endpoint": self._token.gateway,
            "gateway": self._machine.gateway,
        }
        if self._users is not None:
            update["data_folder"] = self._folder / "http"
            users = self._users
            self._wait(lambda: users.known)
        config = ServerConfig.model_validate(self._token.server).model_copy(update=update)
        return self._module("http", "pie_gateway", config.model_dump_json())

    def _module(self, name: str, module: str, config: str) -> Child:
        return self._child(name, None, module, "--with-parent", "--config", config)

    def _of_ray(self, name: str, module: str, *arguments: str) -> Child:
        return self._child(name, self._ray_environment(), module, *arguments)

    def _ray_environment(self) -> dict[str, str]:
        return ray_environment(self._folder, self._token, os.environ)

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


class CopiedUsers:
    """Users' keys on a machine that serves HTTP, as the head has them: public ones, in a folder of
    the same form, where an HTTP gateway looks them up.
    """

    def __init__(self, token: Token, data_folder: Path) -> None:
        """Copies nothing yet."""
        self.known = False
        self._directory = directory_of(token)
        self._server = token.gateway_key
        self._folder = data_folder
        self._changes = -1

    def follow(self) -> None:
        """Follows what is added and removed at the head, without end."""
        while True:
            try:
                self._look()
            except (DirectoryAway, DirectoryRefuses, OSError) as error:  # what is known counts
                log.warning("the users' keys are not copied: %s", error)
            time.sleep(ASK_SECONDS)

    def _look(self) -> None:
        told = self._directory.ask("users", changes=self._changes)
        if told is None:
            return
        # Of the server's pair clients need the public half alone.
        server = {"public": self._server, "secret": ""}
        write_private(self._folder / "keys/server.json", json.dumps(server))
        KeyStore(self._folder).become(told["users"])
        self._changes, self.known = told["changes"], True


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
