"""The directory in the gateway's loop, and what it is asked as a request of members.

Nothing is kept but the numbers of lives.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Annotated

import msgspec
import structlog
import trio

from pie_cluster.config import MemberConfig
from pie_cluster.directory.directory import Directory, Location, PlacementRequest
from pie_cluster.directory.lives import Lives
from pie_cluster.directory.node import Life
from pie_cluster.wire.messages import Fenced, Name, NodeFacts, Report, Text, ToNode
from pie_control.errors import ApiError, Refusal
from pie_control.rpc.params import Method
from pie_control.rpc.session import Session
from pie_py.config.keys import LOCAL_USER

log = structlog.get_logger("pie.cluster")

LOOK_SECONDS = 0.25  # between two looks at leases


class NodeParams(msgspec.Struct):
    """Of `begin`: a node's new life is about to start; the one before, if there is one, is over. Of
    `forget`: it has left with its machine.
    """

    node: Name
    reason: Text = ""  # why the life before has ended, for people


class AllotParams(msgspec.Struct):
    """Of `allot`: a machine joins with so many new nodes."""

    count: Annotated[int, msgspec.Meta(ge=0, le=1024)]
    cluster: Text  # a hash of what the machine's token says of the cluster


class DirectoryServer:
    """The gateway asks it by `place` and `where`, and has members ask it by `methods`."""

    def __init__(self, member: MemberConfig, clock: Callable[[], float]) -> None:
        """Raises `ValueError` if the numbers of lives cannot be read."""
        assert member.folder is not None, "a gateway"
        member.folder.mkdir(parents=True, exist_ok=True)
        self._cluster = member.cluster
        self._clock = clock
        self._lives = Lives(member.folder / "lives")
        self.state = Directory(random.Random(), clock())
        self.on_over: Callable[[str], None] = lambda life: None  # told which life has ended
        self.methods: dict[str, Method] = {
            "begin": (NodeParams, self._begin),
            "report": (Report, self._report),
            "allot": (AllotParams, self._allot),
            "forget": (NodeParams, self._forget),
        }

    # The gateway's own questions

    async def place(self, request: PlacementRequest) -> Location:
        """As `Directory.place`; waits while a directory that was just started cannot tell."""
        return await self._told(lambda: self.state.place(request, self._clock()))

    async def where(self, instance: str, *, broken: bool = False) -> Location:
        """As `Directory.where`; likewise."""
        return await self._told(lambda: self.state.where(instance, self._clock(), broken=broken))

    def nodes(self) -> list[NodeFacts]:
        """All nodes, by name."""
        return self.state.status(self._clock())

    def drain(self, node: str, seconds: float, *, again: bool) -> None:
        """As `Directory.drain`; a directory that is started again knows whether a life follows."""
        self.state.drain(node, seconds, self._clock(), again)
        self._lives.drain(node, self.state.last(node), again=again)

    async def _told(self, ask: Callable[[], Location]) -> Location:
        while True:
            try:
                return ask()
            except Refusal as refusal:
                if refusal.code != "starting":
                    raise
            await trio.sleep(0.1)

    async def run(self) -> None:
        """Looks at leases until cancelled."""
        while True:
            for life in self.state.due(self._clock()):
                # The actor around a node's process ends and replaces it by itself; Ray does so for
                # the actor.
                log.warning("a life is over", life=str(life))
                self.on_over(str(life))
            await trio.sleep(LOOK_SECONDS)

    # Members' questions

    def _report(self, session: Session, asked: Report) -> ToNode:
        check_member(session)
        if self._lives.is_over(asked.node, asked.incarnation):
            return Fenced(f"life {asked.incarnation} of {asked.node} was replaced")
        return self.state.report(asked, self._clock())

    def _begin(self, session: Session, asked: NodeParams) -> int:
        check_member(session)
        node, last = asked.node, self.state.last(asked.node)
        try:
            life = Life(node, self._lives.next(node, last))
        except Refusal as refusal:
            if refusal.code == "drained":  # it hears of it late
                self.on_over(f"{node}.{last}")
                self.state.forget(node)
            raise
        self.on_over(f"{node}.{life.incarnation - 1}")
        self.state.begin(life, asked.reason, self._clock())
        say = log.warning if asked.reason else log.info
        say("a life begins", life=str(life), reason=asked.reason or "the first life")
        return life.incarnation

    def _allot(self, session: Session, asked: AllotParams) -> list[str]:
        check_member(session)
        if asked.cluster != self._cluster:
            raise Refusal(
                "invalid-argument",
                "the cluster refuses the token, which names other models, settings or secrets: copy"
                " token.json again from the folder of `pie-py cluster up`",
            )
        return self._lives.allot(asked.count) if asked.count else []

    def _forget(self, session: Session, asked: NodeParams) -> None:
        check_member(session)
        self.state.forget(asked.node)


def check_member(session: Session) -> None:
    """Refuses who is no member of the cluster. On loopback every client is the operator, who may do
    what members do. Raises `ApiError`: `permission-denied`.
    """
    if session.user != LOCAL_USER:
        raise ApiError("permission-denied", "only nodes of the cluster may ask for this")
