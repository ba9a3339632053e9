"""Trait `session`: messages between the instance and its client."""

from __future__ import annotations

from functools import partial
from typing import TypeVar

from pie_control.errors import exceeded
from pie_control.instances.futures import FutureKind
from pie_control.instances.instance import Instance
from pie_control.instances.mailbox import Mailbox
from pie_py.wire.rpc import size_of

Message = TypeVar("Message", str, bytes)
READER = "reader"  # what an instance waits for whose mailbox is full


def send(instance: Instance, message: str) -> None:
    """Sends text to the client."""
    check_size(instance, size_of(message))
    _send(instance, message)


def send_blob(instance: Instance, data: bytes) -> None:
    """Sends bytes to the client."""
    check_size(instance, len(data))
    _send(instance, data)


def _send(instance: Instance, message: str | bytes) -> None:
    is_first = not instance.outbox.sent_total
    instance.make_room()
    instance.outbox.send(message)
    if is_first and instance.guest is not None:
        # Its client waits for that. What it does next is mostly to read its prompt, which costs as
        # much as the starts of several others.
        instance.turn.gives_way = True
        instance.guest.give_way()


def writable(instance: Instance) -> int:
    """Opens a future that is ready when there is room for a message."""
    future = instance.futures.create_outside(FutureKind.DONE, READER)
    instance.make_room()
    callback = future.resolve
    future.on_cancel = lambda: instance.outbox.forget(callback)
    instance.outbox.when_room(callback)
    return future.handle


def receive(instance: Instance) -> int:
    """Opens a future of the client's next text."""
    return _receive(instance, instance.texts, FutureKind.TEXT)


def receive_blob(instance: Instance) -> int:
    """Opens a future of the client's next bytes."""
    return _receive(instance, instance.blobs, FutureKind.BLOB)


def _receive(instance: Instance, mailbox: Mailbox[Message], kind: FutureKind) -> int:
    """Futures get the messages in the order they were opened; a cancelled one leaves its message.

    A message fills the mailbox until its future is taken.
    """
    future = instance.futures.create_outside(kind, f"client of {instance.program.name}")

    def deliver() -> None:
        loan = mailbox.lend()
        future.on_cancel = partial(mailbox.put_back, loan)
        future.on_take = partial(mailbox.release, loan)
        future.resolve(loan[1])

    future.on_cancel = partial(mailbox.forget, deliver)
    mailbox.when_item(deliver)
    return future.handle


def check_size(instance: Instance, size: int) -> None:
    """Refuses a message that is too large. Raises ApiError `limit-exceeded`."""
    if size > instance.limits.message_bytes:
        raise exceeded(
            f"a message of {size} bytes; {instance.limits.message_bytes} at most: send it in parts"
        )
