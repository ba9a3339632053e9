"""`python -m pie_cluster.machines.machine FOLDER`: keeps what a machine runs beside its nodes.

On the head that is Ray's head, the directory and the gateway; elsewhere one Ray agent. What has
ended is started again. Nodes are Ray's to start: see `actors.py`.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from pie_cluster.config import MemberConfig
from pie_cluster.machines import http_gateway
from pie_cluster.machines.kept import end_with_parent
from pie_cluster.machines.settings import Machine, Token, machine_resource, member_keys_file
from pie_py.config.processes import python_command
from pie_py.config.server import ServerConfig

log = logging.getLogger("pie.machine")

LOOK_SECONDS = 0.05
FIRST_PAUSE, MOST_PAUSE = 0.05, 5.0
WELL_SECONDS = 10.0
STOP_SECONDS = 15.0  # for Ray's processes to end
RECONNECT_SECONDS = 600  # that Ray's agents wait for a head that is away


@dataclass
class Kept:
    """A process that is started again when it has ended."""

    name: str
    start: Callable[[], subprocess.Popen[bytes]]
    process: subprocess.Popen[bytes] | None = None
    began: float = 0.0
    pause: float = FIRST_PAUSE
    due: float = 0.0
    starts: int = 0

    def look(self, now: float) -> None:
        """Starts it if it does not run and its time has come."""
        if self.process is not None and self.process.poll() is not None:
            if now - self.began > WELL_SECONDS:
                self.pause = FIRST_PAUSE
            self.process = None
            self.due = now + self.pause
            self.pause = min(2 * self.pause, MOST_PAUSE)
        if self.process is None and now >= self.due:
            try:
                self.process = self.start()
            except OSError as error:  # no room for its log, or for a process
                log.warning("%s cannot be started: %s", self.name, error)
                self.due = now + MOST_PAUSE
                return
            self.began = now
            self.starts += 1


class MachineKeeper:
    """The processes of one machine."""

    def __init__(self, folder: Path) -> None:
        """Reads the folder; starts nothing yet."""
        self._folder = folder
        self._token = Token.read(folder / "token.json")
        self._machine = Machine.model_validate_json((folder / "machine.json").read_text())
        self._keys = member_keys_file(folder, self._token)
        self._stopping = False
        self._ray_kept = Kept("ray", self._ray)
        self._placed = 0  # starts of Ray after which nodes were placed
        self._placing: subprocess.Popen[bytes] | None = None
        self._kept = [self._ray_kept]
        if self._machine.role == "head":
            self._kept += [
                Kept("directory", self._directory),
                Kept("gateway", self._gateway),
            ]
            if self._machine.autoscale is not None:
                self._kept.append(Kept("scaler", self._scaler))
        if self._machine.gateway is not None:
            self._kept.append(Kept("http", self._http))

    def run(self) -> None:
        """Keeps them until SIGTERM, then ends them all."""
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGINT, self._stop)
        while not self._stopping:
            for kept in self._kept:
                kept.look(time.monotonic())
            self._place_nodes()
            self._tell()
            time.sleep(LOOK_SECONDS)
        running = [kept.process for kept in self._kept if kept.process is not None]
        if self._placing is not None:
            running.append(self._placing)
        for process in reversed(running):
            if process is self._ray_kept.process and self._machine.role != "head":
                process.kill()  # its agent would wait for actors, and dies with it
            else:
                process.terminate()
        end = time.monotonic() + STOP_SECONDS
        for process in running:
            try:
                process.wait(max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._stopping = True

    def _place_nodes(self) -> None:
        """Has Ray place this machine's nodes, once per start of its agent."""
        if self._machine.role == "head":
            return
        if self._placing is None:
            if self._placed < self._ray_kept.starts:
                with suppress(OSError):  # as of any other process: at the next look
                    self._placing = self._placer()
        elif (status := self._placing.poll()) is not None:
            self._placing = None
            if status == 0:
                self._placed = self._ray_kept.starts

    def _placer(self) -> subprocess.Popen[bytes]:
        command = python_command("-m", "pie_cluster.machines.actors", str(self._folder))
        return self._started("placing", command, ray_environment(self._folder, self._token))

    def _tell(self) -> None:
        """Writes which processes run, for `pie-py cluster` and for tests."""
        pids = {kept.name: kept.process.pid for kept in self._kept if kept.process is not None}
        text = json.dumps(pids)
        path = self._folder / "pids.json"
        if not path.exists() or path.read_text() != text:
            beside = path.with_name(".pids.json")
            with suppress(OSError):  # a full disk: it is written once there is room
                beside.write_text(text)
                os.replace(beside, path)

    def _ray(self) -> subprocess.Popen[bytes]:
        machine, host = self._machine, self._machine.host
        command = python_command("-m", "pie_cluster.machines.ray_start", "start", "--block")
        command += ["--disable-usage-stats", f"--node-ip-address={host}"]
        command += ["--include-log-monitor=false"]  # it sends to drivers; ours do not listen
        if machine.role == "head":
            port = self._token.ray.rpartition(":")[2]
            command += ["--head", f"--port={port}", "--include-dashboard=false", "--num-cpus=0"]
            command += ["--num-gpus=0", f"--temp-dir={ray_folder(self._folder)}"]
            if machine.ray_autoscaling is not None:
                command += [f"--autoscaling-config={machine.ray_autoscaling}"]
            (self._folder / "gcs").mkdir(exist_ok=True)
            # Left by a head that was killed; Ray would take an agent of ours for it.
            (ray_folder(self._folder) / "ray_current_cluster").unlink(missing_ok=True)
        else:
            command += [f"--address={self._token.ray}", "--num-cpus=1"]
            command += [f"--num-gpus={machine.gpus}"]
            room = {"pie_node": machine.room, machine_resource(self._folder): 1}
            command += [f"--resources={json.dumps(room)}"]
        command += [f"--object-store-memory={100 << 20}"]
        return self._started("ray", command, ray_environment(self._folder, self._token))

    def _directory(self) -> subprocess.Popen[bytes]:
        config = {
            "endpoint": self._token.directory,
            "folder": str(self._folder),
            "policy": self._machine.policy,
            "models": self._token.models,
            "keys": None if self._keys is None else str(self._keys),
            "users": None if self._keys is None else self._token.server["data_folder"],
        }
        module = "pie_cluster.directory"
        return self._module("directory", module, json.dumps(config))

    def _scaler(self) -> subprocess.Popen[bytes]:
        command = python_command("-m", "pie_cluster.machines.scaler", str(self._folder))
        return self._started("scaler", command, ray_environment(self._folder, self._token))

    def _gateway(self) -> subprocess.Popen[bytes]:
        member = MemberConfig(
            directory=self._token.directory,
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

    def _http(self) -> subprocess.Popen[bytes]:
        config = http_gateway.process_config(self._token, self._machine)
        return self._module("http", "pie_gateway", config)

    def _module(self, name: str, module: str, config: str) -> subprocess.Popen[bytes]:
        command = python_command("-m", module, "--config", config)
        return self._started(name, command, dict(os.environ))

    def _started(
        self, name: str, command: list[str], env: dict[str, str]
    ) -> subprocess.Popen[bytes]:
        logs = self._folder / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        with (logs / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=env,
                start_new_session=True,
                preexec_fn=end_with_parent,  # one thread runs here
            )


def ray_folder(folder: Path) -> Path:
    """Where Ray keeps its sockets; their paths must be short."""
    return folder / "ray"


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
        "RAY_gcs_rpc_server_reconnect_timeout_s": str(RECONNECT_SECONDS),
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
