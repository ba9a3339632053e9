"""The directory behind a socket, in the gateway's loop: what comes is answered at once.

Nothing is kept but the numbers of lives.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import msgspec
import structlog
import trio
import zmq

from pie_cluster.config import MemberConfig
from pie_cluster.directory.directory import Directory, Location, PlacementRequest
from pie_cluster.directory.lives import Lives, LivesUnusable
from pie_cluster.directory.node import Life
from pie_cluster.directory.policies import load_policy
from pie_cluster.wire.messages import (
    Fenced,
    Name,
    NodeFacts,
    NotOfCluster,
    Report,
    Text,
    ToDirectory,
    ToNode,
    decode_to_directory,
    encode,
)
from pie_cluster.wire.requests import check_member
from pie_cluster.wire.sockets import Gate, member_router
from pie_control.errors import Refusal
from pie_control.rpc.endpoint import EndpointRefused
from pie_control.rpc.params import Method
from pie_control.rpc.session import Session
from pie_py.config.keys import KeyStore, KnownUsers
from pie_py.wire.zmq_socket import Socket

log = structlog.get_logger("pie.cluster")

LOOK_SECONDS = 0.25  # between two looks at leases
TURN_MESSAGES = 100  # answered before others have their turn


class BeginParams(msgspec.Struct):
    """Of `begin`: a node's new life is about to start; the one before, if there is one, is over."""

    node: Name
    reason: Text = ""  # why the one before has ended, for people


class ForgetParams(msgspec.Struct):
    """Of `forget`: a node has left with its machine."""

    node: Name


class AllotParams(msgspec.Struct):
    """Of `allot`: a machine joins with so many nodes."""

    count: Annotated[int, msgspec.Meta(ge=1, le=1024)]
    models: Text  # a hash of what the machine would serve, which all nodes serve


class UserOfParams(msgspec.Struct):
    """Of `user-of`: whose key is this?"""

    key: Text  # a public one, in Z85


class UsersParams(msgspec.Struct):
    """Of `users`: which are there, if they are others than when they had this number?"""

    changes: int


class DirectoryServer:
    """Answers reports by the socket; the gateway asks it by `place` and `where`, and has members
    ask it by `methods`.
    """

    def __init__(self, member: MemberConfig, data_folder: Path, clock: Callable[[], float]) -> None:
        """Binds the socket; nothing is answered before `run`. The data folder has the keys of
        users. Raises `KeyProblem`, `LivesUnusable` or `UnknownPolicy` of the configuration, and
        `EndpointRefused` if it cannot listen there.
        """
        pair, endpoint = member.pair(), member.directory
        assert member.folder is not None, "a gateway"
        member.folder.mkdir(parents=True, exist_ok=True)
        self._models = member.models
        self._clock = clock
        self._lives = Lives(member.folder / "lives")
        self._directory = Directory(load_policy(member.policy), random.Random(), clock())
        self._users = None if pair is None else KnownUsers(KeyStore(data_folder))
        self.on_over: Callable[[str], None] = lambda life: None  # told which life has ended
        self._first = secrets.randbits(32)  # as told by no directory before this one
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._gate = None if pair is None else Gate(self._context, pair)
        router = member_router(self._context, endpoint, pair)
        try:
            router.bind(endpoint)
        except zmq.ZMQError as error:
            raise EndpointRefused(
                f"the directory cannot listen on {endpoint}: {error.strerror}"
            ) from None
        self._router = Socket(router)
        self.methods: dict[str, Method] = {
            "begin": (BeginParams, self._begin),
            "allot": (AllotParams, self._allot),
            "forget": (ForgetParams, self._forget),
            "user-of": (UserOfParams, self._user_of),
            "users": (UsersParams, self._all_users),
        }

    async def run(self) -> None:
        """Answers until cancelled."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._look)
                if self._gate is not None:
                    nursery.start_soon(self._gate.run)
                while True:
                    for _ in range(TURN_MESSAGES):
                        if (frames := self._router.receive_frames()) is None:
                            break
                        self._take([frame.bytes for frame in frames])
                    await self._router.wait()
        finally:
            self._context.destroy(linger=0)

    # The gateway's own questions

    async def place(self, request: PlacementRequest) -> Location:
        """As `Directory.place`; waits while a directory that was just started cannot tell."""
        return await self._told(lambda: self._directory.place(request, self._clock()))

    async def where(self, instance: str, *, broken: bool = False) -> Location:
        """As `Directory.where`; likewise."""
        return await self._told(
            lambda: self._directory.where(instance, self._clock(), broken=broken)
        )

    def drain(self, node: str, seconds: float, again: bool) -> None:
        """As `Directory.drain`."""
        self._directory.drain(node, seconds, self._clock(), again)

    @property
    def settings(self) -> int:
        """The version of the cluster's settings, of which nodes are told."""
        return self._directory.settings

    @settings.setter
    def settings(self, version: int) -> None:
        self._directory.settings = version

    def have_old_settings(self) -> bool:
        """As `Directory.have_old_settings`."""
        return self._directory.have_old_settings()

    def nodes(self) -> list[NodeFacts]:
        """All nodes, by name."""
        return self._directory.status(self._clock())

    async def _told(self, ask: Callable[[], Location]) -> Location:
        while True:
            try:
                return ask()
            except Refusal as refusal:
                if refusal.code != "starting":
                    raise
            await trio.sleep(0.1)

    # Leases, and users' keys

    async def _look(self) -> None:
        while True:
            self._look_at_users()
            for life, is_drained in self._directory.due(self._clock()):
                # The actor around a node's process ends and replaces it by itself; Ray does so for
                # the actor.
                log.warning("a life is over", life=str(life), is_drained=is_drained)
                self.on_over(str(life))
                if is_drained:
                    self._note_drained(life.node)
            await trio.sleep(LOOK_SECONDS)

    def _look_at_users(self) -> None:
        if self._users is not None:
            try:
                self._users.look()
            except OSError as error:  # what is known counts until then
                log.error("the users' keys cannot be looked at", reason=str(error))
            self._directory.keys = self._first + self._users.changes

    def _note_drained(self, node: str) -> None:
        try:
            self._lives.end(node)
        except LivesUnusable as error:  # this directory remembers it, the next one would not
            log.error("a drain cannot be noted", node=node, reason=str(error))

    # Members' messages

    def _take(self, frames: list[bytes]) -> None:
        try:
            sender, frame = frames
            message = decode_to_directory(frame)
        except (ValueError, NotOfCluster) as error:
            log.warning("refused a message", reason=str(error))
            return
        self._router.send(sender, encode(self._answer(message, sender)))

    def _answer(self, message: ToDirectory, sender: bytes) -> ToNode:
        now = self._clock()
        if isinstance(message, Report):
            return self._directory.report(message, sender, now)
        if self._lives.is_over(message.node, message.incarnation):
            return Fenced(f"life {message.incarnation} of {message.node} was replaced or drained")
        return self._directory.join(message, sender, now)

    # Members' questions

    def _begin(self, session: Session, asked: BeginParams) -> int:
        check_member(session)
        node = asked.node
        self._directory.check_wanted(node)
        if self._lives.is_drained(node):  # before this directory was started
            raise Refusal("drained", f"{node} is drained and has no other life")
        try:
            life = Life(node, self._lives.next(node, self._directory.last(node)))
        except LivesUnusable as error:
            raise _full(error) from None
        self.on_over(f"{node}.{life.incarnation - 1}")
        self._directory.begin(life, asked.reason, self._clock())
        say = log.warning if asked.reason else log.info
        say("a life begins", life=str(life), reason=asked.reason or "the first life")
        return life.incarnation

    def _allot(self, session: Session, asked: AllotParams) -> list[str]:
        check_member(session)
        if asked.models != self._models:
            raise Refusal(
                "invalid-argument",
                "this machine's token names other models, or other settings of them, than the"
                " cluster serves: copy token.json again from the folder of `pie-py cluster up`",
            )
        try:
            return self._lives.allot(asked.count)
        except LivesUnusable as error:
            raise _full(error) from None

    def _forget(self, session: Session, asked: ForgetParams) -> None:
        check_member(session)
        self._directory.forget(asked.node)

    def _user_of(self, session: Session, asked: UserOfParams) -> str:
        return self._users_now(session).get(asked.key, "")

    def _all_users(self, session: Session, asked: UsersParams) -> Any:
        users = self._users_now(session)
        changes = self._first + (0 if self._users is None else self._users.changes)
        return None if asked.changes == changes else {"changes": changes, "users": users}

    def _users_now(self, session: Session) -> dict[str, str]:
        check_member(session)
        try:
            return {} if self._users is None else self._users.look()
        except OSError as error:
            raise Refusal("internal", f"the users' keys cannot be looked at: {error}") from None


def _full(error: LivesUnusable) -> Refusal:
    log.error("no life can begin", reason=str(error))
    return Refusal("out-of-resources", str(error))
