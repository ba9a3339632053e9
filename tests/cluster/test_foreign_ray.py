"""A cluster on a Ray that was there before: what it has in it, what it leaves, what is refused."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.clusters import (
    ECHO,
    INSTANT,
    Cluster,
    echoes,
    processes_of,
    run,
    settings_of,
    wait_for,
)

from pie_cluster.config import ClusterProblem
from pie_cluster.machines import operate
from pie_cluster.machines.keepers import keeper
from pie_cluster.machines.settings import ClusterConfig, Token
from pie_cluster.machines.token import free_ports

pytest.importorskip("ray", reason="clusters need Ray: pip install 'pie-py[cluster]'")
pytestmark = pytest.mark.slow

# By default Ray's workers give way to all else, such as other tests.
URGENT = {**os.environ, "RAY_worker_niceness": "0"}
# A process of Ray's, which waits 40 s for a head that does not answer, reads these as it starts.
IMPATIENT = {f"RAY_{name}_connect_timeout_s": "1" for name in ("py_gcs", "gcs_rpc_server")}
LOOK = """
import json, os, sys, ray
from ray._private import state
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # what Ray tells a driver, as of a lost machine, is no answer
ray.init(address=sys.argv[1], log_to_driver=False)
for _ in sys.stdin:
    alive = [one for one in state.actors().values() if one["State"] != "DEAD"]
    print(json.dumps({
        "named": [[one["namespace"], one["name"]] for one in ray.util.list_named_actors(True)],
        "alive": len(alive),
        "free": ray.available_resources().get("CPU", 0),
    }), file=answers, flush=True)
"""


@dataclass
class Foreign:
    """A Ray with two CPUs, which is nothing of ours."""

    address: str
    folder: Path
    process: psutil.Popen

    @property
    def temporary(self) -> Path:
        """Where its processes put temporary files."""
        return self.folder / "tmp"

    @cached_property
    def driver(self) -> subprocess.Popen[str]:
        """Another driver, which tells for each line what it sees; to start one takes a second."""
        return subprocess.Popen(
            [sys.executable, "-P", "-c", LOOK, self.address],
            cwd=self.folder,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def look(self) -> dict[str, Any]:
        """What it has in it, as another driver sees it."""
        asked, told = self.driver.stdin, self.driver.stdout
        assert asked is not None
        assert told is not None
        asked.write("look\n")
        asked.flush()
        found: dict[str, Any] = json.loads(told.readline())
        return found

    def has_nothing(self) -> bool:
        """Whether it runs, and is as it was before."""
        assert self.process.is_running()
        return self.look() == {"named": [], "alive": 0, "free": 2}


@pytest.fixture(scope="module")
def foreign() -> Iterator[Foreign]:
    port, agent = free_ports("127.0.0.1", 2)
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        (folder / "tmp").mkdir()
        options = (
            *("-P", "-m", "ray.scripts.scripts", "start", "--head", "--block", "--num-cpus=2"),
            *(f"--port={port}", f"--dashboard-agent-listen-port={agent}"),
            f"--temp-dir={folder / 'ray'}",
            *("--include-dashboard=false", "--disable-usage-stats", "--node-ip-address=127.0.0.1"),
            f"--object-store-memory={100 << 20}",
        )
        process = psutil.Popen(
            [sys.executable, *options],
            env={**URGENT, "TMPDIR": str(folder / "tmp")},
            cwd=folder,
            stdout=subprocess.DEVNULL,
        )
        try:
            ray = Foreign(f"127.0.0.1:{port}", folder, process)
            wait_for(lambda: (folder / "ray/ray_current_cluster").exists())
            ray.address = (folder / "ray/ray_current_cluster").read_text().strip()
            with ray.driver:
                yield ray
                ray.driver.terminate()
        finally:
            process.terminate()
            process.wait(30)
            for left in processes_of(folder):
                with suppress(psutil.NoSuchProcess):
                    left.kill()


@pytest.fixture
def cluster(foreign: Foreign) -> Iterator[Cluster]:
    """One that is not started yet, at an address that stays."""
    with tempfile.TemporaryDirectory(prefix="pie-") as name:
        cluster = Cluster(Path(name) / "head")
        port = free_ports("127.0.0.1", 1)[0]
        fields = {"endpoint": f"tcp://127.0.0.1:{port}", "nodes": 1, "ray_address": foreign.address}
        cluster.config = cluster.config.model_copy(update=fields)
        try:
            yield cluster
        finally:
            cluster.__exit__()
            left = processes_of(Path(name))
            assert not left, left
        wait_for(foreign.has_nothing)


def up(cluster: Cluster, address: str) -> tuple[Path, list[str]]:
    """A configuration without the address, and the arguments that start a cluster of it."""
    file, own = cluster.folder.with_suffix(".toml"), f"nodes = 1\n{INSTANT}"
    options = settings_of(file, cluster.folder, cluster.config.endpoint, own)
    return file, ["up", *options, "--address", address]


def cluster_client(cluster: Cluster) -> Any:
    """A client of a cluster that a command has started."""
    cluster.token = Token.read(cluster.folder / "token.json")
    return cluster.client()


def refused(tmp_path: Path, address: str) -> str:
    """What `up` says, of which nothing is left."""
    options = settings_of(tmp_path / "cluster.toml", tmp_path / "cluster")
    told = run("up", *options, "--address", address)
    assert told.exit_code in (1, 2), told.output
    assert not processes_of(tmp_path)
    assert not (tmp_path / "cluster/token.json").exists()
    return told.output[told.output.rindex("rror: ") :]


def _ends_connections(server: socket.socket) -> None:
    with suppress(OSError):
        while True:
            server.accept()[0].close()


@pytest.mark.nightly
def test_it_has_actors_of_one_namespace_there_and_leaves_nothing(
    foreign: Foreign, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", foreign.address)  # as Ray finds what `auto` is
    told = run(*up(cluster, "auto")[1])
    assert told.exit_code == 0, told.output
    with cluster_client(cluster) as client:
        client.upload(ECHO, name="echo")
        instance = client.launch("echo")
        assert instance.node == "n1.1"
        assert echoes(instance)
    folder = ["--folder", str(cluster.folder)]
    told = run("status", *folder)
    assert f"on a Ray that was there before, {foreign.address}" in told.output
    assert cluster.token is not None
    named = [[cluster.token.namespace, f"{cluster.token.namespace}-node-n1"]]
    wait_for(lambda: foreign.look() == {"named": named, "alive": 1, "free": 1})
    assert run("down", *folder).output.strip() == "ended the gateway, node n1"
    assert not processes_of(cluster.folder)
    wait_for(foreign.has_nothing)
    assert not list(foreign.temporary.iterdir())


@pytest.mark.nightly
def test_a_second_start_keeps_what_a_killed_one_has_left(
    foreign: Foreign, cluster: Cluster
) -> None:
    file, command = up(cluster, foreign.address)
    first = subprocess.Popen(
        [sys.executable, "-m", "pie_py", "cluster", *command], stderr=subprocess.DEVNULL
    )
    wait_for((cluster.folder / "nodes.json").exists)
    first.send_signal(signal.SIGKILL)
    first.wait()
    kept = keeper(cluster.folder)
    for _ in range(2):
        told = run(*command)
        assert told.exit_code == 0, told.output
        assert "n1 runs already" in told.output
        assert keeper(cluster.folder) == kept
    with cluster_client(cluster):
        assert cluster.nodes()["n1"].incarnation == 1
    file.write_text(f"nodes = 2\n{file.read_text().replace('nodes = 1', '')}")
    told = run(*command)
    assert told.exit_code == 1
    assert "runs a part of a cluster with other settings" in told.output
    actor = cluster.control("n1").parent()
    assert actor is not None
    actor.kill()  # Ray starts it again
    cluster.lives_again("n1.1")
    assert kept is not None
    kept.kill()  # and Ray ends what it has placed
    kept.wait()
    wait_for(lambda: foreign.look()["alive"] == 0)
    file.write_text(file.read_text().replace("nodes = 2", "nodes = 1"))
    told = run(*command)
    assert told.exit_code == 0, told.output
    with cluster_client(cluster):
        assert cluster.nodes()["n1"].incarnation == 3


@pytest.mark.nightly
def test_machines_join_as_far_as_ray_has_room(foreign: Foreign, cluster: Cluster) -> None:
    with cluster:
        second, third = cluster.folder.parent / "second", cluster.folder.parent / "third"
        assert cluster.join(second) == ["n2"]
        with pytest.raises(ClusterProblem, match="each takes one of its CPUs"):
            cluster.join(third)
        assert not processes_of(third)
        named = {name.partition("-node-")[2] for _, name in foreign.look()["named"]}
        assert named == {"n1", "n2"}
        kept = keeper(second)
        assert kept is not None
        kept.kill()  # Ray ends what it has placed
        wait_for(lambda: foreign.look()["alive"] == 1)
        assert cluster.join(second) == ["n2"]
        cluster.leave(second)
        wait_for(lambda: foreign.look()["free"] == 1)
        assert cluster.serves("n1")


def test_addresses_where_no_ray_is(tmp_path: Path) -> None:
    port = free_ports("127.0.0.1", 1)[0]
    told = refused(tmp_path, f"127.0.0.1:{port}")
    assert "no Ray answers at" in told
    assert f":{port}" in told
    assert "name the head of Ray instead" in refused(tmp_path, f"ray://127.0.0.1:{port}")
    assert "is no address of Ray" in refused(tmp_path, "somewhere")
    with socket.create_server(("", 0)) as other:
        threading.Thread(target=_ends_connections, args=(other,), daemon=True).start()
        options = settings_of(tmp_path / "cluster.toml", tmp_path / "cluster")
        up = ("cluster", "up", *options, "--address", f"127.0.0.1:{other.getsockname()[1]}")
        told = subprocess.run(
            [sys.executable, "-m", "pie_py", *up],
            env={**os.environ, **IMPATIENT},
            capture_output=True,
            text=True,
            check=False,
        ).stderr
        assert "does not take this machine" in told
        assert not (tmp_path / "cluster/token.json").exists()


@pytest.mark.nightly
def test_another_version_is_refused(
    foreign: Foreign, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    monkeypatch.setattr(ray, "__version__", "2.1.0")
    told = refused(tmp_path, foreign.address)
    assert "does not take this machine" in told
    assert "2.1.0" in told


def test_a_ray_of_another_release_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operate, "version", lambda name: "2.1.0")
    with pytest.raises(ClusterProblem, match=r"need Ray.*>=.*, and 2\.1\.0 is installed"):
        operate.up(ClusterConfig(folder=tmp_path), print)
