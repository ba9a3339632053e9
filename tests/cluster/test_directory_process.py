"""The directory behind its socket: the numbers of lives that it gives, also after a restart."""

from __future__ import annotations

import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path

import pytest
import zmq
from cluster.messages import join, report
from support.child_processes import ChildProcess
from support.clusters import SERVER, wait_for

from pie_cluster.config import MemberConfig
from pie_cluster.directory.asking import Directory, DirectoryAway
from pie_cluster.machines.token import free_ports
from pie_cluster.wire.messages import (
    Fenced,
    Join,
    JoinAgain,
    Renewed,
    Report,
    ToNode,
    decode_told,
    encode,
)
from pie_cluster.wire.sockets import member_dealer
from pie_py.client.errors import ClientError, ServerUnreachable
from pie_py.client.sync import Client

SECONDS = 20


class Member:
    """One member's connection."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], directory: str) -> None:
        self._socket = member_dealer(context, directory, None)
        assert self._socket.poll(SECONDS * 1000, zmq.POLLOUT)

    def tell(self, message: Join | Report) -> ToNode:
        self._socket.send(encode(message))
        return decode_told(self._received())

    def _received(self) -> bytes:
        assert self._socket.poll(SECONDS * 1000)
        return self._socket.recv()


def started(folder: Path, directory: str, endpoint: str = "tcp://127.0.0.1:*") -> ChildProcess:
    """A gateway, with the directory of what a folder keeps."""
    member = MemberConfig(directory=directory, folder=folder)
    config = {
        **SERVER,
        "endpoint": endpoint,
        "data_folder": str(folder / "data"),
        "extension": asdict(member.extension()),
    }
    return ChildProcess("pie_cluster.gateway", config, folder / "gateway.log")


@contextmanager
def running(folder: Path) -> Iterator[tuple[Member, Directory]]:
    """A gateway, a node's connection and an operator's."""
    endpoint = f"tcp://127.0.0.1:{free_ports('127.0.0.1', 1)[0]}"
    with ExitStack() as stack:
        gateway = stack.enter_context(started(folder, endpoint))
        context = stack.enter_context(zmq.Context())
        yield Member(context, endpoint), Directory(gateway.endpoint, None)


def test_a_life_ends_as_another_one_begins(tmp_path: Path) -> None:
    with running(tmp_path) as (member, operator):
        assert operator.begin("n1") == 1
        assert isinstance(member.tell(join("n1", 1)), Renewed)
        assert isinstance(member.tell(report(1, "n1")), Renewed)
        assert operator.begin("n1", "it was killed") == 2
        assert isinstance(member.tell(report(2, "n1")), Fenced)
        assert isinstance(member.tell(join("n1", 1)), Fenced)


def test_a_life_that_is_over_is_so_for_a_directory_that_is_started_again(tmp_path: Path) -> None:
    with running(tmp_path) as (member, operator):
        for node in ("n1", "n2", "n3"):
            assert operator.begin(node) == 1
            assert isinstance(member.tell(join(node)), Renewed)
        operator.drain("n2", 0.0)
        wait_for(lambda: "n2" not in {node.node for node in operator.nodes()})
        assert operator.begin("n3") == 2
    with running(tmp_path) as (member, _):
        for node in ("n1", "n2", "n3"):
            assert isinstance(member.tell(report(1, node)), JoinAgain)
        assert isinstance(member.tell(join("n1")), Renewed)
        assert isinstance(member.tell(join("n2")), Fenced)  # it was drained
        assert isinstance(member.tell(join("n2", drain_ms=500)), Fenced)
        assert isinstance(member.tell(join("n3")), Fenced)  # another life of it has begun
        assert isinstance(member.tell(join("n3", 2)), Renewed)


@pytest.mark.parametrize("is_orderly", [True, False])
def test_a_client_finds_a_gateway_again_that_was_away_for_longer_than_its_patience(
    tmp_path: Path, is_orderly: bool
) -> None:
    gateway, directory = (f"tcp://127.0.0.1:{port}" for port in free_ports("127.0.0.1", 2))
    former = started(tmp_path, directory, gateway)
    with former, Client(gateway, patience=1.0) as client:
        assert client.programs() == []
        if is_orderly:
            former.ask_to_stop()
        else:
            former.process.kill()
        former.process.wait()
        for _ in range(2):
            with pytest.raises(ServerUnreachable, match="`pie-py cluster up` on its head"):
                client.programs()
        with started(tmp_path, directory, gateway):
            wait_for(lambda: answered(client))


def answered(client: Client) -> bool:
    try:
        return client.programs() == []
    except ClientError:
        return False


def test_a_head_that_is_down_is_started_by_a_command_for_clusters() -> None:
    gateway = f"tcp://127.0.0.1:{free_ports('127.0.0.1', 1)[0]}"
    with pytest.raises(DirectoryAway, match="`pie-py cluster up` there starts it") as away:
        Directory(gateway, None).nodes()
    assert "serve" not in str(away.value)


def test_a_signal_ends_one_who_asks_as_it_wants() -> None:
    def end(*_: object) -> None:
        sys.exit(143)

    former = signal.signal(signal.SIGALRM, end)
    try:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            signal.setitimer(signal.ITIMER_REAL, 0.5)
            with pytest.raises(SystemExit, match="143"):
                Directory(f"tcp://127.0.0.1:{silent.getsockname()[1]}", None).nodes()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)
