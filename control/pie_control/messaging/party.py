"""Who sends and receives messages, and what a topic is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from pie_control.errors import ApiError

if TYPE_CHECKING:
    from pie_py.config.limits import Limits

MAX_TOPIC_BYTES = 256


class Party(Protocol):
    """Who sends and receives: an instance, here or on another node of the cluster."""

    id: str
    user: str
    limits: Limits


def check_topic(topic: str) -> None:
    """Refuses what is no topic.

    Raises:
        ApiError: `invalid-argument`.
    """
    size = len(topic.encode())
    if not 0 < size <= MAX_TOPIC_BYTES:
        raise ApiError(
            "invalid-argument", f"a topic of {size} bytes; 1 to {MAX_TOPIC_BYTES} are allowed"
        )
