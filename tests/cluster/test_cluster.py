"""A cluster of real processes: what clients see of it, and what holds when its parts are killed."""

from __future__ import annotations

import json
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Literal

import anyio
import psutil
import psycopg
import pytest
from cluster.messages import report
from msgspec.structs import asdict
from support.child_processes import command_line, name_of
from support.clusters import (
    ECHO,
    FREE,
    INSTANT,
    WAIT_SECONDS,
    Cluster,
    Wire,
    chat_at,
    echoes,
    launched_on,
    processes_of,
    run,
    settings_of,
    wait_for,
)
from support.postgres import Postgres, programs
from support.traps import set_traps, trapped

from pie_cluster.config import ClusterProblem
from pie_cluster.directory.asking import DirectoryRefuses
from pie_cluster.machines import operate
from pie_cluster.machines.keepers import keeper
from pie_cluster.machines.machine import ray_folder
from pie_cluster.machines.settings import Token, directory_of, node_names
from pie_cluster.machines.token import free_ports
from pie_py.client import Client as AsyncClient
from pie_py.client import InferletFailed, RpcError
from pie_py.client.sync import Client, Instance
from pie_py.config.endpoint import answers, parse_endpoint
from pie_py.wire import methods

pytest.importorskip("ray", reason="clusters need Ray: pip install 'pie-py[cluster]'")
pytestmark = pytest.mark.slow

HOLDS = b"""
from inferlet import Context, Model, session


async def main(args):
    context = Context(Model.load()).fill("one two three")
    await context.distribution(k=1)
    session.send("held")
    await session.receive()
    await context.distribution(k=1)
"""
SHARES = b"""
from inferlet import messaging, raw, session, store


async def main(args):
    try:
        if args[0] == "store":
            await store.set("key", b"value")
        elif args[0] == "stored":
            return (await store.get("key")).decode()
        elif args[0] == "topic":
            await messaging.broadcast("topic", "message")
        elif args[0] == "rooms":
            try:
                raw.broadcast_room("topic")
            except Exception:
                raw.push_room("queue")
        else:
            await messaging.push("queue", "message")
    except Exception as error:
        return str(error)
    return "kept"
"""


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres | None]:
    """PostgreSQL, if it is installed."""
    if programs() is None:
        yield None
        return
    with Postgres() as server:
        yield server


@pytest.fixture(scope="module")
def database(postgres: Postgres | None) -> Iterator[str]:
    """PostgreSQL's address, if it is installed."""
    if postgres is None:
        yield ""
        return
    with postgres.database() as address:
        yield address


@pytest.fixture(scope="module")
def cluster(database: str) -> Iterator[Cluster]:
    """On a machine whose memory is always full, as far as Ray would care."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="pie-") as name:
        patch.setenv("RAY_memory_usage_threshold", "0.01")
        folder = Path(name) / ("deep" * 15)  # paths of Ray's sockets are short
        with Cluster(folder, database) as cluster, cluster.client() as client:
            client.upload(ECHO, name="echo")
            client.upload(SHARES, name="shares")
            yield cluster
        left = cluster.processes()
        assert not left, [command_line(process) for process in left]
        shutil.rmtree(ray_folder(folder).parent)


@dataclass
class Second:
    """Another machine with a node, whose ways to the gateway and the database can be cut."""

    folder: Path
    node: str
    way: Wire
    way_to_data: Wire | None  # where PostgreSQL is installed


@pytest.fixture(scope="module")
def second(cluster: Cluster, postgres: Postgres | None) -> Iterator[Second]:
    """It stays until it is changed for another one."""
    assert cluster.token is not None
    folder, database = cluster.folder / "second", None
    with ExitStack() as stack:
        way, way_to_data = stack.enter_context(Wire(cluster.token.gateway)), None
        if postgres is not None:
            way_to_data = stack.enter_context(Wire(postgres.socket))
            database = way_to_data.to(cluster.token.server["store"]["database"])
        (node,) = cluster.join(folder, gateway=way.endpoint, database=database)
        yield Second(folder, node, way, way_to_data)
        if folder in cluster.others:
            cluster.leave(folder)


@pytest.fixture
def client(cluster: Cluster) -> Iterator[Client]:
    with cluster.client() as client:
        yield client


def is_lost(instance: Instance, seconds: float = WAIT_SECONDS, what: str = "node") -> None:
    """An instance ends within so many seconds, with what it is on."""
    began = time.monotonic()
    with pytest.raises(InferletFailed, match=f"^{what}-lost: "):
        instance.result()
    assert time.monotonic() - began < seconds


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


@pytest.mark.nightly
def test_http_chats_of_one_user_go_where_their_prompts_are(
    client: Client, cluster: Cluster
) -> None:
    def is_idle() -> bool:
        """Whether all that was placed has ended, and nodes have told so: they are alike then."""
        return not any(node.pool or node.waiting_seconds for node in cluster.nodes().values())

    def chat(number: int) -> set[str]:
        """The lives in which something has run for a prompt."""
        wait_for(is_idle)
        before = {one["id"] for one in client.instances(ended=True)}
        text = f"{number}: " + f"line {number} " * 300
        chat_at(cluster.url, client.models()[0]["name"], text)
        after = {one["id"] for one in client.instances(ended=True)}
        return {each.partition("@")[2] for each in after - before}

    chat(0)  # has the vocabulary read
    first: list[set[str]] = []
    while len(set().union(*first)) < 2:  # nothing is known of them: any node may have them
        first.append(chat(len(first) + 1))
        assert len(first) < 30
    for _ in range(2):
        assert [chat(number) for number in range(1, 1 + len(first))] == first


@pytest.mark.nightly
def test_a_machine_may_serve_http_alone(client: Client, cluster: Cluster) -> None:
    folder = cluster.folder / "http"
    assert cluster.join(folder, 0, http="127.0.0.1:0") == []
    url = operate.http_url(folder)
    assert url not in (None, cluster.url)
    chat_at(str(url), client.models()[0]["name"], "Hello")
    cluster.leave(folder)
    assert cluster.url


def test_a_node_is_as_urgent_as_a_server(cluster: Cluster) -> None:
    """Ray would have its workers wait for all else that its machine does."""
    assert cluster.control("n1").nice() == psutil.Process().nice()


def test_what_is_gone_or_forged_is_refused(client: Client) -> None:
    near = partial(client.launch, "echo")
    for act, code in (
        (partial(near, near="echo-00000000@n1.99"), "near-gone"),
        (partial(near, near="no-instance"), "not-found"),
        (partial(client.attach, "echo-00000000@n1.99"), "node-lost"),
        (partial(client.attach, "echo-00000000"), "not-found"),
        (partial(client.attach, "x" * 300), "invalid-argument"),
    ):
        with pytest.raises(RpcError) as refused:
            act()
        assert refused.value.code == code


@pytest.mark.parametrize("what", ["topic", "queue", "rooms"])
def test_topics_are_refused(client: Client, what: str) -> None:
    """They would be silently local."""
    assert client.launch("shares", [what]).result().startswith("unsupported: topics")


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("control", "its control process was killed by SIGKILL"),
        pytest.param("actor", "its actor has ended", marks=pytest.mark.nightly),
    ],
    ids=["control", "actor"],
)
def test_what_is_killed_takes_its_own_node_alone(
    client: Client, cluster: Cluster, what: str, told: str
) -> None:
    victim, other = launched_on(client, "n1"), launched_on(client, "n2")
    process = cluster.control("n1")
    killed = process if what == "control" else process.parent()
    assert killed is not None
    killed.kill()
    is_lost(victim, 3)
    assert echoes(other)
    cluster.lives_again(victim.node)
    log = (cluster.folder / "logs/gateway.log").read_text()
    assert re.search(rf"a life begins.*life=n1\.\d+ .*{told}", log)
    assert echoes(launched_on(client, "n1"))
    assert echoes(other)


def test_streams_go_on_without_gateway_and_directory(client: Client, cluster: Cluster) -> None:
    instance = client.launch("echo")
    former = cluster.kept("gateway")
    former.kill()
    assert echoes(instance)
    began = time.monotonic()
    assert echoes(client.launch("echo"))
    assert time.monotonic() - began < 12  # 2 to 4 on a machine with nothing else to do
    cluster.started_again("gateway", former)
    wait_for(lambda: cluster.state("n2") == "ready", 3)  # it has told the new directory of itself
    assert cluster.nodes()["n2"].incarnation == 1


@pytest.mark.nightly
def test_a_stopped_control_process_is_noticed_and_replaced(
    client: Client, cluster: Cluster
) -> None:
    """Until then the other node is the last one, and is not drained."""
    victim = launched_on(client, "n1")
    process = cluster.control("n1")
    process.send_signal(signal.SIGSTOP)
    wait_for(lambda: cluster.state("n1") == "silent", 5)
    assert all(client.launch("echo").node != victim.node for _ in range(5))
    told = run("drain", "n2", "--folder", str(cluster.folder))
    assert told.exit_code == 1
    assert "the last node that takes launches" in told.output
    seconds = wait_for(lambda: cluster.state("n1") == "starting", 15)
    assert seconds < 12
    assert not process.is_running()
    is_lost(victim)
    cluster.lives_again(victim.node)


@pytest.mark.nightly
def test_launches_go_on_without_rays_head(client: Client, cluster: Cluster) -> None:
    instance = launched_on(client, "n2")
    before = {node.node: node.incarnation for node in cluster.nodes().values()}
    former = cluster.kept("ray")
    former.kill()
    wait_for(lambda: not former.is_running() or former.status() == "zombie")
    assert echoes(instance)
    assert echoes(client.launch("echo"))
    cluster.started_again("ray", former)
    wait_for(lambda: "gcs_server" in name_of(cluster.kept("ray")), 30)
    assert cluster.token is not None
    head = parse_endpoint(f"tcp://{cluster.token.ray}")
    wait_for(lambda: answers(head), 30)  # the next tests' machine joins it
    assert echoes(instance)
    assert {node.node: node.incarnation for node in cluster.nodes().values()} == before


@pytest.mark.nightly
def test_a_machine_with_its_own_folder_fetches_programs_and_shares_what_is_in_a_database(
    client: Client, second: Second, database: str
) -> None:
    instance = launched_on(client, second.node)
    assert echoes(instance)
    text = client.launch("shares", ["store"], near=instance.id).result()
    other = launched_on(client, "n1")
    if database:
        assert text == "kept"
        assert client.launch("shares", ["stored"], near=other.id).result() == "value"
    else:
        assert text.startswith("unsupported: this node of the cluster does not share the store")
        assert client.launch("shares", ["store"], near=other.id).result() == "kept"


@pytest.mark.nightly
def test_a_node_has_two_connections_to_the_database(
    cluster: Cluster, second: Second, database: str
) -> None:
    if not database:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    ask = (
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pie_py'"
        " AND datname = current_database()"
    )
    with psycopg.connect(database) as sql, cluster.client() as client:
        client.launch("echo", durable=True).cancel()
        assert client.launch("shares", ["store"]).result() == "kept"
        (connections,) = sql.execute(ask).fetchone() or (0,)
    assert 0 < connections <= 2 * len(cluster.nodes()) + 1  # that of the gateway
    log = (cluster.folder / "logs/gateway.log").read_text()
    assert "does not exist" not in log  # of a table


# Faults


@pytest.mark.nightly
def test_a_killed_machine_comes_back(client: Client, cluster: Cluster, second: Second) -> None:
    victim = launched_on(client, second.node)
    other = launched_on(client, "n2")
    cluster.kept("agent", second.folder).kill()
    is_lost(victim, 5)
    assert echoes(other)
    cluster.lives_again(victim.node)
    assert echoes(launched_on(client, second.node))


@pytest.mark.nightly
def test_a_killed_worker_leaves_what_has_no_pages(client: Client, cluster: Cluster) -> None:
    echo = launched_on(client, "n1")
    client.upload(HOLDS, name="holds")
    holds = client.launch("holds", near=echo.id)
    assert holds.receive() == "held"

    def without_worker() -> bool:
        for process in cluster.control("n1").children():
            if "worker" in command_line(process):
                process.kill()  # also the next one, which comes later each time
        return cluster.state("n1") == "no-worker"

    wait_for(without_worker)
    is_lost(holds, what="worker")
    assert echoes(echo)
    wait_for(lambda: cluster.serves("n1"))
    again = client.launch("holds", near=echo.id)
    assert again.receive() == "held"
    again.cancel()


@pytest.mark.nightly
def test_a_node_that_is_cut_off_serves_its_clients_until_its_life_is_over(
    client: Client, cluster: Cluster, second: Second
) -> None:
    instance, other = launched_on(client, second.node), launched_on(client, "n2")
    second.way.cut()
    wait_for(lambda: cluster.state(second.node) == "silent", 5)
    assert all(client.launch("echo").node != instance.node for _ in range(5))
    wait_for(lambda: cluster.state(second.node) == "gone", 15)
    with cluster.client() as late, pytest.raises(RpcError, match="node-lost"):
        late.attach(instance.id)
    assert echoes(instance)  # its client reaches it, and nothing was started in its place
    second.way.mend()
    is_lost(instance)
    assert echoes(other)
    cluster.lives_again(instance.node)


@pytest.mark.nightly
def test_nodes_are_changed_for_others_under_load(
    client: Client, cluster: Cluster, second: Second
) -> None:
    """No launch fails, and no instance ends before it is told to."""
    former = second.node
    instance = launched_on(client, former)
    for other in client.instances():
        if f"@{former}." in other["id"] and other["id"] != instance.id:
            client.kill(other["id"])
    stop = threading.Event()

    def launch() -> int:
        count = 0
        with cluster.client() as client:
            while not stop.is_set():
                one = client.launch("echo")
                assert echoes(one)
                one.send("end")
                assert one.result() == "done"
                count += 1
                stop.wait(0.05)  # the machine is for the node that comes
        return count

    with ThreadPoolExecutor(2) as pool:
        loads = [pool.submit(launch) for _ in range(2)]
        try:
            (later,) = cluster.join(cluster.folder / "third")
            told = run("drain", former, "--folder", str(cluster.folder))
            assert told.exit_code == 0, told.output
            wait_for(lambda: cluster.state(former) == "draining", 5)
            launches = [client.launch("echo") for _ in range(5)]
            assert all((one.node or "").split(".")[0] != former for one in launches)
            assert echoes(instance)
            instance.send("end")
            assert instance.result() == "done"
            wait_for(lambda: cluster.state(former) == "gone", 20)
            names = second.folder / "nodes.json"
            wait_for(lambda: json.loads(names.read_text()) == [], 10)
            assert echoes(launched_on(client, later))
        finally:
            stop.set()
        assert all(load.result(60) > 0 for load in loads)
    cluster.drained(later)
    for folder in (second.folder, cluster.folder / "third"):
        cluster.leave(folder)


@pytest.mark.nightly
def test_a_full_disk_is_survived(client: Client, cluster: Cluster) -> None:
    """No process of the head, and no process that it starts, writes a byte more to a file."""
    former = cluster.kept("gateway")
    keeper = former.parent()
    assert keeper is not None
    victim, other = launched_on(client, "n1"), launched_on(client, "n2")
    keeper.rlimit(psutil.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    try:
        former.kill()
        cluster.control("n1").kill()
        is_lost(victim)
        assert echoes(client.launch("echo"))  # by a gateway that was started meanwhile
        assert echoes(other)
        assert cluster.state("n1") != "ready"  # no number for a new life can be kept
    finally:
        keeper.rlimit(psutil.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    cluster.started_again("gateway", former)
    former = cluster.kept("gateway")
    former.kill()  # the next one may write
    cluster.started_again("gateway", former)
    cluster.lives_again(victim.node)
    wait_for(lambda: cluster.serves("n2"))  # which the new directory may hear of later


def test_strangers_are_refused_and_do_no_harm(client: Client, cluster: Cluster) -> None:
    instance = launched_on(client, "n1")
    before = cluster.nodes()
    node = before["n1"]
    processes = [cluster.kept("gateway"), cluster.control("n1")]
    for endpoint in (cluster.endpoint, node.endpoint):
        for garbage in (b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 300):
            host, port = endpoint.removeprefix("tcp://").split(":")
            with socket.create_connection((host, int(port))) as stranger:
                stranger.sendall(garbage)
    assert cluster.token is not None
    directory = directory_of(cluster.token)
    for method, name in (("report", "n1@n2"), ("begin", "n1\n")):
        with pytest.raises(DirectoryRefuses, match="cannot be read"):
            directory.ask(method, node=name)
    forged = report("n1", node.incarnation + 1, 1999)
    assert directory.ask("report", **asdict(forged)) == {"type": "join-again"}
    assert all(process.is_running() for process in processes)
    assert {n.node: n.incarnation for n in cluster.nodes().values()} == {
        n.node: n.incarnation for n in before.values()
    }
    assert echoes(instance)


@pytest.mark.nightly
def test_what_clients_are_told_at_random_moments_is_whole(cluster: Cluster) -> None:
    """Each echo's transcript is what one server's would be, or ends with node-lost."""
    random = Random(23)
    ends: list[str] = []
    stop = threading.Event()

    def talk() -> None:
        with cluster.client() as client:
            while not stop.is_set():
                try:
                    instance, number = client.launch("echo"), 0
                    while number < 200 and not stop.is_set():
                        instance.send(str(number))
                        if (message := instance.receive()) is None:
                            break  # it has ended, and its result tells why
                        assert message == f"{number}!"
                        number += 1
                        stop.wait(0.005)  # the machine is for what starts again
                    instance.send("end")
                    assert instance.result() == "done"
                    ends.append("done")
                except (InferletFailed, RpcError) as error:  # of a launch under way
                    ends.append(str(error).split(":")[0])

    with ThreadPoolExecutor(4) as pool:
        talks = [pool.submit(talk) for _ in range(4)]
        try:
            for kill in random.sample(["n1", "gateway", "n2"], 3):
                time.sleep(random.random())
                if kill == "gateway":
                    former = cluster.kept(kill)
                    former.kill()
                    cluster.started_again(kill, former)
                else:
                    wait_for(partial(cluster.serves, kill))
                    node = cluster.nodes()[kill]
                    cluster.control(kill).kill()
                    cluster.lives_again(f"{kill}.{node.incarnation}")
        finally:
            stop.set()
        for each in talks:
            each.result(60)
    assert set(ends) == {"done", "node-lost"}


@pytest.mark.nightly
def test_the_page_shows_the_nodes(cluster: Cluster, tmp_path: Path) -> None:
    """Of the HTTP gateway that the head's keeper keeps, at one address."""
    former = cluster.kept("http")
    address = parse_endpoint(cluster.url.replace("http", "tcp"))
    former.kill()
    cluster.started_again("http", former)
    wait_for(lambda: answers(address))
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("there is no chromium here; Debian's package has that name")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        schemes: tuple[Literal["light", "dark"], ...] = ("light", "dark")
        for scheme in schemes:
            page = browser.new_page(viewport={"width": 390, "height": 800}, color_scheme=scheme)
            page.goto(cluster.url)
            page.locator("table.nodes tbody tr").first.wait_for()
            table = page.locator("table.nodes").text_content() or ""
            assert all(f"{n.node}.{n.incarnation}ready" in table for n in cluster.nodes().values())
            inside = "document.querySelector('.scroll')"
            assert page.evaluate(f"{inside}.scrollWidth <= {inside}.clientWidth")
            page.screenshot(path=tmp_path / f"{scheme}-narrow.png", full_page=True)
            page.set_viewport_size({"width": 1200, "height": 800})
            page.screenshot(path=tmp_path / f"{scheme}-wide.png", full_page=True)
        browser.close()


# Operators


def test_status_tells_every_node(cluster: Cluster) -> None:
    told = run("status", "--json", "--folder", str(cluster.folder))
    assert told.exit_code == 0, told.output
    assert [(row["node"], row["state"]) for row in json.loads(told.stdout)] == [
        ("n1", "ready"),
        ("n2", "ready"),
    ]
    assert cluster.token is not None
    assert f"clients connect to {cluster.endpoint}\nHTTP at {cluster.url}\n" in told.stderr


def test_wrong_input_is_told_in_one_line(cluster: Cluster, tmp_path: Path) -> None:
    token = cluster.folder / "token.json"
    facts = json.loads(token.read_text())
    folder = ["--folder", str(cluster.folder)]
    empty = ["--folder", str(tmp_path / "empty")]
    join = ["join", cluster.endpoint, *empty, "--token"]

    def changed(**fields: object) -> str:
        """A token like the cluster's, but for some fields."""
        file = tmp_path / f"{len(list(tmp_path.iterdir()))}.json"
        file.write_text(json.dumps(facts | fields))
        return str(file)

    models = [{**facts["server"]["models"][0], "page_size": 8}]
    told = run(*join, str(token), "--http", "8000")
    assert told.exit_code == 2
    assert "--http: '8000' is not HOST:PORT" in told.output
    for args, words in (
        ([*join, changed(server={**facts["server"], "models": models})], "names other models"),
        ([*join, changed(ray_token="0" * 64)], "refuses the token"),
        ([*join, str(tmp_path / "none")], "cannot be read"),
        ([*join, changed(nodez=3)], "is no token"),
        ([*join, changed(versions={**facts["versions"], "Ray": "1.0"})], "1.0: install the same"),
        (["join", "tcp://127.0.0.1:1", "--token", str(token), *empty], "the token is for"),
        ([*join, str(token), *folder], "runs a part of a cluster"),
        (["drain", "n77", *folder], "no node is called 'n77'"),
        (["status", *empty], "no cluster is in"),
    ):
        told = run(*args)
        assert told.exit_code == 1, told.output
        assert words in told.output
        assert len(told.output.strip().splitlines()) == 1, told.output
    assert not processes_of(tmp_path)
    assert run("drain").exit_code == 2


def test_a_second_cluster_of_the_same_address_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    used = cluster.url.removeprefix("http://")
    taken = f'[gateway]\nhttp = "{used}"\n'
    for endpoint, http, folder, words in (
        (cluster.endpoint, "", tmp_path / "other", "is in use"),
        (FREE, "", cluster.folder, "runs a part of a cluster"),
        (FREE, taken, tmp_path / "third", f"cannot listen for HTTP at {used}: Address already"),
    ):
        told = run("up", *settings_of(tmp_path / "cluster.toml", folder, endpoint, http))
        assert (told.exit_code, words in told.output) == (1, True), told.output
        assert not (folder / "processes.json").exists() or folder == cluster.folder


@pytest.mark.nightly
def test_a_copied_folder_is_another_machine(cluster: Cluster) -> None:
    copy = cluster.folder / "copy"
    copy.mkdir()
    (copy / "nodes.json").write_text('["n2"]')
    before = cluster.nodes()["n2"]
    (name,) = cluster.join(copy)
    assert name not in ("n1", "n2")
    assert cluster.serves(name)
    after = cluster.nodes()["n2"]
    assert (after.incarnation, after.state) == (before.incarnation, "ready")
    cluster.leave(copy)


def test_a_clock_that_jumps_does_not_hide_what_runs(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = psutil.boot_time()
    monkeypatch.setattr("psutil._pslinux.boot_time", lambda: began + 3600)
    told = run("up", *settings_of(tmp_path / "cluster.toml", cluster.folder))
    assert (told.exit_code, "runs a part of a cluster" in told.output) == (1, True), told.output


@pytest.mark.nightly
def test_of_joint_starts_one_is_up(tmp_path: Path) -> None:
    """Two in one folder, another one at the same address, and one whose disk is full.

    No process of theirs imports from where they are started; nor do Ray's actors, which import from
    where their driver stands, too.
    """
    set_traps(tmp_path)
    port = free_ports("127.0.0.1", 1)[0]
    with tempfile.TemporaryDirectory(prefix="pie-") as short:
        folders = [Path(short) / name for name in ("a", "a", "b", "full")]
        endpoint = f"tcp://127.0.0.1:{port}"
        command = [sys.executable, "-m", "pie_py", "cluster", "up"]
        starts = [
            subprocess.Popen(
                [*command, *settings_of(tmp_path / f"{number}.toml", folder, endpoint, INSTANT)],
                cwd=tmp_path,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                preexec_fn=_full_disk if folder.name == "full" else None,
            )
            for number, folder in enumerate(folders)
        ]
        told = [start.communicate()[1].strip().splitlines()[-1] for start in starts]
        assert [start.returncode for start in starts].count(0) == 1, told
        for start, text in zip(starts, told, strict=True):
            reasons = "is at work in", "runs a part", "in use", "does not start", "File too large"
            assert start.returncode == 0 or any(reason in text for reason in reasons), text
        assert starts[3].returncode == 1
        up = folders[[start.returncode for start in starts].index(0)]
        try:
            with Client(Token.read(up / "token.json").gateway) as client:
                instance = client.launch(client.upload(ECHO, name="echo"))
                instance.send("end")
                assert instance.result() == "done"
        finally:
            running = [folder for folder in folders[1:3] if operate.down(folder)]
        assert len(running) == 1
        assert not processes_of(Path(short))
    assert not trapped(tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("command", "begun"),
    [("up", "keeper.pid"), ("up", "processes.json"), ("join", "processes.json")],
)
def test_a_start_that_is_terminated_leaves_nothing(
    cluster: Cluster, tmp_path: Path, command: str, begun: str
) -> None:
    with tempfile.TemporaryDirectory(prefix="pie-") as short:
        folder = Path(short) / command
        token = str(cluster.folder / "token.json")
        arguments = {
            "up": settings_of(tmp_path / "cluster.toml", folder),
            "join": [cluster.endpoint, "--token", token, "--folder", str(folder)],
        }[command]
        line = [sys.executable, "-m", "pie_py", "cluster", command, *arguments]
        start = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for((folder / begun).exists)
        start.terminate()
        assert start.wait(60) == 143
        wait_for(lambda: not processes_of(folder))


def _full_disk() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


def test_a_gateway_answers_all_that_a_server_does(cluster: Cluster) -> None:
    """But for what is asked of an instance's node."""

    async def ask(endpoint: str, method: str) -> tuple[str, str]:
        async with AsyncClient(endpoint) as client:
            try:
                await client._connected.request(method)
            except RpcError as error:
                return error.code, error.message
        return "", ""

    node = cluster.nodes()["n1"].endpoint
    names = anyio.run(ask, node, "nothing")[1].partition("; there are ")[2].split(", ")
    assert len(names) > 20
    refused = {name for name in names if anyio.run(ask, cluster.endpoint, name)[0] == "unsupported"}
    assert refused == {methods.name_of(one) for one in methods.OF_INSTANCES}


@pytest.mark.nightly
def test_what_is_set_at_the_gateway_is_set_on_all_nodes(cluster: Cluster) -> None:
    """And on those that come later, also after the gateway has ended."""

    def on_node(node: str) -> tuple[list[str], list[str]]:
        with Client(cluster.nodes()[node].endpoint) as alone:
            adapters = [one["name"] for one in alone.adapters()]
            return adapters, [one["name"] for one in alone.mcp_servers()]

    with cluster.client() as client:
        client.load_adapter("style", "/adapters/style")
        client.register_mcp("tools", "http://127.0.0.1:1")
        assert [on_node(node) for node in ("n1", "n2")] == [(["style"], ["tools"])] * 2
        assert [one["name"] for one in client.adapters()] == ["style"]
        assert [one["own"] for one in client.mcp_servers()] == [True]
        for again in (
            partial(client.load_adapter, "style", "/adapters/other"),
            partial(client.register_mcp, "tools", "http://127.0.0.1:2"),
        ):
            with pytest.raises(RpcError, match="already-exists"):
                again()
        with pytest.raises(RpcError, match="relative"):
            client.load_adapter("other", "relative")
        former, life = cluster.kept("gateway"), cluster.nodes()["n1"].incarnation
        former.kill()
        cluster.control("n1").kill()
        cluster.started_again("gateway", former)
        cluster.lives_again(f"n1.{life}")
        wait_for(lambda: on_node("n1") == (["style"], ["tools"]), 10)
        client.unload_adapter("style")
        client.unregister_mcp("tools")
        assert [on_node(node) for node in ("n1", "n2")] == [([], [])] * 2
        for again in (
            partial(client.unload_adapter, "style"),
            partial(client.unregister_mcp, "tools"),
        ):
            with pytest.raises(RpcError, match="not-found"):
                again()


@pytest.mark.nightly
def test_quotas_are_counted_by_each_node(cluster: Cluster) -> None:
    with cluster.client() as client:
        kinds = {kind["kind"]: kind for kind in client.quota()[0]["kinds"]}
        assert kinds["n1: instances"]["may"] == kinds["n2: instances"]["may"] == 1000
        assert kinds["bytes of programs"]["has"] > 0
        assert [user["user"] for user in client.quota(all_users=True)] == ["local"]


@pytest.mark.nightly
def test_a_machine_that_died_joins_again_with_its_node(cluster: Cluster) -> None:
    died = cluster.folder / "rejoins"
    (node,) = cluster.join(died)
    kept = keeper(died)
    assert kept is not None
    for process in (kept, *kept.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            process.kill()
    wait_for(lambda: cluster.state(node) == "gone")
    assert cluster.join(died) == [node]
    assert (cluster.state(node), cluster.nodes()[node].incarnation) == ("ready", 2)
    for _ in range(2):
        cluster.others.remove(died)
    operate.down(died)
    assert node not in cluster.nodes()  # it has left


@pytest.mark.nightly
def test_a_node_is_started_again_when_it_is_empty(client: Client, cluster: Cluster) -> None:
    instance = launched_on(client, "n2")
    told = run("restart", "n2", "--folder", str(cluster.folder))
    assert told.exit_code == 0, told.output
    wait_for(lambda: cluster.state("n2") == "draining")
    assert echoes(instance)
    assert client.launch("echo").node != instance.node
    instance.send("end")
    assert instance.result() == "done"
    cluster.lives_again(instance.node)


@pytest.mark.nightly
def test_a_head_whose_keeper_was_killed_starts_again_and_its_nodes_go_on(cluster: Cluster) -> None:
    before = {name: node.incarnation for name, node in cluster.nodes().items()}
    alive = node_names(cluster.folder)
    assert alive
    kept = keeper(cluster.folder)
    assert kept is not None
    kept.kill()
    kept.wait()
    assert cluster.token is not None
    ports = [cluster.endpoint, f"tcp://{cluster.token.ray}"]
    wait_for(lambda: not any(answers(parse_endpoint(port)) for port in ports))
    other = cluster.config.model_copy(update={"server": {}})
    with pytest.raises(ClusterProblem, match="run still, and it had other settings"):
        operate.up(other, lambda text: None)
    cluster.token = operate.up(cluster.config, lambda text: None)
    after = cluster.nodes()
    assert [after[name].incarnation for name in alive] == [before[name] for name in alive]
    assert [after[name].state for name in alive] == ["ready"] * len(alive)
    with cluster.client() as client:
        assert echoes(client.launch(client.upload(ECHO, name="echo")))
