"""Children whose parent's node is full: launched on another node, and ended with their parent.

The parent's node is a client of the other one, by a session that says with each of its messages
that the parent's node lives. Without it for some time, the children of the session are ended.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated, TypeAlias

import msgspec
import structlog
import trio

from pie_cluster.node.links import GatewayLink, NodeLinks
from pie_cluster.wire.requests import check_member
from pie_control.errors import ApiError, NoRoom, Refusal
from pie_control.instances.instance import Instance, InstanceEnded, InstanceState
from pie_control.instances.launcher import Child, Launcher
from pie_control.instances.registry import Registry
from pie_control.programs.store import Program, ProgramStore
from pie_control.rpc.params import Method
from pie_control.rpc.session import Presence, Session
from pie_py.client.errors import ClientError, RpcError

log = structlog.get_logger("pie.cluster")

TRIES = 3  # nodes that are asked for one child
AWAY_SECONDS = 3.0  # that a parent's node may be away, after it is silent or its connection broke
LOOK_SECONDS = 0.5
ELSEWHERE = ("busy", "limit-exceeded", "not-joined", "worker-lost")  # another node may take it

Text: TypeAlias = Annotated[str, msgspec.Meta(max_length=512)]


class LaunchParams(msgspec.Struct):
    """Of `child-launch`."""

    user: Text
    program: Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]
    args: list[str]
    generations: Annotated[int, msgspec.Meta(ge=1, le=1 << 20)]


class ChildHost:
    """Children here whose parents are on other nodes."""

    def __init__(
        self,
        registry: Registry,
        launcher: Launcher,
        programs: ProgramStore,
        fetch: Callable[[str, str], Awaitable[None]],
        clock: Callable[[], float],
    ) -> None:
        """Takes its parts; `fetch` has a program here, by its hash and for a user."""
        self._registry = registry
        self._launcher = launcher
        self._programs = programs
        self._fetch = fetch
        self._clock = clock
        self._children: dict[Session, set[Instance]] = {}
        self.methods: dict[str, Method] = {"child-launch": (LaunchParams, self._launch)}

    async def run(self) -> None:
        """Ends children of nodes that are lost, until cancelled."""
        while True:
            await trio.sleep(LOOK_SECONDS)
            for session, children in list(self._children.items()):
                if self._is_lost(session):
                    for child in children:
                        self._registry.kill(child, "its parent's node is lost")
                children -= {child for child in children if child.ended is not None}
                if not children:
                    del self._children[session]

    def _is_lost(self, session: Session) -> bool:
        away = session.away_since
        return session.presence is Presence.ENDED or (
            away is not None and self._clock() - away > AWAY_SECONDS
        )

    async def _launch(self, session: Session, asked: LaunchParams) -> dict[str, str]:
        check_member(session)
        if not self._programs.has(asked.program):
            await self._fetch(asked.program, asked.user)
        program = self._programs.find(asked.program, asked.user)
        await self._launcher.until_can_start(program)
        child = self._launcher.start(program, asked.args, asked.user, detached=True)
        child.generations = asked.generations
        gone = trio.current_effective_deadline() == -math.inf  # a compilation is not interrupted
        if gone or self._is_lost(session):
            self._registry.kill(child, "its parent gave it up")
            raise ApiError("cancelled", "the request was given up")
        self._children.setdefault(session, set()).add(child)
        return {"instance": child.id}


class ChildrenElsewhere:
    """Launches children on other nodes."""

    def __init__(self, life: str, gateway: GatewayLink, links: NodeLinks) -> None:
        """Takes this node's life. Nothing is asked yet."""
        self._life = life
        self._gateway = gateway
        self._links = links
        self._nursery: trio.Nursery | None = None

    async def run(self) -> None:
        """Tells other nodes of what is given up, until cancelled."""
        async with trio.open_nursery() as self._nursery:
            await trio.sleep_forever()

    async def launch(
        self, parent: Instance, program: Program, args: list[str], full: NoRoom
    ) -> Child:
        """Launches a child where there is room. Raises `NoRoom`: `full`, if there is none. Raises
        `ApiError`: why it cannot run; `failed-dependency` if its node is lost meanwhile.
        """
        avoid = [self._life]
        for _ in range(TRIES):
            try:
                there = await self._gateway.ask(
                    "place-child",
                    user=parent.user,
                    program=program.hash,
                    parent=parent.id,
                    avoid=avoid,
                )
            except (Refusal, ApiError):
                break
            life = there["node"]
            avoid.append(life)
            try:
                return await self._launch(there, life, parent, program, args)
            except RpcError as error:
                if error.code == "program-rejected":
                    raise ApiError(
                        "invalid-argument", f"{program.name} cannot run here: {error.message}"
                    ) from None
                if error.code not in ELSEWHERE:
                    raise ApiError(error.code, error.message) from None  # type: ignore[arg-type]
            except ClientError as error:
                raise _lost(program.name, life, error) from None
        raise full

    async def _launch(
        self, there: dict[str, str], life: str, parent: Instance, program: Program, args: list[str]
    ) -> Child:
        def child(told: dict[str, str]) -> _ChildElsewhere:
            return _ChildElsewhere(told["instance"], life, there, self._links, self._start)

        told = await self._links.ask(
            there["endpoint"],
            there["key"],
            "child-launch",
            on_late=lambda told: child(told).kill(),  # it was given up meanwhile
            user=parent.user,
            program=program.hash,
            args=args,
            generations=parent.depth + 1,
        )
        log.info("a child was launched elsewhere", child=told["instance"], parent=parent.id)
        return child(told)

    def _start(self, task: Callable[[], Awaitable[None]]) -> None:
        assert self._nursery is not None, "it runs"
        self._nursery.start_soon(task)


class _ChildElsewhere:
    """A child on another node."""

    def __init__(
        self,
        instance: str,
        life: str,
        there: dict[str, str],
        links: NodeLinks,
        start: Callable[[Callable[[], Awaitable[None]]], None],
    ) -> None:
        self._instance = instance
        self._life = life
        self._ask = partial(links.ask, there["endpoint"], there["key"])
        self._start = start

    async def end(self) -> InstanceEnded | ApiError:
        """As `Child.end`."""
        try:
            told = await self._ask("result", instance=self._instance)
        except ClientError as error:
            return _lost(self._instance, self._life, error)
        return InstanceEnded(InstanceState(told["state"]), told["text"])

    def kill(self) -> None:
        """As `Child.kill`."""
        self._start(self._tell_killed)

    async def _tell_killed(self) -> None:
        try:
            await self._ask("kill", instance=self._instance)
        except ClientError as error:  # with its node, or with our session, it ends as well
            log.info("a child is not there to be ended", child=self._instance, reason=str(error))


def _lost(child: str, life: str, error: Exception) -> ApiError:
    return ApiError("failed-dependency", f"node-lost: node {life} of child {child}: {error}")
