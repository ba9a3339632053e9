"""Asking the directory from plain code: the command line, and the actors around nodes."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

import zmq

from pie_cluster.wire.messages import (
    UNASKED,
    Allot,
    Allotted,
    Answer,
    NodeFacts,
    NodeList,
    Nodes,
    NotOfCluster,
    Question,
    Refused,
    decode_told,
    encode,
)
from pie_cluster.wire.sockets import member_dealer
from pie_py.config.keys import KeyPair

ASK_SECONDS = 5.0  # that the directory has
AGAIN_SECONDS = 0.5  # without an answer: the question is asked again


class DirectoryAway(Exception):
    """The directory does not answer."""


class DirectoryRefuses(Exception):
    """The directory does not grant what was asked."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Directory:
    """A member's connection to the directory. To be closed, or used in a `with`."""

    def __init__(self, endpoint: str, pair: KeyPair | None) -> None:
        """Connects; whether the directory is there shows with the first question."""
        self._endpoint = endpoint
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = member_dealer(self._context, endpoint, pair)
        self._numbers = itertools.count(1)

    def __enter__(self) -> Directory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Disconnects."""
        self._context.destroy(linger=0)

    def nodes(self) -> list[NodeFacts]:
        """All nodes, by name. Raises as `ask`."""
        answer = self.ask(Nodes)
        assert isinstance(answer, NodeList)
        return answer.nodes

    def allot(self, count: int, models: str) -> list[str]:
        """Names of so many new nodes, which serve models of a hash. Raises as `ask`."""
        answer = self.ask(Allot, count, models)
        assert isinstance(answer, Allotted)
        return answer.names

    def ask(self, kind: Callable[..., Question], *fields: object) -> Answer:
        """The answer to a question of a kind and its fields, which is asked again until it comes.

        Raises:
            DirectoryAway: if none comes within `ASK_SECONDS`.
            DirectoryRefuses: if it is not granted.
        """
        question = kind(next(self._numbers), *fields)
        frame = encode(question)
        end = time.monotonic() + ASK_SECONDS
        while (left := end - time.monotonic()) > 0:
            try:
                self._socket.send(frame, zmq.NOBLOCK)
            except zmq.Again:  # no connection yet
                time.sleep(min(0.02, left))
                continue
            answer = self._receive(question.number, min(left, AGAIN_SECONDS))
            if isinstance(answer, Refused):
                raise DirectoryRefuses(answer.code, answer.message)
            if answer is not None:
                return answer
        raise DirectoryAway(
            f"no directory of a cluster answers at {self._endpoint} within {ASK_SECONDS:g} s; is"
            " the address right, and does `pie-py cluster up` run there?"
        )

    def _receive(self, number: int, seconds: float) -> Answer | None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if not self._socket.poll(max(1, int(left * 1000))):
                return None
            try:
                answer = decode_told(self._socket.recv())
            except NotOfCluster:
                continue
            if not isinstance(answer, UNASKED) and answer.number == number:
                return answer
        return None
