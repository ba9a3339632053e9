"""What is checked before a machine becomes a part of a cluster, and how its keeper ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from support.clusters import FREE
from support.namespaces import Network, missing

from pie_cluster.config import ClusterProblem
from pie_cluster.machines import keepers, operate
from pie_cluster.machines.keepers import left_agent
from pie_cluster.machines.machine import MachineKeeper
from pie_cluster.machines.settings import ClusterConfig, Machine, Token, write_folder, write_names
from pie_cluster.machines.token import check_gpus, make_token, own_address
from pie_py.config.keys import KeyStore
from pie_py.config.processes import Child

pytest.importorskip("ray", reason="clusters need Ray: pip install 'pie-py[cluster]'")


def test_gpus_are_enough() -> None:
    for nodes, ranks, gpus in ((2, 2, 4), (2, 2, 0)):
        check_gpus(nodes, ranks, gpus)
    with pytest.raises(ClusterProblem, match=r"3 nodes of 2 ranks .* need 6 GPUs, .* has 4"):
        check_gpus(3, 2, 4)


def token(folder: Path) -> Token:
    return make_token(ClusterConfig(endpoint=FREE, folder=folder), folder)


def test_a_cluster_on_loopback_has_no_keys_and_no_other_machines(tmp_path: Path) -> None:
    made = token(tmp_path)
    assert (made.is_encrypted, made.gateway_key, made.member_secret) == (False, "", "")
    assert own_address(made, None) == "127.0.0.1"
    with pytest.raises(ClusterProblem, match="is none of this machine"):
        own_address(made, "10.0.0.1")


def test_rays_token_may_be_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = "ab" * 32
    monkeypatch.setenv("RAY_AUTH_TOKEN", given)
    assert token(tmp_path).ray_token == given
    monkeypatch.delenv("RAY_AUTH_TOKEN")
    assert len(token(tmp_path).ray_token) == 64
    assert token(tmp_path).ray_token != given


def test_machines_that_have_joined_find_the_cluster_again(tmp_path: Path) -> None:
    if (reason := missing()) is not None:
        pytest.skip(reason)
    with Network(["head"]) as network:
        host = network.addresses["head"]
        config = ClusterConfig(endpoint=f"tcp://{host}:7743", host=host, folder=tmp_path)
        first = network.on("head", make_token, config, tmp_path)
        assert first.gateway_key == KeyStore(tmp_path / "data").server_pair().public
        assert first.gateway_key != first.member_public
        machine = Machine(is_head=True, host=host, settings=config.model_dump_json())
        write_folder(tmp_path, first, machine)
        assert network.on("head", make_token, config, tmp_path) == first
        assert network.on("head", own_address, first, None) == host
        more = config.model_copy(update={"nodes": 3})
        assert network.on("head", make_token, more, tmp_path) == first
        other = config.model_copy(update={"server": {"max_instances": 5}})
        assert network.on("head", make_token, other, tmp_path).member_secret != first.member_secret


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        config = ClusterConfig.model_validate(
            {"endpoint": FREE, "folder": tmp_path, "ray_port": port}
        )
        with pytest.raises(ClusterProblem, match=f":{port} is in use; choose another ray_port"):
            make_token(config, tmp_path)


class ToldWhileItStarts(MachineKeeper):
    """Of an agent that takes its time to begin, and whose store of Ray is away."""

    def _ray_start(self, name: str, *options: str) -> Child:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.5)
        return self._child(name, None, "http.server", "0", reports=False)

    def _actors(self, name: str, *arguments: str) -> Child:
        raise OSError


def test_no_agent_outlives_a_keeper_that_did_not_know_it_yet(tmp_path: Path) -> None:
    token = make_token(ClusterConfig(endpoint=FREE, folder=tmp_path), tmp_path)
    write_folder(tmp_path, token, Machine(is_head=False, host="127.0.0.1", nodes=1))
    former = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    with socket.create_server(("127.0.0.1", int(token.ray.rpartition(":")[2]))):
        try:
            ToldWhileItStarts(tmp_path).run()
        finally:
            for number, handler in former.items():
                signal.signal(number, handler)
    assert (tmp_path / "logs/agent.log").exists()
    assert left_agent(tmp_path) is None


def test_what_does_not_end_by_itself_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node without its actor, and what an agent of Ray has started."""
    monkeypatch.setattr(operate, "NODE_SECONDS", 0.1)
    monkeypatch.setattr(keepers, "STOP_SECONDS", 0.1)
    made = token(tmp_path)
    write_folder(tmp_path, made, Machine(is_head=True, host="127.0.0.1", nodes=1))
    write_names(tmp_path, ["n1"])
    named = f'{{"gateway":"{made.gateway}","node":"n1"}}'
    node = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(30)", named])
    agent = subprocess.Popen(["sh", "-c", "sleep 30 & echo $!; wait"], stdout=subprocess.PIPE)
    assert agent.stdout is not None
    started = psutil.Process(int(agent.stdout.readline()))
    keepers.note(tmp_path / keepers.AGENT, agent.pid)
    operate.down(tmp_path)
    assert node.wait(5) == -signal.SIGKILL
    with agent:
        psutil.wait_procs([started], 5)
        assert not keepers.runs(started)
