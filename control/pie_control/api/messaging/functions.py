"""Trait `messaging`: topics and work queues between the instances of one user."""

from __future__ import annotations

from collections.abc import Callable

from pie_control.api.messaging.bus import Bus
from pie_control.api.session import check_size
from pie_control.errors import ApiError
from pie_control.instances.futures import Future, FutureKind
from pie_control.instances.instance import Instance
from pie_py.wire.rpc import size_of


class MessagingCalls:
    """Messages over one bus, for all instances."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    def broadcast(self, instance: Instance, topic: str, message: str) -> int:
        """Sends to every subscriber, or to none; returns how many there are."""
        size = size_of(message)
        check_size(instance, size)
        return self._bus.broadcast(instance, topic, message, size)

    def broadcast_room(self, instance: Instance, topic: str) -> int:
        """Opens a future of room in every subscriber's box."""
        bus = self._bus
        return _open(instance, FutureKind.DONE, lambda f: bus.broadcast_room(instance, topic, f))

    def subscribe(self, instance: Instance, topic: str) -> int:
        """Opens a subscription."""
        return self._bus.subscribe(instance, topic)

    def unsubscribe(self, instance: Instance, subscription: int) -> None:
        """Closes a subscription."""
        self._bus.unsubscribe(instance, subscription)

    def next_message(self, instance: Instance, subscription: int) -> int:
        """Opens a future of a subscription's next message."""
        bus = self._bus
        return _open(
            instance, FutureKind.TEXT, lambda f: bus.next_message(instance, subscription, f)
        )

    def push(self, instance: Instance, topic: str, message: str) -> None:
        """Appends to a work queue."""
        size = size_of(message)
        check_size(instance, size)
        self._bus.push(instance, topic, message, size)

    def push_room(self, instance: Instance, topic: str) -> int:
        """Opens a future of room in a work queue."""
        bus = self._bus
        return _open(instance, FutureKind.DONE, lambda f: bus.push_room(instance, topic, f))

    def pull(self, instance: Instance, topic: str) -> int:
        """Opens a future of a work queue's next message."""
        bus = self._bus
        return _open(instance, FutureKind.TEXT, lambda f: bus.pull(instance, topic, f))


def _open(instance: Instance, kind: FutureKind, start: Callable[[Future], None]) -> int:
    """Opens a future for what `start` begins; none stays open if it can't begin."""
    future = instance.futures.create_outside(kind, f"messages of {instance.program.name}")
    try:
        start(future)
    except ApiError:
        instance.futures.cancel(future.handle)
        raise
    return future.handle
