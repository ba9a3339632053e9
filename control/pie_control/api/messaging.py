"""Trait `messaging`: topics and work queues between the instances of one user."""

from __future__ import annotations

from collections.abc import Callable

from pie_control.api.binder import implement
from pie_control.api.session import check_size, message_size
from pie_control.errors import ApiError
from pie_control.instances.futures import Future, FutureKind
from pie_control.instances.instance import Instance


def broadcast(instance: Instance, topic: str, message: str) -> int:
    """Sends to every subscriber, or to none; returns how many there are."""
    size = message_size(message)
    check_size(instance, size)
    return instance.host.messaging.broadcast(instance, topic, message, size)


def broadcast_room(instance: Instance, topic: str) -> int:
    """Opens a future of room in every subscriber's box."""
    bus = instance.host.messaging
    return _open(instance, FutureKind.DONE, lambda f: bus.broadcast_room(instance, topic, f))


def subscribe(instance: Instance, topic: str) -> int:
    """Opens a subscription."""
    return instance.host.messaging.subscribe(instance, topic)


def unsubscribe(instance: Instance, subscription: int) -> None:
    """Closes a subscription."""
    instance.host.messaging.unsubscribe(instance, subscription)


def next_message(instance: Instance, subscription: int) -> int:
    """Opens a future of a subscription's next message."""
    bus = instance.host.messaging
    return _open(instance, FutureKind.TEXT, lambda f: bus.next_message(instance, subscription, f))


def push(instance: Instance, topic: str, message: str) -> None:
    """Appends to a work queue."""
    size = message_size(message)
    check_size(instance, size)
    instance.host.messaging.push(instance, topic, message, size)


def push_room(instance: Instance, topic: str) -> int:
    """Opens a future of room in a work queue."""
    bus = instance.host.messaging
    return _open(instance, FutureKind.DONE, lambda f: bus.push_room(instance, topic, f))


def pull(instance: Instance, topic: str) -> int:
    """Opens a future of a work queue's next message."""
    bus = instance.host.messaging
    return _open(instance, FutureKind.TEXT, lambda f: bus.pull(instance, topic, f))


def _open(instance: Instance, kind: FutureKind, start: Callable[[Future], None]) -> int:
    """Opens a future for what `start` begins; none stays open if it can't begin."""
    future = instance.open_outside(kind, f"messages of {instance.program.name}")
    try:
        start(future)
    except ApiError:
        instance.futures.cancel(future.handle)
        raise
    return future.handle


FUNCTIONS = implement(
    "messaging",
    broadcast,
    broadcast_room,
    subscribe,
    unsubscribe,
    next_message,
    push,
    push_room,
    pull,
)
