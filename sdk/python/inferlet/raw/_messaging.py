"""Interface `messaging`: messages between a user's instances."""

from __future__ import annotations

from inferlet._bindings import Err
from inferlet._bindings import messaging as interface
from inferlet.errors import PieError
from inferlet.raw._convert import as_text, as_u32


def broadcast(topic: str, message: str) -> int:
    """Sends to every current subscriber of a topic among this user's instances, this one included, and
    returns how many there are. If the box of one of them is full, nobody is sent anything and
    the error names it; `broadcast_room` tells when to try again. So no subscriber misses a message.
    Errors: `would-block`, `invalid-argument`, `limit-exceeded` (message too large).
    """
    try:
        answer: int = interface.broadcast(as_text(topic), as_text(message))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def broadcast_room(topic: str) -> int:
    """A future that is ready when the box of every subscriber has room. Consume it with `take`.
    Errors: `invalid-argument`, `limit-exceeded`.
    """
    try:
        answer: int = interface.broadcast_room(as_text(topic))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def subscribe(topic: str) -> int:
    """Subscribes to what is broadcast from now on, and returns a handle. Two subscriptions of one
    instance each receive everything.
    Errors: `invalid-argument`, `limit-exceeded`.
    """
    try:
        answer: int = interface.subscribe(as_text(topic))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def unsubscribe(subscription: int) -> None:
    """Ends a subscription. What it has not read is dropped; its open futures fail with `cancelled`.
    Errors: `invalid-handle`.
    """
    try:
        interface.unsubscribe(as_u32(subscription))
    except Err as error:
        raise PieError(error.value) from None


def next_message(subscription: int) -> int:
    """A future of the subscription's next message, in the order of the broadcasts. Consume it with
    `take_text`.
    Errors: `invalid-handle`, `limit-exceeded`.
    """
    try:
        answer: int = interface.next_message(as_u32(subscription))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def push(topic: str, message: str) -> None:
    """Appends to the user's work queue of a topic. The queue is bounded: over it the error is
    `would-block`, and `push_room` tells when to try again.
    Errors: `would-block`, `invalid-argument`, `limit-exceeded` (message too large, too many queues).
    """
    try:
        interface.push(as_text(topic), as_text(message))
    except Err as error:
        raise PieError(error.value) from None


def push_room(topic: str) -> int:
    """A future that is ready when the work queue has room. Consume it with `take`.
    Errors: `invalid-argument`, `limit-exceeded`.
    """
    try:
        answer: int = interface.push_room(as_text(topic))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def pull(topic: str) -> int:
    """A future of a message of the work queue, the oldest that nobody else has. Each goes to exactly
    one puller; pullers are served in the order of their calls. Consume it with `take_text`.
    Errors: `invalid-argument`, `limit-exceeded`.
    """
    try:
        answer: int = interface.pull(as_text(topic))
    except Err as error:
        raise PieError(error.value) from None
    return answer
