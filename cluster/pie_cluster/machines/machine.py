"""`python -m pie_cluster.machines.machine FOLDER`: keeps what a machine runs beside its nodes.

On the head that is Ray's head and the gateway; elsewhere one Ray agent, or in a Ray that was there
before what has it start nodes (`foreign.py`); on either, HTTP. What has ended is started again.
Nodes are Ray's to start: see `actors.py`.
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

from pie_cluster.config import MemberConfig
from pie_cluster.machines.settings import Token, machine_resource, member_keys_file, read_folder
from pie_cluster.machines.users import CopiedUsers
from pie_py.config.processes import Backoff, Child, Supervisor
from pie_py.config.server import ServerConfig
from pie_py.config.whole_files import write_whole

log = logging.getLogger("pie.machine")

LOOK_SECONDS = 0.05
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
        self._placed = 0  # starts of Ray after which nodes were placed
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
            self.keep(name, start)
        while not self._stopping:
            self._write_pids()
            time.sleep(LOOK_SECONDS)
        end = time.monotonic() + STOP_SECONDS
        for name, kept in reversed(self._kept.items()):
            if name == "ray" and self._machine.role != "head":
                self._forget_nodes()
                kept.stop(0)  # Ray's agent would wait for actors, and dies with it
            kept.ask_to_end()
        for kept in self._kept.values():
            kept.stop(max(0.1, end - time.monotonic()))

    def keep(self, name: str, start: Callable[[], Child]) -> Supervisor[Child]:
        """Keeps another process."""
        backoff = Backoff(first=FIRST_PAUSE, most=MOST_PAUSE)
        self._kept[name] = Supervisor(name, start, partial(_on_lost, name), backoff=backoff)
        return self._kept[name]

    def _starts(self) -> dict[str, Callable[[], Child]]:
        """How each of its processes is started, Ray's first."""
        starts: dict[str, Callable[[], Child]] = {}
        if not self._token.namespace:
            starts["ray"] = self._ray
        if self._machine.role != "head":
            starts["placing"] = self._foreign if self._token.namespace else self._placer
        else:
            starts["gateway"] = self._gateway
            if self._machine.autoscale is not None:
                starts["scaler"] = self._scaler
        if self._machine.gateway is not None:
            starts["http"] = self._http
        return starts

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._stopping = True

    def _placer(self) -> Child:
        """Has Ray place this machine's nodes, once per start of its agent."""
        placed = self._placed if self._placing is not None and not self._placing.status else 0
        while placed == self._kept["ray"].starts:
            if self._stopping:
                raise InterruptedError
            time.sleep(LOOK_SECONDS)
        self._placed = self._kept["ray"].starts
        self._placing = self._of_ray("placing", "pie_cluster.machines.actors", str(self._folder))
        return self._placing

    def _forget_nodes(self) -> None:
        """Has Ray end this machine's nodes, if its head is there."""
        with suppress(OSError):
            module, folder = "pie_cluster.machines.actors", str(self._folder)
            leaving, end = self._of_ray("leaving", module, folder, "forget"), time.monotonic()
            while leaving.status is None and time.monotonic() < end + FORGET_SECONDS:
                time.sleep(LOOK_SECONDS)
            leaving.kill()

    def _write_pids(self) -> None:
        """Writes which processes run, for `pie-py cluster` and for tests."""
        kept = self._kept.values()
        pids = {each.name: child.pid for each in kept if (child := each.child) is not None}
        text = json.dumps(pids)
        path = self._folder / "pids.json"
        if not path.exists() or path.read_text() != text:
            with suppress(OSError):  # a full disk: it is written once there is room
                write_whole(path, text.encode())

    def _ray(self) -> Child:
        machine, host = self._machine, self._machine.host
        options = ["--disable-usage-stats", f"--node-ip-address={host}"]
        options += ["--include-log-monitor=false"]  # it sends to drivers; ours do not listen
        if machine.role == "head":
            port = self._token.ray.rpartition(":")[2]
            options += ["--head", f"--port={port}", "--include-dashboard=false", "--num-cpus=0"]
            options += ["--num-gpus=0", f"--temp-dir={ray_folder(self._folder)}"]
            if machine.ray_autoscaling is not None:
                options += [f"--autoscaling-config={machine.ray_autoscaling}"]
            (self._folder / "gcs").mkdir(exist_ok=True)
            # Left by a head that was killed; Ray would take an agent of ours for it.
            (ray_folder(self._folder) / "ray_current_cluster").unlink(missing_ok=True)
        else:
            options += [f"--address={self._token.ray}", "--num-cpus=1"]
            options += [f"--num-gpus={machine.gpus}"]
            room = {"pie_node": machine.room, machine_resource(self._folder): 1}
            options += [f"--resources={json.dumps(room)}"]
        options += [f"--object-store-memory={100 << 20}"]
        return self._of_ray("ray", "pie_cluster.machines.ray_start", "start", "--block", *options)

    def _foreign(self) -> Child:
        return self._child("placing", None, "pie_cluster.machines.foreign", str(self._folder))

    def _scaler(self) -> Child:
        return self._of_ray("scaler", "pie_cluster.machines.scaler", str(self._folder))

    def _gateway(self) -> Child:
        member = MemberConfig(
            directory=self._token.directory,
            folder=self._folder,
            models=self._token.models,
            policy=self._machine.policy,
            relay_port=self._token.relay_port,
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
            while not self._users.known:
                if self._stopping:
                    raise InterruptedError
                time.sleep(LOOK_SECONDS)
        config = ServerConfig.model_validate(self._token.server).model_copy(update=update)
        return self._module("http", "pie_gateway", config.model_dump_json())

    def _module(self, name: str, module: str, config: str) -> Child:
        return self._child(name, None, module, "--with-parent", "--config", config)

    def _of_ray(self, name: str, module: str, *arguments: str) -> Child:
        return self._child(name, ray_environment(self._folder, self._token), module, *arguments)

    def _child(self, name: str, env: dict[str, str] | None, module: str, *arguments: str) -> Child:
        logs = self._folder / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        return Child(module, *arguments, log=logs / f"{name}.log", env=env, reports=False)


def _on_lost(name: str, reason: str, pause: float) -> None:
    if name != "placing":  # which ends when it has placed them
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


def ray_environment(folder: Path, token: Token) -> dict[str, str]:
    """Of Ray's processes, and of those that talk to them."""
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


if __name__ == "__main__":
    if sys.stdin.buffer.read(1):  # what starts it may end before it is noted down
        MachineKeeper(Path(sys.argv[1])).run()
