"""Trait `messaging` on a node of a cluster: for all of a user's instances, wherever they run.

Where this node owns the topics, a call goes to its bus, as on one server. Else it suspends the
guest until the owner has answered. Messages are taken at their owner, or given back to it, so that
`take-text` and `cancel` may suspend, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import trio

from pie_cluster.node.bus_link import BusLink, GiveUp, Held, NotDone
from pie_cluster.node.ownership import AGAIN_SECONDS, Here, Ownership, TopicOwner
from pie_control.api.binder import implement
from pie_control.api.session import check_size
from pie_control.api.signatures import SIGNATURES
from pie_control.errors import ApiError
from pie_control.instances.futures import Future, FutureKind
from pie_control.instances.instance import Instance
from pie_control.instances.slow_calls import SlowCalls
from pie_control.messaging.channel import check_topic
from pie_control.wasm import SUSPENDED, HostFunction
from pie_py.wire.rpc import size_of

if TYPE_CHECKING:
    from pie_control.messaging.bus import Bus
    from pie_py.client.calls import Call as Sent

TRIES = 40  # of owners that do not have the topics any more, for one call


class _Subscription(NamedTuple):
    """One that is open, and its handle there."""

    place: TopicOwner
    handle: int


class _Member:
    """What an instance has at owners. Handles are never used twice, whichever owner there is."""

    def __init__(self) -> None:
        self.subscriptions: dict[int, _Subscription] = {}
        self.last = 0  # handle
        self.links: set[BusLink] = set()  # where it has called


class _Call(NamedTuple):
    """A call of an instance, to be made where the owner is.

    Attributes:
        name: of the function, and its arguments there.
        here: makes it on this node.
        future: of the instance, if one is opened; the call returns its handle.
        finish: makes what the call returns of the place and its answer.
        gone: of a call for one place alone: makes what it returns if that is lost.
    """

    name: str
    args: tuple[Any, ...]
    here: Callable[[], Any]
    future: Future | None = None
    finish: Callable[[TopicOwner, Any], Any] | None = None
    gone: Callable[[], Any] | None = None


class ClusterTopics:
    """The functions of the trait, and those that take messages and give them up."""

    def __init__(self, bus: Bus, ownership: Ownership, answers: SlowCalls) -> None:
        self._bus = bus
        self._ownership = ownership
        self._answers = answers
        self._members: dict[Instance, _Member] = {}

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

    def leave(self, instance: Instance) -> None:
        """An instance has ended, and its futures are closed."""
        member = self._members.pop(instance, None)
        if member is not None:
            for link in member.links:
                link.drop(instance.id)

    # Topics

    def broadcast(self, instance: Instance, topic: str, message: str) -> Any:
        """Sends to every subscriber, or to none; returns how many there are."""
        return self._send_message(instance, "broadcast", self._bus.broadcast, topic, message)

    def broadcast_room(self, instance: Instance, topic: str) -> Any:
        """Opens a future of room in every subscriber's box."""
        bus = self._bus
        return self._open(instance, FutureKind.DONE, "broadcast-room", bus.broadcast_room, topic)

    def subscribe(self, instance: Instance, topic: str) -> Any:
        """Opens a subscription."""
        check_topic(topic)
        member = self._member(instance)

        def finish(place: TopicOwner, handle: int) -> int:
            member.last += 1
            member.subscriptions[member.last] = _Subscription(place, handle)
            return member.last

        here = partial(self._bus.subscribe, instance, topic)
        return self._make(instance, _Call("subscribe", (topic,), here, finish=finish))

    def unsubscribe(self, instance: Instance, subscription: int) -> Any:
        """Closes a subscription."""
        place, handle = self._subscription(instance, subscription)
        del self._members[instance].subscriptions[subscription]
        if place.over is not None:
            return None
        here = partial(self._bus.unsubscribe, instance, handle)
        call = _Call("unsubscribe", (handle,), here, gone=lambda: None)
        return self._make_at(place, instance, call)

    def next_message(self, instance: Instance, subscription: int) -> Any:
        """Opens a future of a subscription's next message."""
        place, handle = self._subscription(instance, subscription)
        known = self._ownership.known(instance.user)  # and so whether the place is over
        if place.over is not None or (isinstance(place, Here) and place is not known):
            raise place.lost()
        future = _future(instance, FutureKind.TEXT)
        here = partial(self._bus.next_message, instance, handle, future)
        call = _Call("next-message", (handle,), here, future, gone=partial(_raise_lost, place))
        return self._make_at(place, instance, call)

    # Work queues

    def push(self, instance: Instance, topic: str, message: str) -> Any:
        """Appends to a work queue."""
        return self._send_message(instance, "push", self._bus.push, topic, message)

    def push_room(self, instance: Instance, topic: str) -> Any:
        """Opens a future of room in a work queue."""
        return self._open(instance, FutureKind.DONE, "push-room", self._bus.push_room, topic)

    def pull(self, instance: Instance, topic: str) -> Any:
        """Opens a future of a work queue's next message."""
        return self._open(instance, FutureKind.TEXT, "pull", self._bus.pull, topic)

    def take_text(self, instance: Instance, future: int) -> Any:
        """Consumes a future of text. Until its owner has said so, a message is not taken."""
        value = instance.futures.take(future, FutureKind.TEXT)
        if type(value) is not Held:
            return value
        gone = partial(_raise_lost, value.link)
        return self._make_at(value.link, instance, _Call("take", (value.handle,), gone, gone=gone))

    def cancel(self, instance: Instance, future: int) -> Any:
        """Gives a future up. When this returns, its message has gone back."""
        give_up = instance.futures.get(future).on_cancel
        instance.futures.cancel(future)
        if not isinstance(give_up, GiveUp):
            return None
        sent = give_up.link.tell_dropped()
        if sent is None:
            return None
        self._answers.start(instance, sent.done.wait)
        return SUSPENDED

    # Calls, here or there

    def _send_message(
        self, instance: Instance, name: str, here: Callable[..., Any], topic: str, message: str
    ) -> Any:
        size = size_of(message)
        check_size(instance, size)
        check_topic(topic)
        args = (topic, message, size)
        return self._make(instance, _Call(name, args, partial(here, instance, *args)))

    def _open(
        self,
        instance: Instance,
        kind: FutureKind,
        name: str,
        here: Callable[[Instance, str, Future], None],
        topic: str,
    ) -> Any:
        check_topic(topic)
        future = _future(instance, kind)
        call = _Call(name, (topic,), partial(here, instance, topic, future), future)
        return self._make(instance, call)

    def _make(self, instance: Instance, call: _Call) -> Any:
        return self._make_at(self._ownership.known(instance.user), instance, call)

    def _make_at(self, place: TopicOwner | None, instance: Instance, call: _Call) -> Any:
        """Makes a call at once where the owner is here. Elsewhere it is sent at once if that is
        possible, so that calls arrive in their order; the guest is suspended until the answer.
        """
        sent = None
        if isinstance(place, Here):
            with _undone(instance, call):
                return _value(call, place, call.here())
        if place is not None:
            with suppress(NotDone):
                sent = self._send(place, instance, call)
        self._answers.start(instance, partial(self._finish, instance, call, place, sent))
        return SUSPENDED

    async def _finish(
        self, instance: Instance, call: _Call, place: TopicOwner | None, sent: Sent | None
    ) -> Any:
        with _undone(instance, call):
            for _ in range(TRIES):
                place = place or await self._ownership.find(instance.user)
                if isinstance(place, Here):
                    return _value(call, place, call.here())
                try:
                    answer = await self._answer(place, instance, call, sent)
                    return _value(call, place, answer)
                except NotDone:
                    if call.gone is not None:
                        return call.gone()
                self._ownership.forget(instance.user, place)
                place = sent = None
                await trio.sleep(AGAIN_SECONDS)
            raise ApiError("busy", "the topics of your instances have no owner for long: try again")

    async def _answer(
        self, link: BusLink, instance: Instance, call: _Call, sent: Sent | None
    ) -> Any:
        while sent is None:
            sent = self._send(link, instance, call)
            if sent is None:
                await link.room()
        return await link.answer(instance.id, sent, call.future)

    def _send(self, link: BusLink, instance: Instance, call: _Call) -> Sent | None:
        self._member(instance).links.add(link)
        return link.send(instance.id, instance.user, call.name, call.args)

    # Inside

    def _member(self, instance: Instance) -> _Member:
        member = self._members.get(instance)
        if member is None:
            member = self._members[instance] = _Member()
        return member

    def _subscription(self, instance: Instance, subscription: int) -> _Subscription:
        member = self._members.get(instance)
        found = None if member is None else member.subscriptions.get(subscription)
        if found is None:
            raise ApiError("invalid-handle", f"{subscription} is no subscription of this instance")
        return found


def _future(instance: Instance, kind: FutureKind) -> Future:
    return instance.futures.create_outside(kind, f"messages of {instance.program.name}")


def _value(call: _Call, place: TopicOwner, answer: Any) -> Any:
    if call.future is not None:
        return call.future.handle
    return answer if call.finish is None else call.finish(place, answer)


@contextmanager
def _undone(instance: Instance, call: _Call) -> Iterator[None]:
    """No future stays open of a call that fails."""
    try:
        yield
    except ApiError:
        if call.future is not None:
            instance.futures.cancel(call.future.handle)
        raise


def _raise_lost(place: TopicOwner) -> NoReturn:
    raise place.lost()
