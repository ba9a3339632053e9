"""Two nodes behind a gateway: the connections that it passes on, with tickets alone, as many as may
be, and whole; each user's share of the nodes; and what is set on all of them.
"""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from support.clusters import ECHO, echoes, launched_on, wait_for
from support.nodes import Node, Nodes

from pie_cluster.gateway.relay import MOST_PASSAGES, TICKET_SECONDS
from pie_cluster.gateway.tickets import BadTicket, NoTicket, Tickets, parted
from pie_cluster.wire.requests import connected
from pie_py.client import ClientError, RpcError
from pie_py.client.connection import Connection, Relay
from pie_py.client.sync import Client
from pie_py.config.endpoint import parse_endpoint
from pie_py.config.keys import KeyStore

pytestmark = pytest.mark.slow

SIGNATURE = b"\xff" + bytes(7) + b"\1\x7f"  # as ZeroMQ begins
USERS = ("ann", "bob")
BOBS_SHARE = 0.005
MOST_INSTANCES = 400  # of a node: two are bob's
MESSAGE_BYTES = 1 << 20
MESSAGES = 24
BLOBS = b"""
from inferlet import session


async def main(args):
    while True:
        session.send_blob(await session.receive_blob())
"""


def line(ticket: str) -> bytes:
    """What a client writes."""
    return ticket.encode() + b"\n"


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    shares = {"bob": {"share": BOBS_SHARE}}
    with (
        tempfile.TemporaryDirectory(prefix="pie-") as folder,
        Nodes(Path(folder), "", USERS, max_instances=MOST_INSTANCES, quotas=shares) as nodes,
    ):
        yield nodes


@pytest.fixture(scope="module")
def started(nodes: Nodes) -> list[Node]:
    return nodes.start_all({"n1": {}, "n2": {}})


@pytest.fixture
def ann(nodes: Nodes, started: list[Node]) -> Iterator[Client]:
    with nodes.relayed("ann") as client:
        yield client


def ticket(nodes: Nodes, life: str, user: str = "ann") -> dict[str, Any]:
    """As the gateway gives it to a user."""

    async def ask() -> dict[str, Any]:
        async with connected(nodes.gateway, nodes.key(user)) as connection:
            told: dict[str, Any] = await connection.request("relay", life=life)
            return told

    return trio.run(ask)


@pytest.fixture(scope="module")
def port(nodes: Nodes) -> int:
    """The relay's."""
    return int(ticket(nodes, "n1.1")["port"])


def opened(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), 20)


def heard(port: int, *said: bytes) -> bytes:
    """The first that is answered to what is said, a part at a time; nothing if that is refused."""
    with opened(port) as stranger:
        stranger.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            for part in said:
                stranger.sendall(part)
                time.sleep(0.02)
            return stranger.recv(100)
        except ConnectionError:  # it was closed before all was read
            return b""


# Tickets


def test_a_ticket_is_for_one_life_and_one_user() -> None:
    made = Tickets("secret").make("n-7.3", "ada.l_o-v")
    assert Tickets("secret").read(made) == ("n-7.3", "ada.l_o-v")
    mac = made.rpartition(".")[2]
    for name in (
        f"n-7.4.ada.l_o-v.{mac}",
        f"n-7.3.ada.{mac}",
        f"n-7.3.ada.l_o.v.{mac}",
        made[:-1],
        made.upper(),
        "localhost",
        "n-7.3..",
        "é.1.é.é",
        "",
    ):
        with pytest.raises(BadTicket):
            Tickets("secret").read(name)
    with pytest.raises(BadTicket):
        Tickets("another").read(made)


def test_a_ticket_leads_to_its_node_alone(nodes: Nodes, started: list[Node], port: int) -> None:
    life = started[0].life
    good = ticket(nodes, life)["ticket"]
    for said in (
        (SIGNATURE + line(good),),
        (line(good) + SIGNATURE,),
        (line(good), SIGNATURE),
        (SIGNATURE[:3], SIGNATURE[3:] + line(good)[:9], line(good)[9:]),
    ):
        assert heard(port, *said).startswith(SIGNATURE[:1]), said  # the node's, with more
    theirs = good.replace(".ann.", ".bob.")
    gone = ticket(nodes, "n1.99")["ticket"]
    for name in (good[:-1], theirs, gone, "n9.1", "127.0.0.1", "x" * 255, "", "\0\r"):
        assert heard(port, SIGNATURE + line(name)) == b"", name
    for life in ("n1.99@n1", "", "n1.01", "n1", "x" * 300):
        with pytest.raises(RpcError, match="invalid-argument"):
            ticket(nodes, life)


@given(st.binary(max_size=400), st.integers(0, 400))
def test_a_ticket_is_found_wherever_it_is_cut(data: bytes, cut: int) -> None:
    """What is no ticket is no error of another kind; all that is not the ticket is for the node."""
    try:
        found = parted(data)
    except NoTicket:
        return
    if found is not None:
        assert sorted(line(found[0]) + found[1]) == sorted(data)
    good = SIGNATURE + line("n1.1.ann.mac") + data
    assert parted(good) == ("n1.1.ann.mac", SIGNATURE + data)
    part = parted(good[:cut])
    assert part in (None, ("n1.1.ann.mac", SIGNATURE + data[: max(0, cut - 23)]))


# Strangers


def test_who_shows_no_ticket_is_refused(nodes: Nodes, ann: Client, port: int) -> None:
    instance = launched_on(ann, "n1")
    silent = [opened(port) for _ in range(50)]
    half = [opened(port) for _ in range(50)]
    for each in half:
        each.sendall(SIGNATURE + b"n1.1.ann")
    for said in (
        b"GET / HTTP/1.1\r\n\r\n",
        b"\5\1\0",  # SOCKS
        b"\xff" * 300,
        os.urandom(1000),
        "ticket\u00e9\n".encode(),
        bytes(300),
        SIGNATURE + b"\n\n\n",
    ):
        # It may be cut off by what it was not asked for.
        with opened(port) as stranger, suppress(OSError):
            stranger.sendall(said)
            stranger.shutdown(socket.SHUT_WR)
            assert stranger.recv(100) == b""
    assert echoes(instance)
    for each in (*silent, *half):
        with each:
            each.settimeout(TICKET_SECONDS + 20)
            assert each.recv(1) == b""
    assert "refused to relay" in nodes.gateway_log()
    assert echoes(instance)


# What is passed on


def test_much_comes_through_whole_both_ways(ann: Client, started: list[Node]) -> None:
    ann.upload(BLOBS, name="blobs")
    instance = ann.launch("blobs")
    messages = [os.urandom(MESSAGE_BYTES) for _ in range(MESSAGES)]
    back = hashlib.sha256()

    def send() -> None:
        for message in messages:
            instance.send(message)

    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(send)
        for _ in messages:
            message = instance.receive()
            assert isinstance(message, bytes)
            back.update(message)
        sending.result()
    assert back.digest() == hashlib.sha256(b"".join(messages)).digest()


def test_a_user_has_a_share_of_the_passages(nodes: Nodes, ann: Client, port: int) -> None:
    instance = launched_on(ann, "n1")
    most = int(MOST_PASSAGES * BOBS_SHARE)
    passage = SIGNATURE + line(ticket(nodes, "n1.1", "bob")["ticket"])
    with ExitStack() as stack:
        for _ in range(most):
            taken = stack.enter_context(opened(port))
            taken.sendall(passage)
            assert taken.recv(1) == SIGNATURE[:1]
        assert heard(port, passage) == b""
        with pytest.raises(RpcError, match=f"busy: {most} of your connections are relayed"):
            ticket(nodes, "n2.1", "bob")
        assert echoes(instance)
        assert echoes(launched_on(ann, "n2"))
    wait_for(lambda: heard(port, passage) != b"", 10)  # what has ended counts no longer


def test_who_has_another_key_gets_no_further_than_the_node(
    nodes: Nodes, started: list[Node], tmp_path: Path
) -> None:
    """A ticket is no key: the node asks for one."""
    stranger = KeyStore(tmp_path).add("ann")
    key = replace(stranger, server=nodes.key("ann").server)
    told = ticket(nodes, started[0].life)
    way = Relay(parse_endpoint(f"tcp://127.0.0.1:{told['port']}"), told["ticket"])

    async def problem() -> ClientError | None:
        connection = Connection(parse_endpoint(started[0].endpoint), key, 20, way)
        async with trio.open_nursery() as nursery:
            await nursery.start(partial(run, connection))
            found = await connection.ready()
            nursery.cancel_scope.cancel()
        return found

    async def run(connection: Connection, task_status: trio.TaskStatus[None]) -> None:
        await connection.run(task_status=task_status)

    assert "does not accept this key" in str(trio.run(problem))


def test_a_gateway_at_an_ipv6_address_relays() -> None:
    if not socket.has_ipv6 or not Path("/proc/net/if_inet6").exists():
        pytest.skip("there is no IPv6 here")
    with (
        tempfile.TemporaryDirectory(prefix="pie-") as folder,
        Nodes(Path(folder), "", ("ann",), host="[::]") as nodes,
        Client(nodes.gateway.replace("[::]", "[::1]"), nodes.key("ann"), relay=True) as client,
    ):
        nodes.start("n1")
        client.upload(ECHO, name="echo")
        assert echoes(client.launch("echo"))


# Nodes


def test_a_user_has_his_share_of_each_node(nodes: Nodes, started: list[Node]) -> None:
    with Client(nodes.gateway, nodes.key("bob")) as bob:
        bob.upload(ECHO, name="echo")
        ids = [bob.launch("echo").id for _ in range(4)]
        assert sorted(each.rpartition("@")[2] for each in ids) == ["n1.1"] * 2 + ["n2.1"] * 2
        with pytest.raises(RpcError, match=r"limit-exceeded: .* one user may have"):
            bob.launch("echo")


def test_a_node_that_was_silent_has_no_more_than_others(nodes: Nodes, started: list[Node]) -> None:
    """Of what is set at the gateway meanwhile."""
    old, new = "http://127.0.0.1:1", "http://127.0.0.1:2"
    _, node = started
    with Client(nodes.gateway, nodes.key("ann")) as ann, nodes.client(node, "ann") as there:

        def has() -> dict[str, str]:
            return {one["name"]: one["at"] for one in there.mcp_servers()}

        ann.register_mcp("changed", old)
        ann.register_mcp("removed", old)
        assert has() == {"changed": old, "removed": old}
        node.process.send_signal(signal.SIGSTOP)
        wait_for(lambda: "n2" not in nodes.ready())
        ann.unregister_mcp("removed")
        ann.unregister_mcp("changed")
        ann.register_mcp("changed", new)
        node.process.send_signal(signal.SIGCONT)
        wait_for(lambda: has() == {"changed": new})
