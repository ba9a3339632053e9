"""Autoscaling carried out: Ray's own autoscaler, with its provider of machines for tests."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from support.child_processes import name_of
from support.clusters import SERVER, processes_of, wait_for

from pie_cluster.machines import operate
from pie_cluster.machines.autoscale import Autoscale
from pie_cluster.machines.settings import ClusterConfig, Token
from pie_cluster.machines.token import free_ports
from pie_py.client.sync import Client

pytest.importorskip("ray", reason="clusters need Ray: pip install 'pie-py[cluster]'")
pytestmark = pytest.mark.slow

HEAD = "f" * 51 + "00000"  # what the provider takes the head for
ENVIRONMENT = {
    "RAY_FAKE_CLUSTER": "1",
    "AUTOSCALER_UPDATE_INTERVAL_S": "1",
    "RAY_OVERRIDE_NODE_ID_FOR_TESTING": HEAD,
    "RAY_CLOUD_INSTANCE_ID": HEAD,
    "RAY_enable_autoscaler_v2": "0",
}
ECHO = b"""
from inferlet import session


async def main(args):
    await session.receive()
"""


def machines(port: int) -> str:
    """What Ray's autoscaler is told: machines with room for one node each."""
    empty = ("head_node", "worker_nodes", "docker", "file_mounts")
    none = (
        *("setup_commands", "initialization_commands", "head_setup_commands"),
        *("worker_setup_commands", "head_start_ray_commands", "worker_start_ray_commands"),
        *("cluster_synced_files", "rsync_exclude", "rsync_filter"),
    )
    provider = {
        "type": "fake_multinode",
        "module": "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider",
        "gcs_address": f"127.0.0.1:{port}",
        "head_node_id": HEAD,
        "use_node_id_as_ip": True,
        "disable_node_updaters": True,
        "disable_launch_config_check": True,
        "foreground_node_launch": True,
    }
    room = {"CPU": 1, "pie_node": 1, "object_store_memory": 100 << 20}
    kinds = {
        "ray.head.default": {"resources": {}, "node_config": {}, "max_workers": 0},
        "machine": {"resources": room, "node_config": {}, "min_workers": 0, "max_workers": 3},
    }
    told = {
        **{name: {} for name in empty},
        **{name: [] for name in none},
        "cluster_name": "test",
        "max_workers": 3,
        "upscaling_speed": 100.0,
        "idle_timeout_minutes": 0.05,
        "file_mounts_sync_continuously": False,
        "auth": {"ssh_user": "no-one-connects"},
        "provider": provider,
        "available_node_types": kinds,
        "head_node_type": "ray.head.default",
    }
    return json.dumps(told)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Token, Path]]:
    """A head without nodes: each needs a machine first."""
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    with tempfile.TemporaryDirectory(prefix="pie-", ignore_cleanup_errors=True) as name:
        folder, port = Path(name), free_ports("127.0.0.1", 1)[0]
        (folder / "machines.yaml").write_text(machines(port))
        config = ClusterConfig(
            endpoint="tcp://127.0.0.1:*",
            nodes=0,
            folder=folder / "head",
            ray_port=port,
            ray_autoscaling=folder / "machines.yaml",
            autoscale=Autoscale(min=1, max=2, pool=None, instances=2, down_seconds=4),
            server=SERVER,
        )
        try:
            yield operate.up(config, print), folder / "head"
        finally:
            operate.down(folder / "head")
            for process in processes_of(folder):  # of the provider, which ends none with the head
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            wait_for(lambda: not processes_of(folder))


def test_machines_come_and_go_with_the_load(cluster: tuple[Token, Path]) -> None:
    token, folder = cluster

    def states() -> list[str]:
        return sorted(node.state for node in operate.nodes_of(token))

    def machines_alive() -> int:
        raylets = [process for process in processes_of(folder) if name_of(process) == "raylet"]
        return len(raylets) - 1  # the head's

    wait_for(lambda: states() == ["ready"], 120)
    assert machines_alive() == 1
    with Client(token.gateway) as client:
        client.upload(ECHO, name="echo")
        instances = [client.launch("echo") for _ in range(6)]  # for three nodes; two are allowed
        wait_for(lambda: states() == ["ready", "ready"], 120)
        assert machines_alive() == 2
        for instance in instances:
            instance.send("end")
            instance.result()
        wait_for(lambda: states() == ["ready"], 60)
        wait_for(lambda: machines_alive() == 1, 60)  # Ray has ended the idle one
        assert client.launch("echo").node in {"n1.1", "n2.1"}
