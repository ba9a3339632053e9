"""The way from a node to another one that owns topics of its users.

Calls are requests, each done at most once however often the connection breaks. When the link is
over, for whatever reason, what was asked for may have happened, and what waited there is gone.
"""

from __future__ import annotations

from typing import Any

import structlog
import trio

from pie_control.errors import ApiError
from pie_control.instances.futures import Future
from pie_py.client.calls import Call
from pie_py.client.connection import Connection
from pie_py.client.errors import ClientError, RpcError
from pie_py.config.endpoint import parse_endpoint
from pie_py.config.keys import ClientKey

log = structlog.get_logger("pie.cluster")

PATIENCE_SECONDS = 3.0  # for an owner that cannot be reached: nodes have no second life
MOST_DROPPED = 1000  # of one message
NOT_DONE = ("not-owner", "not-joined")  # refusals of an owner that has done nothing


class NotDone(Exception):
    """A call has not happened, for the node there does not have the topics, or not any more."""


class Held:
    """A message that waits at its owner for the instance to take it."""

    __slots__ = ("handle", "link")

    def __init__(self, link: BusLink, handle: int) -> None:
        self.link = link
        self.handle = handle  # of its future there


class GiveUp:
    """Gives a future up that was opened at an owner."""

    __slots__ = ("handle", "link", "member")

    def __init__(self, link: BusLink, member: str, handle: int) -> None:
        self.link = link
        self.member = member
        self.handle = handle

    def __call__(self) -> None:
        """What is called when it is cancelled."""
        self.link.drop(self.member, self.handle)


class BusLink:
    """A connection to one life of one node."""

    def __init__(self, life: str, endpoint: str) -> None:
        """Nothing is sent before `run`.

        Args:
            life: of the owner.
            endpoint: of the owner.
        """
        self.life = life
        self.joined = trio.Event()  # set once calls may be made, or it is over
        self.over: str | None = None  # why nothing comes of it any more
        self._endpoint = endpoint
        self._connection: Connection | None = None
        self._futures: dict[tuple[str, int], Future] = {}  # by instance, and handle there
        # Instances with a call under way: what was told of their futures before its answer.
        self._calling: dict[str, dict[int, Any]] = {}
        self._dropped: list[tuple[str, int]] = []  # not told yet
        self._drop_due = trio.Event()

    async def run(self, own_life: str, key: ClientKey | None) -> None:
        """Is the link until it is over.

        Args:
            own_life: of this node.
            key: for the connection; None on loopback.
        """
        reason = "this node ends"
        try:
            connection = Connection(parse_endpoint(self._endpoint), key, PATIENCE_SECONDS)
            async with trio.open_nursery() as nursery:
                await nursery.start(_run, connection)
                reason = await self._live(nursery, connection, own_life)
                nursery.cancel_scope.cancel()
        except ClientError as error:
            reason = str(error)
        finally:
            self._end(reason)

    async def _live(self, nursery: trio.Nursery, connection: Connection, own_life: str) -> str:
        problem = await connection.ready()
        if problem is not None:
            return str(problem)
        try:
            await connection.request("bus-join", life=own_life)
            self._connection = connection
            nursery.start_soon(self._tell_dropped_soon, connection)
            self.joined.set()
            while True:
                for name, handle, state in await connection.request("bus-events"):
                    self._settle(name, handle, state)
        except ClientError as error:
            return error.message if isinstance(error, RpcError) else str(error)

    def _end(self, reason: str) -> None:
        self.over = reason
        self.joined.set()
        self._connection = None
        futures, self._futures = self._futures, {}
        for future in futures.values():
            future.on_cancel = None
            future.fail(self.lost())
        if futures:
            log.warning("topics are lost with their node", life=self.life, reason=reason)

    def lost(self) -> ApiError:
        """What instances are told of what waited there."""
        return lost(self.life, self.over or "it has just given them up")

    # Calls

    def send(self, member: str, user: str, call: str, args: tuple[Any, ...]) -> Call | None:
        """Sends a call of an instance now, in the order of the calls; None if there are too many.

        Raises:
            NotDone: the link is over.
        """
        connection = self._connection
        if connection is None or connection.session.error is not None:
            raise NotDone
        if not connection.session.calls.has_room:
            return None
        self._tell_dropped(connection)
        self._calling[member] = {}
        asked = {"member": member, "user": user, "call": call, "args": args}
        return connection.session.request("bus-call", asked)

    async def room(self) -> None:
        """Waits until `send` may be called again."""
        if self._connection is not None:
            await self._connection.session.calls.room()

    async def answer(self, member: str, sent: Call, future: Future | None = None) -> Any:
        """What has come of a call; a future that it opens there is tied to the one given.

        Raises:
            NotDone: nothing, and another node may be asked.
            ApiError: the instance's error; `failed-dependency` if it cannot be known.
        """
        await sent.done.wait()
        early = self._calling.pop(member, {})
        answer = sent.answer
        if isinstance(answer, RpcError):
            if answer.code in NOT_DONE:
                raise NotDone
            raise ApiError(answer.code, answer.message)  # type: ignore[arg-type]
        if isinstance(answer, ClientError):
            raise ApiError(
                "failed-dependency",
                f"node-lost: node {self.life} had the topics of your instances, and is lost: what"
                " was asked of it may be done or not",
            )
        if future is not None:
            handle, state = answer
            self._attach(member, handle, future, early.get(handle, state))
        return answer

    # Futures

    def _attach(self, member: str, handle: int, future: Future, state: Any) -> None:
        if self.over is not None:
            future.fail(self.lost())
            return
        future.on_cancel = GiveUp(self, member, handle)
        self._futures[member, handle] = future
        if state is not None:
            self._settle(member, handle, state)

    def _settle(self, member: str, handle: int, state: Any) -> None:
        future = self._futures.pop((member, handle), None)
        if future is None:  # given up; or the answer that opened it comes yet
            if member in self._calling:
                self._calling[member][handle] = state
        elif state == "ready":  # it may still be given up
            future.resolve(Held(self, handle))
        else:
            future.on_cancel = None
            if state == "done":
                future.resolve()
            else:
                future.fail(ApiError(*state))

    def drop(self, member: str, handle: int = 0) -> None:
        """A future is given up; or 0: the instance has ended, with all that it had there."""
        self._futures.pop((member, handle), None)
        if not handle:
            self._calling.pop(member, None)
        self._dropped.append((member, handle))
        self._drop_due.set()

    def tell_dropped(self) -> Call | None:
        """Tells the owner what was given up, now: the request; None if the link is over."""
        connection = self._connection
        if connection is None or connection.session.error is not None:
            return None
        return self._tell_dropped(connection)

    async def _tell_dropped_soon(self, connection: Connection) -> None:
        while True:
            await self._drop_due.wait()
            self._drop_due = trio.Event()
            await connection.session.calls.room()
            if connection.session.error is not None:  # and with it is gone all that was there
                return
            self._tell_dropped(connection)

    def _tell_dropped(self, connection: Connection) -> Call | None:
        """Returns the last request."""
        sent = None
        while self._dropped:
            given_up = self._dropped[:MOST_DROPPED]
            self._dropped = self._dropped[MOST_DROPPED:]
            sent = connection.session.request("bus-drop", {"given_up": given_up})
        return sent


def lost(life: str, reason: str | None) -> ApiError:
    """What instances are told of what waited at an owner that is lost."""
    return ApiError(
        "failed-dependency",
        f"node-lost: node {life} had the topics of your instances, and has them no more: {reason}."
        " What waited there is gone; subscribe again, and go on",
    )


async def _run(connection: Connection, task_status: trio.TaskStatus[None]) -> None:
    await connection.run(task_status=task_status)
