"""A cluster of real processes: what clients see of it, and what holds when its parts are killed."""

from __future__ import annotations

import itertools
import json
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.clusters import Cluster, wait_for

from pie_py.cli import main
from pie_py.client import InferletFailed, RpcError
from pie_py.client.sync import Client, Instance

pytest.importorskip("ray", reason="clusters need Ray: pip install 'pie-py[cluster]'")
pytestmark = pytest.mark.slow

ECHO = b"""
from inferlet import session


async def main(args):
    while (message := await session.receive()) != "end":
        session.send(f"{message}!")
    return "done"
"""
SHARES = b"""
from inferlet import messaging, session, store


async def main(args):
    try:
        if args[0] == "store":
            await store.set("key", b"value")
        elif args[0] == "topic":
            await messaging.broadcast("topic", "message")
        else:
            await messaging.push("queue", "message")
    except Exception as error:
        return str(error)
    return "kept"
"""


NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory(prefix="pie-") as folder:
        with Cluster(Path(folder)) as cluster, cluster.client() as client:
            client.upload(ECHO, name="echo")
            client.upload(SHARES, name="shares")
            yield cluster
        left = cluster.processes()
        assert not left, [process.cmdline() for process in left]


@pytest.fixture
def client(cluster: Cluster) -> Iterator[Client]:
    with cluster.client() as client:
        yield client


def echoes(instance: Instance, message: str = "here") -> bool:
    instance.send(message)
    return instance.receive() == f"{message}!"


def on(client: Client, node: str) -> Instance:
    """An echo on a node: of a program that no node has, or launches would follow its pages."""
    for _ in range(50):
        new = client.upload(ECHO + f"# {next(NUMBERS)}".encode(), name="echo")
        instance = client.launch(new)
        if (instance.node or "").split(".")[0] == node:
            return instance
        instance.cancel()
    raise AssertionError(f"no launch went to {node}")


def lost(instance: Instance) -> tuple[str, float]:
    """How an instance ends, and after how many seconds."""
    began = time.monotonic()
    with pytest.raises(InferletFailed) as failed:
        instance.result()
    return failed.value.text, time.monotonic() - began


# What clients see


def test_clients_talk_to_the_nodes(client: Client, cluster: Cluster) -> None:
    instance = client.launch("echo")
    assert instance.node in {f"{n.node}.{n.incarnation}" for n in cluster.nodes().values()}
    assert instance.id.endswith(f"@{instance.node}")
    assert echoes(instance)
    beside = client.launch("echo", near=instance.id)
    assert beside.node == instance.node
    assert {instance.id, beside.id} <= {one["id"] for one in client.instances()}
    with cluster.client() as other:
        attached = other.attach(instance.id)
        assert echoes(attached)
        assert other.logs(instance.id)["lines"] == []
        assert other.kill(beside.id)
        attached.send("end")
        assert attached.result() == "done"
    assert [one["name"] for one in client.programs()] == ["echo", "shares"]
    assert client.server_info()["max_instances"] == 2000
    assert [model["name"] for model in client.models()] == ["pie-tiny"]


def test_what_is_gone_or_forged_is_refused(client: Client) -> None:
    for near, code in (("echo-00000000@n1.99", "near-gone"), ("no-export", "near-gone")):
        with pytest.raises(RpcError) as refused:
            client.launch("echo", near=near)
        assert refused.value.code == code
    for name, code in (
        ("echo-00000000@n1.99", "node-lost"),
        ("echo-00000000@n1.01", "not-found"),
        ("echo-00000000", "not-found"),
        ("x" * 300, "invalid-argument"),
    ):
        with pytest.raises(RpcError) as refused:
            client.attach(name)
        assert refused.value.code == code
    with pytest.raises(RpcError, match="unsupported"):
        client.register_mcp("tools", "http://127.0.0.1:1")


@pytest.mark.parametrize("what", ["topic", "queue"])
def test_what_would_be_silently_local_is_refused(client: Client, what: str) -> None:
    assert "other nodes of a cluster" in client.launch("shares", [what]).result()


def test_a_machine_with_its_own_folder_fetches_programs_and_has_no_store(
    client: Client, cluster: Cluster
) -> None:
    (name,) = cluster.join(cluster.folder / "second")
    instance = on(client, name)
    assert echoes(instance)
    text = client.launch("shares", ["store"], near=instance.id).result()
    assert text.startswith("unsupported: this node of the cluster does not share the store")
    shared = on(client, "n1")
    assert client.launch("shares", ["store"], near=shared.id).result() == "kept"


# Faults


def test_a_killed_control_process_takes_its_own_instances_alone(
    client: Client, cluster: Cluster
) -> None:
    victim, other = on(client, "n1"), on(client, "n2")
    cluster.control("n1").kill()
    text, seconds = lost(victim)
    assert text.startswith("node-lost: ")
    assert seconds < 3
    assert echoes(other)
    cluster.lives_again(victim.node)
    assert echoes(on(client, "n1"))
    assert echoes(other)


def test_a_killed_actor_takes_its_node_alone(client: Client, cluster: Cluster) -> None:
    victim, other = on(client, "n1"), on(client, "n2")
    actor = cluster.control("n1").parent()
    assert actor is not None
    actor.kill()
    text, seconds = lost(victim)
    assert text.startswith("node-lost: ")
    assert seconds < 3
    assert echoes(other)
    cluster.lives_again(victim.node)
    assert echoes(on(client, "n1"))


def test_streams_go_on_without_gateway_and_directory(client: Client, cluster: Cluster) -> None:
    instance = client.launch("echo")
    for name in ("gateway", "directory"):
        former = cluster.kept(name)
        former.kill()
        assert echoes(instance, name)
        began = time.monotonic()
        assert echoes(client.launch("echo"))
        assert time.monotonic() - began < 9  # 1 to 2 on a machine with nothing else to do
        cluster.started_again(name, former)
    wait_for(lambda: cluster.state("n2") == "ready", 3)  # it has told the new directory of itself
    assert cluster.nodes()["n2"].incarnation == 1


def test_a_stopped_control_process_is_noticed_and_replaced(
    client: Client, cluster: Cluster
) -> None:
    victim = on(client, "n1")
    process = cluster.control("n1")
    process.send_signal(signal.SIGSTOP)
    wait_for(lambda: cluster.state("n1") == "silent", 5)
    assert all(client.launch("echo").node != victim.node for _ in range(5))
    seconds = wait_for(lambda: cluster.state("n1") == "starting", 15)
    assert seconds < 12
    assert not process.is_running()
    assert lost(victim)[0].startswith("node-lost: ")
    cluster.lives_again(victim.node)


def test_launches_go_on_without_rays_head(client: Client, cluster: Cluster) -> None:
    instance = on(client, "n2")
    before = {node.node: node.incarnation for node in cluster.nodes().values()}
    former = cluster.kept("ray")
    former.kill()
    wait_for(lambda: not former.is_running() or former.status() == "zombie")
    assert echoes(instance)
    assert echoes(client.launch("echo"))
    cluster.started_again("ray", former)
    wait_for(lambda: any("gcs_server" in p.name() for p in cluster.processes()), 30)
    assert echoes(instance)
    assert {node.node: node.incarnation for node in cluster.nodes().values()} == before


def test_a_killed_machine_comes_back(client: Client, cluster: Cluster) -> None:
    victim = on(client, "n3")
    other = on(client, "n2")
    machine = cluster.folder / "second"
    raylets = [p for p in cluster.kept("ray", machine).children() if p.name() == "raylet"]
    raylets[0].kill()
    text, seconds = lost(victim)
    assert text.startswith("node-lost: ")
    assert seconds < 5
    assert echoes(other)
    cluster.lives_again(victim.node)
    assert echoes(on(client, "n3"))


def test_a_drained_node_ends_when_it_is_empty(client: Client, cluster: Cluster) -> None:
    instance = on(client, "n3")
    for other in client.instances():
        if "@n3." in other["id"] and other["id"] != instance.id:
            client.kill(other["id"])
    told = CliRunner().invoke(main, ["cluster", "drain", "n3", "--folder", str(cluster.folder)])
    assert told.exit_code == 0, told.output
    wait_for(lambda: cluster.state("n3") == "draining", 5)
    assert all((client.launch("echo").node or "")[:3] != "n3." for _ in range(5))
    assert echoes(instance)
    instance.send("end")
    assert instance.result() == "done"
    wait_for(lambda: cluster.state("n3") == "gone", 10)
    names = cluster.folder / "second/nodes.json"
    wait_for(lambda: json.loads(names.read_text()) == [], 10)


# Operators


def test_status_tells_every_node(cluster: Cluster) -> None:
    told = CliRunner().invoke(
        main, ["cluster", "status", "--json", "--folder", str(cluster.folder)]
    )
    assert told.exit_code == 0, told.output
    assert [(row["node"], row["state"]) for row in json.loads(told.stdout)] == [
        ("n1", "ready"),
        ("n2", "ready"),
    ]


def test_wrong_input_is_told_in_one_line(cluster: Cluster, tmp_path: Path) -> None:
    token = cluster.folder / "token.json"
    facts = json.loads(token.read_text())
    old = tmp_path / "old.json"
    old.write_text(json.dumps({**facts, "versions": {**facts["versions"], "Ray": "1.0"}}))
    config = tmp_path / "cluster.toml"
    config.write_text('endpoint = "tcp://127.0.0.1:1"\nnodez = 3\n')
    folder = ["--folder", str(cluster.folder)]
    empty = ["--folder", str(tmp_path / "empty")]
    for args, words in (
        (["up", "--config", str(config)], "nodez: Extra inputs"),
        (["up", "--config", str(tmp_path / "none.toml")], "cannot be read"),
        (["join", cluster.endpoint, "--token", str(tmp_path / "none"), *empty], "cannot be read"),
        (["join", cluster.endpoint, "--token", str(config), *empty], "is no token"),
        (
            ["join", cluster.endpoint, "--token", str(old), *empty],
            "the cluster 1.0: install the same",
        ),
        (["join", "tcp://127.0.0.1:1", "--token", str(token), *empty], "the token is for"),
        (["join", cluster.endpoint, "--token", str(token), *folder], "runs a part of a cluster"),
        (["drain", "n77", *folder], "no node is called 'n77'"),
        (["status", *empty], "no cluster is in"),
    ):
        told = CliRunner().invoke(main, ["cluster", *args])
        assert told.exit_code == 1, told.output
        assert words in told.output
        assert len(told.output.strip().splitlines()) == 1, told.output
    assert CliRunner().invoke(main, ["cluster", "drain"]).exit_code == 2


def test_a_second_cluster_of_the_same_address_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    config = tmp_path / "cluster.toml"
    for endpoint, folder, words in (
        (cluster.endpoint, tmp_path / "other", "is in use"),
        ("tcp://127.0.0.1:*", cluster.folder, "runs a part of a cluster"),
        ("ipc:///tmp/door", tmp_path / "third", "give tcp://"),
        ("tcp://0.0.0.0:7743", tmp_path / "fourth", "several machines are not served yet"),
    ):
        config.write_text(f'endpoint = "{endpoint}"\nfolder = "{folder}"\n')
        told = CliRunner().invoke(main, ["cluster", "up", "--config", str(config)])
        assert (told.exit_code, words in told.output) == (1, True), told.output
        assert not (folder / "pids.json").exists() or folder == cluster.folder


def test_the_last_node_is_not_drained(cluster: Cluster) -> None:
    folder = ["--folder", str(cluster.folder)]
    former = cluster.nodes()["n1"]
    cluster.control("n1").kill()
    wait_for(lambda: cluster.state("n1") != "ready", 5)
    told = CliRunner().invoke(main, ["cluster", "drain", "n2", *folder])
    assert told.exit_code == 1
    assert "the last node that takes launches" in told.output
    cluster.lives_again(f"n1.{former.incarnation}")
