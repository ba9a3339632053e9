"""`python -m pie_cluster.directory --config JSON`: the directory, around its decisions.

One thread, one ROUTER: what comes is answered before the next message is read. Gateways that follow
are told of changes. Nothing is kept but the numbers of lives.
"""

from __future__ import annotations

import argparse
import logging
import math
import random
import secrets
import sys
import time
from pathlib import Path
from typing import NamedTuple

import zmq
from pydantic import BaseModel, ConfigDict

from pie_cluster.config import read_member_pair
from pie_cluster.directory.directory import Directory, PlacementRequest, Refusal, Remove
from pie_cluster.directory.followers import Followers
from pie_cluster.directory.lives import Lives, LivesUnusable
from pie_cluster.directory.names import Life
from pie_cluster.directory.policies import load_policy
from pie_cluster.wire.messages import (
    Allot,
    Allotted,
    Answer,
    Begin,
    Begun,
    Done,
    Drain,
    Fenced,
    Follow,
    Join,
    NodeAddress,
    NodeFacts,
    NodeList,
    Nodes,
    NotOfCluster,
    Placed,
    PlaceLaunch,
    Question,
    Refused,
    Report,
    ToDirectory,
    ToNode,
    User,
    UserOf,
    Where,
    decode_to_directory,
    encode,
)
from pie_cluster.wire.sockets import Gate, member_router
from pie_py.config.child import exit_with_parent, report_error, report_ready
from pie_py.config.keys import KeyProblem, KeyStore, KnownUsers
from pie_py.config.plugins import UnknownPolicy

log = logging.getLogger("pie.directory")

LOOK_SECONDS = 0.25  # between two looks at leases
TURN_MESSAGES = 1000  # answered before the next look


class DirectoryConfig(BaseModel):
    """What the directory's process must know."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    endpoint: str
    folder: Path  # of the numbers of lives
    policy: str = "cached"
    models: str = ""  # a hash of those that all nodes serve
    keys: Path | None = None  # of the members' file
    users: Path | None = None  # the data folder with the users' keys, off loopback


class _Begun(NamedTuple):
    """The last life that was given to a node, and the question: its sender and number."""

    question: tuple[bytes, int]
    incarnation: int


class DirectoryServer:
    """The directory behind a socket."""

    def __init__(self, config: DirectoryConfig) -> None:
        """Binds the socket.

        Raises:
            KeyProblem, LivesUnusable, UnknownPolicy: of the configuration.
            zmq.ZMQError: if it cannot listen there.
        """
        pair = None if config.keys is None else read_member_pair(config.keys)
        config.folder.mkdir(parents=True, exist_ok=True)
        self._models = config.models
        self._lives = Lives(config.folder / "lives.json")
        self._begun: dict[str, _Begun] = {}  # by node
        self._followers = Followers()
        self._directory = Directory(
            load_policy(config.policy), random.Random(), time.monotonic(), self._followers.note
        )
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._gate = None if pair is None else Gate(self._context, pair)
        self._users = None if config.users is None else KnownUsers(KeyStore(config.users))
        self._first = secrets.randbits(32)  # as told by no directory before this one
        self._router = member_router(self._context, config.endpoint, pair)
        self._router.bind(config.endpoint)
        bound = self._router.getsockopt(zmq.LAST_ENDPOINT)
        assert isinstance(bound, bytes)
        self.endpoint = bound.rstrip(b"\0").decode()

    def serve(self) -> None:
        """Answers until the process ends."""
        poller = zmq.Poller()
        poller.register(self._router, zmq.POLLIN)
        if self._gate is not None:
            poller.register(self._gate.socket, zmq.POLLIN)
        while True:
            wait = min(LOOK_SECONDS, self._followers.seconds(time.monotonic()))
            ready = dict(poller.poll(math.ceil(wait * 1000)))
            if self._gate is not None and self._gate.socket in ready:
                self._gate.answer()
            self._look_at_users()
            if self._router in ready:
                self._answer_all()
            for order in self._directory.due(time.monotonic()):
                # The actor around a node's process ends and replaces it by itself; Ray does so for
                # the actor.
                log.warning("%s: %s", order.life, type(order).__name__.lower())
                if isinstance(order, Remove):
                    self._note_drained(order.life.node)
            for follower, news in self._followers.due(time.monotonic()):
                self._router.send_multipart((follower, encode(news)))

    def _look_at_users(self) -> None:
        if self._users is not None:
            try:
                self._users.look()
            except OSError as error:  # what is known counts until then
                log.error("the users' keys cannot be looked at: %s", error)
            self._directory.keys = self._first + self._users.changes

    def _note_drained(self, node: str) -> None:
        try:
            self._lives.end(node)
        except LivesUnusable as error:  # this directory remembers it, the next one would not
            log.error("%s", error)

    def _answer_all(self) -> None:
        for _ in range(TURN_MESSAGES):
            try:
                frames = self._router.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            if len(frames) != 2:
                log.warning("refused a message of %d frames", len(frames))
                continue
            sender, frame = frames
            try:
                message = decode_to_directory(frame)
            except NotOfCluster as error:
                log.warning("refused a message: %s", error)
                continue
            answer = self._answer(message, sender)
            if answer is not None:
                self._router.send_multipart((sender, encode(answer)))

    def _answer(self, message: ToDirectory, sender: bytes) -> ToNode | Answer | None:
        now = time.monotonic()
        match message:
            case Placed(node, incarnation, key):
                self._directory.placed(Life(node, incarnation), key, now)
                return None
            case Follow(told):
                self._followers.follow(sender, told, self._directory.nodes, now)
                return None
            case Report():
                return self._directory.report(message, sender, now)
            case Join(node, incarnation):
                if self._lives.is_over(node, incarnation):
                    return Fenced(f"life {incarnation} of {node} has been replaced or drained")
                return self._directory.join(message, sender, now)
        try:
            return self._answer_question(message, sender, now)
        except Refusal as refusal:
            return Refused(message.number, refusal.code, str(refusal))
        except LivesUnusable as error:
            log.error("%s", error)
            return Refused(message.number, "out-of-resources", str(error))
        except OSError as error:
            log.error("the users' keys cannot be looked at: %s", error)
            return Refused(message.number, "internal", str(error))

    def _answer_question(self, asked: Question, sender: bytes, now: float) -> Answer:
        directory, number = self._directory, asked.number
        match asked:
            case PlaceLaunch(_, user, program, near, parent, avoid):
                there = directory.place(PlacementRequest(user, program, near, parent, avoid), now)
            case Where(_, instance, broken):
                there = directory.where(instance, now, broken=broken)
            case Begin(_, node, reason):
                last = self._begun.get(node)
                if last is not None and last.question == (sender, number):  # its answer was late
                    return Begun(number, last.incarnation)
                directory.check_wanted(node)
                if self._lives.is_drained(node):  # before this directory was started
                    raise Refusal("drained", f"{node} is drained and has no other life")
                life = Life(node, self._lives.next(node, directory.last(node)))
                directory.begin(life, reason, now)
                self._begun[node] = _Begun((sender, number), life.incarnation)
                log.info("%s begins: %s", life, reason or "the first life")
                return Begun(number, life.incarnation)
            case Allot(_, count, models):
                if models != self._models:
                    raise Refusal(
                        "invalid-argument",
                        "this machine's token names other models, or other settings of them, than"
                        " the cluster serves: copy token.json again from the folder of `pie-py"
                        " cluster up`",
                    )
                return Allotted(number, self._lives.allot(count))
            case Drain(_, node, seconds, again):
                directory.drain(node, seconds, now, again)
                return Done(number)
            case Nodes():
                return NodeList(number, self._facts(now))
            case UserOf(_, key):
                users = {} if self._users is None else self._users.look()
                return User(number, users.get(key, ""))
        return NodeAddress(
            number, there.life.node, there.life.incarnation, there.endpoint, there.public_key
        )

    def _facts(self, now: float) -> list[NodeFacts]:
        return [
            NodeFacts(
                node.life.node,
                node.life.incarnation,
                node.state.value,
                node.version,
                node.endpoint,
                node.instances,
                node.pool,
                node.waiting_seconds,
                node.silent_seconds,
                node.reason,
                node.public_key,
            )
            for node in self._directory.status(now)
        ]


def main() -> int:
    """Serves until killed, or (with `--with-parent`) until standard input ends."""
    parser = argparse.ArgumentParser(prog="python -m pie_cluster.directory")
    parser.add_argument("--config", required=True, help="a DirectoryConfig, as JSON")
    parser.add_argument("--with-parent", action="store_true", help="exit when stdin closes")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    config = DirectoryConfig.model_validate_json(options.config)
    try:
        server = DirectoryServer(config)
    except (KeyProblem, LivesUnusable, UnknownPolicy) as error:
        report_error(str(error))
        return 1
    except zmq.ZMQError as error:
        report_error(f"the directory cannot listen on {config.endpoint}: {error.strerror}")
        return 1
    if options.with_parent:
        exit_with_parent()
    report_ready(server.endpoint)
    server.serve()
    return 0


if __name__ == "__main__":
    sys.exit(main())
