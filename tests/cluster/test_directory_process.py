"""The directory behind its socket: the numbers of lives that it gives, also after a restart."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import zmq
from cluster.messages import join, report
from support.child_processes import ChildProcess
from support.clusters import SERVER, wait_for

from pie_cluster.config import MemberConfig
from pie_cluster.directory.asking import Directory
from pie_cluster.machines.token import free_ports
from pie_cluster.wire.messages import (
    Begin,
    Begun,
    Drain,
    Fenced,
    Join,
    JoinAgain,
    Renewed,
    Report,
    Told,
    decode_told,
    encode,
)
from pie_cluster.wire.sockets import member_dealer

SECONDS = 20


class Member:
    """One member's connection."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], directory: str) -> None:
        self._socket = member_dealer(context, directory, None)
        assert self._socket.poll(SECONDS * 1000, zmq.POLLOUT)

    def tell(self, message: Join | Report) -> Told:
        self._socket.send(encode(message))
        return decode_told(self._received())

    def begin(self, node: str, number: int, times: int = 1) -> list[int]:
        """The lives that are given when one question is sent so often."""
        for _ in range(times):
            self._socket.send(encode(Begin(number, node)))
        answers = [decode_told(self._received()) for _ in range(times)]
        return [answer.incarnation for answer in answers if isinstance(answer, Begun)]

    def _received(self) -> bytes:
        assert self._socket.poll(SECONDS * 1000)
        return self._socket.recv()


@contextmanager
def running(folder: Path) -> Iterator[tuple[Member, Directory]]:
    """A directory of what a folder keeps, a node's connection and an operator's."""
    endpoint = f"tcp://127.0.0.1:{free_ports('127.0.0.1', 1)[0]}"
    member = MemberConfig(directory=endpoint, folder=folder)
    config = {
        **SERVER,
        "endpoint": "tcp://127.0.0.1:*",
        "data_folder": str(folder / "data"),
        "extension": member.extension().model_dump(),
    }
    with ExitStack() as stack:
        stack.enter_context(ChildProcess("pie_cluster.gateway", config, folder / "gateway.log"))
        context = stack.enter_context(zmq.Context())
        operator = stack.enter_context(Directory(endpoint, None))
        yield Member(context, endpoint), operator


def test_a_question_for_a_life_that_comes_twice_gives_one(tmp_path: Path) -> None:
    with running(tmp_path) as (member, _):
        assert member.begin("n1", 1, times=3) == [1, 1, 1]
        assert isinstance(member.tell(join("n1", 1)), Renewed)
        assert member.begin("n1", 1) == [1]  # a copy that was late
        assert isinstance(member.tell(report(1, "n1")), Renewed)
        assert member.begin("n1", 2) == [2]
        assert isinstance(member.tell(join("n1", 1)), Fenced)


def test_a_life_that_is_over_is_so_for_a_directory_that_is_started_again(tmp_path: Path) -> None:
    with running(tmp_path) as (member, operator):
        for number, node in enumerate(("n1", "n2", "n3"), 1):
            assert member.begin(node, number) == [1]
            assert isinstance(member.tell(join(node)), Renewed)
        operator.ask(Drain, "n2", 0.0)

        wait_for(lambda: "n2" not in {node.node for node in operator.nodes()})
        assert member.begin("n3", 4) == [2]
    with running(tmp_path) as (member, _):
        for node in ("n1", "n2", "n3"):
            assert isinstance(member.tell(report(1, node)), JoinAgain)
        assert isinstance(member.tell(join("n1")), Renewed)
        assert isinstance(member.tell(join("n2")), Fenced)  # it was drained
        assert isinstance(member.tell(join("n2", drain_ms=500)), Fenced)
        assert isinstance(member.tell(join("n3")), Fenced)  # another life of it has begun
        assert isinstance(member.tell(join("n3", 2)), Renewed)
