"""Trait `messaging` on a node of a cluster: for all of a user's instances, wherever they run.

Each call is one statement in the database, for which the guest is suspended. Futures become ready
as the database tells the node. A message stays there until the instance takes it, so that
`take-text` and `cancel` are calls, too. What an instance has there ends with its node's lease.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any

import structlog
import trio

from pie_cluster.database.statements import Connection, DatabaseAway
from pie_cluster.database.tables import Topics
from pie_cluster.node.lease import NodeLease
from pie_control.api.binder import implement
from pie_control.api.messaging.channel import check_topic
from pie_control.api.messaging.functions import IDLE_BYTES
from pie_control.api.session import check_size
from pie_control.api.signatures import SIGNATURES
from pie_control.errors import ApiError
from pie_control.instances.futures import Future, FutureKind
from pie_control.instances.instance import Instance
from pie_control.instances.slow_calls import SlowCalls
from pie_control.wasm import SUSPENDED, HostFunction
from pie_py.config.services import MessagingConfig
from pie_py.wire.rpc import size_of

log = structlog.get_logger("pie.cluster")

# Bytes that a message counts beside its text, so that short ones are bounded, too.
OVERHEAD = 256
# That a call waits for a lease, or the database.
PATIENCE_SECONDS = 25.0
AGAIN_SECONDS = 0.3  # before it is sent again
ONCE = ("push", "broadcast", "take")  # never sent again if they may have happened

_HELD = object()  # the value of a future whose message waits in the database


class _Member:
    """What an instance has there. Handles are never used twice."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.subscriptions: dict[int, str | None] = {}  # why they are lost
        self.last = 0  # subscription
        self.waiting: dict[int, Future] = {}  # not ready yet
        self.opening: int | None = None  # that may not be there yet
        self.given_up: list[int] = []  # not told yet
        self.telling = trio.Lock()


class ClusterTopics:
    """The functions of the trait, and those that take messages and give them up."""

    def __init__(
        self, connection: Connection, lease: NodeLease, answers: SlowCalls, config: MessagingConfig
    ) -> None:
        """Nothing is sent before `run`. The connection has the channel of this life."""
        self._table, self._ask = Topics(connection), connection.ask
        self._listen = connection.listen
        self._lease = lease
        self._answers = answers
        self._config = config
        self._turns = trio.CapacityLimiter(1)  # so that a lease waits behind one call at most
        self._members: dict[str, _Member] = {}  # by the instance's id
        self._nursery: trio.Nursery | None = None
        connection.on_heard = self._hear
        lease.on_lost.append(self.lose)

    def replace(self, functions: tuple[HostFunction, ...]) -> tuple[HostFunction, ...]:
        """The functions of the contract, with these in the place of one server's."""
        names = SIGNATURES["messaging"]
        own = {
            (one.interface, one.name): one for one in implement("messaging", self, suspends=names)
        }
        for one in functions:
            if one.interface == "runtime" and one.name in ("take-text", "cancel"):
                call = self.take_text if one.name == "take-text" else self.cancel
                own["runtime", one.name] = replace(one, call=call, suspends=True)
        return tuple(own.get((one.interface, one.name), one) for one in functions)

    async def run(self) -> None:
        """Hears what the database tells until cancelled."""
        async with trio.open_nursery() as self._nursery:
            await self._listen()

    def leave(self, instance: Instance) -> None:
        """An instance has ended, and its futures are closed."""
        if self._members.pop(instance.id, None) is not None:
            lease = self._lease.number
            leave = partial(self._table.call, "leave", instance.id, lease, IDLE_BYTES)
            self._start(self._keep_asking, lease, leave)

    def lose(self, reason: str) -> None:
        """The lease is lost, and with it all that instances have in the database."""
        for member in self._members.values():
            waiting, member.waiting = member.waiting, {}
            member.subscriptions = dict.fromkeys(member.subscriptions, reason)
            member.given_up.clear()
            for future in waiting.values():
                _fail(future, _lost(member, reason))

    # Topics

    def broadcast(self, instance: Instance, topic: str, message: str) -> Any:
        """Sends to every subscriber, or to none; returns how many there are."""
        return self._send(instance, "broadcast", topic, message)

    def broadcast_room(self, instance: Instance, topic: str) -> Any:
        """Opens a future of room in every subscriber's box."""
        return self._open(instance, FutureKind.DONE, "room", topic, False)

    def subscribe(self, instance: Instance, topic: str) -> Any:
        """Opens a subscription."""
        check_topic(topic)
        member = self._member(instance)
        member.last += 1
        handle = member.last

        async def subscribed() -> int:
            config = self._config
            most = (config.subscriptions, config.subscribers, config.box_messages)
            most_bytes = instance.limits.mailbox_bytes
            await self._call(member, "subscribe", topic, handle, topic.encode(), *most, most_bytes)
            member.subscriptions[handle] = None
            return handle

        return self._suspend(instance, subscribed)

    def unsubscribe(self, instance: Instance, subscription: int) -> Any:
        """Closes a subscription."""
        member = self._subscriber(instance, subscription)
        if member.subscriptions.pop(subscription) is not None:
            return None

        async def unsubscribed() -> None:
            for handle in await self._call(member, "unsubscribe", "", subscription):
                future = member.waiting.pop(handle, None)
                if future is not None:
                    _fail(future, ApiError("cancelled", "the subscription has ended"))

        return self._suspend(instance, unsubscribed)

    def next_message(self, instance: Instance, subscription: int) -> Any:
        """Opens a future of a subscription's next message."""
        member = self._subscriber(instance, subscription)
        lost = member.subscriptions[subscription]
        if lost is not None:
            raise _lost(member, lost)
        return self._open(instance, FutureKind.TEXT, "next", None, subscription)

    # Work queues

    def push(self, instance: Instance, topic: str, message: str) -> Any:
        """Appends to a work queue."""
        config = self._config
        most = (config.queues, config.queue_messages, config.queue_bytes)
        return self._send(instance, "push", topic, message, *most)

    def push_room(self, instance: Instance, topic: str) -> Any:
        """Opens a future of room in a work queue."""
        return self._open(instance, FutureKind.DONE, "room", topic, True)

    def pull(self, instance: Instance, topic: str) -> Any:
        """Opens a future of a work queue's next message."""
        most = (self._config.queue_messages, self._config.queue_bytes)
        return self._open(instance, FutureKind.TEXT, "pull", topic, *most)

    def take_text(self, instance: Instance, future: int) -> Any:
        """Consumes a future of text. Until the database has said so, a message is not taken."""
        value = instance.futures.take(future, FutureKind.TEXT)
        if value is not _HELD:
            return value
        member = self._member(instance)

        async def taken() -> str:
            try:
                text = await self._call(member, "take", "", future)
            except ApiError:
                self._give_up(member, future)  # if it was not taken
                raise
            if text is None:
                raise _lost(member, "its lease was lost")
            return bytes(text).decode()

        return self._suspend(instance, taken)

    def cancel(self, instance: Instance, future: int) -> Any:
        """Gives a future up. When this returns, its message has gone back."""
        instance.futures.cancel(future)
        member = self._members.get(instance.id)
        if member is None or future not in member.given_up:  # it is none of the database
            return None
        return self._suspend(instance, partial(self._tell_given_up, member))

    def _give_up(self, member: _Member, handle: int) -> None:
        """A future was cancelled, for whatever reason."""
        member.waiting.pop(handle, None)
        member.given_up.append(handle)
        if len(member.given_up) == 1:
            self._start(self._tell_given_up, member)

    # Calls

    def _send(self, instance: Instance, name: str, topic: str, message: str, *most: int) -> Any:
        size = size_of(message)
        check_size(instance, size)
        check_topic(topic)
        sent = (topic.encode(), message.encode(), size + OVERHEAD)
        member = self._member(instance)
        return self._suspend(instance, partial(self._call, member, name, topic, *sent, *most))

    def _open(
        self, instance: Instance, kind: FutureKind, name: str, topic: str | None, *arguments: Any
    ) -> Any:
        """Opens a future of a topic, or of what the arguments name."""
        if topic is not None:
            check_topic(topic)
            arguments = (topic.encode(), *arguments)
        future = instance.futures.create_outside(kind, f"messages of {instance.program.name}")
        member = self._member(instance)
        future.on_cancel = partial(self._give_up, member, future.handle)

        async def opened() -> int:
            member.opening = future.handle
            try:
                await self._call(member, name, "", future.handle, *arguments, future=future)
            except ApiError:
                instance.futures.cancel(future.handle)
                raise
            finally:
                member.opening = None
            return future.handle

        return self._suspend(instance, opened)

    def _suspend(self, instance: Instance, work: Callable[[], Awaitable[Any]]) -> Any:
        self._answers.start(instance, work)
        return SUSPENDED

    async def _call(
        self, member: _Member, name: str, topic: str, *arguments: Any, future: Future | None = None
    ) -> Any:
        """Makes a call, as soon as there are a lease and the database. Raises `ApiError`: the
        instance is refused; `busy` if nothing has happened for long, and `failed-dependency` if it
        cannot be known whether it has.
        """
        reason = "the node has no lease"
        instance = member.instance
        may_be_done = False
        with trio.move_on_after(PATIENCE_SECONDS):
            while not may_be_done:
                lease = self._lease.number
                if lease is not None:
                    if future is not None:
                        member.waiting[future.handle] = future
                    who = (instance.user, instance.id, lease, self._config.user_bytes)

                    def sent() -> Any:
                        nonlocal may_be_done
                        may_be_done = name in ONCE
                        return self._table.call(name, *who, *arguments)  # noqa: B023

                    try:
                        return await self._in_turn(sent)
                    except DatabaseAway as error:
                        reason = str(error)
                        may_be_done = may_be_done and error.may_be_done
                    except ApiError as error:
                        message = error.message.replace("{topic}", repr(topic))
                        raise ApiError(error.code, message) from None
                if future is not None and future.ready:  # it is lost
                    return None
                if not may_be_done:
                    await trio.sleep(AGAIN_SECONDS)
        if may_be_done:
            raise ApiError(
                "failed-dependency",
                "the database of the topics is away, and what was asked of it may be done or not:"
                f" {reason}",
            )
        raise ApiError("busy", f"topics need the cluster's database: {reason}; try again later")

    async def _keep_asking(self, lease: int | None, statement: Callable[[], Any]) -> Any:
        """What a statement gives; None if the lease ends before, and with it what it is about."""
        while lease is not None and self._lease.number == lease:
            try:
                return await self._in_turn(statement)
            except DatabaseAway as error:
                log.warning("topics wait for the database", reason=str(error))
                await trio.sleep(AGAIN_SECONDS)
        return None

    async def _in_turn(self, statement: Callable[[], Any]) -> Any:
        async with self._turns:
            return await self._ask(statement)

    async def _tell_given_up(self, member: _Member) -> None:
        async with member.telling:
            numbers, member.given_up = member.given_up, []
            instance, lease = member.instance, self._lease.number
            if numbers and self._members.get(instance.id) is member:
                who = (instance.user, instance.id, lease, self._config.user_bytes)
                await self._keep_asking(lease, partial(self._table.call, "cancel", *who, numbers))

    # What the database tells

    def _hear(self, told: str | None) -> None:
        if told is None:
            self._start(self._look)
            return
        number, _, instance = told.partition(" ")
        member = self._members.get(instance)
        if member is not None:
            _settle(member, int(number))

    async def _look(self) -> None:
        """The connection is another one: what was told meanwhile shows in the tables."""
        lease = self._lease.number
        found = None if lease is None else partial(self._table.waits, lease)
        waits = None if found is None else await self._keep_asking(lease, found)
        if waits is None:
            return
        for name, member in self._members.items():
            for handle, future in list(member.waiting.items()):
                ready = waits.get((name, handle))
                if handle == member.opening or ready is False:
                    continue
                if ready or future.kind is FutureKind.DONE:
                    _settle(member, handle)
                else:
                    del member.waiting[handle]
                    _fail(future, ApiError("cancelled", "the subscription has ended"))

    # Inside

    def _start(self, task: Callable[..., Awaitable[Any]], *arguments: Any) -> None:
        if self._nursery is not None:
            self._nursery.start_soon(task, *arguments)

    def _member(self, instance: Instance) -> _Member:
        member = self._members.get(instance.id)
        if member is None:
            member = self._members[instance.id] = _Member(instance)
        return member

    def _subscriber(self, instance: Instance, subscription: int) -> _Member:
        member = self._member(instance)
        if subscription not in member.subscriptions:
            raise ApiError("invalid-handle", f"{subscription} is no subscription of this instance")
        return member


def _settle(member: _Member, handle: int) -> None:
    future = member.waiting.pop(handle, None)
    if future is None:
        return
    if future.kind is FutureKind.TEXT:
        future.resolve(_HELD)  # it may still be given up
    else:
        future.on_cancel = None
        future.resolve()


def _fail(future: Future, error: ApiError) -> None:
    future.on_cancel = None
    future.fail(error)


def _lost(member: _Member, reason: str) -> ApiError:
    life = member.instance.id.partition("@")[2]
    return ApiError(
        "failed-dependency",
        f"node-lost: node {life} has lost its lease in the database: {reason}. Subscriptions and"
        " open futures of messages are gone; subscribe again, and go on",
    )
