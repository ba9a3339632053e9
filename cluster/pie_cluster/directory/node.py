"""Lives of nodes: their names, and the directory's record of each."""

from __future__ import annotations

import enum
import re
from typing import NamedTuple

from pie_cluster.config import NODE_NAME
from pie_cluster.wire.messages import NO_WORKER, About, Load, NodeFacts
from pie_control.errors import Refusal
from pie_py.wire.modules import NAME

FULL_POOL = 0.95  # share of the KV pool above which a node takes no launches
MOST_INCARNATION = 1 << 53  # as `pie_cluster.wire.messages` has it

_is_name = re.compile(
    rf"({NAME}-[0-9a-f]{{8}}@)?"
    rf"(?P<node>{NODE_NAME})\.(?P<incarnation>[1-9][0-9]{{0,15}})"
).fullmatch


class Life(NamedTuple):
    """One life of a node: `n7.3` is the third of node `n7`.

    An instance's id in a cluster is its name, `@` and the life it was launched in:
    `chat-1a2b3c4d@n7.3`. So no table of instances exists that could be wrong, and an id of a life
    that has ended is known to be lost. Each id has one spelling: what differs by a zero, a case or
    a foreign digit is refused.
    """

    node: str
    incarnation: int

    def __str__(self) -> str:
        return f"{self.node}.{self.incarnation}"


def life_of(text: str) -> Life:
    """The life of an instance's id, or that is named itself. Raises `Refusal`: `not-found` if it is
    anything else.
    """
    found = _is_name(text)
    if found is None or int(found["incarnation"]) > MOST_INCARNATION:
        raise Refusal(
            "not-found", f"{text!r:.200} is no name of this cluster; one is chat-1a2b3c4d@n7.3"
        )
    return Life(found["node"], int(found["incarnation"]))


class State(enum.Enum):
    """True if a node takes launches; and why not."""

    READY = "ready"
    DRAINING = "draining"
    SILENT = "silent"  # its lease has run out
    STARTING = "starting"  # a life has begun that has not joined
    NO_WORKER = "no-worker"  # it has ended, and another one loads the model


class Node:
    """One life of a node, as it has reported itself, with what was placed on it since.

    Attributes:
        cached: the tokens that a launch of a key would find here, and when it was used last; newest
            last.
        instances, used_tokens: as reported, with what was placed since.
        pool: the share of its KV pool that instances use.
        free_at: when the prompts that wait are computed.
        has_worker: whether launches would find one.
        heard: when it last reported, by the directory's clock.
        drain_until: when a drain's deadline is, by the same clock.
        again: whether another life begins after the drain.
    """

    # fmt: off
    __slots__ = ("again", "cached", "document", "drain_until", "free_at", "has_room", "has_worker",
                 "heard", "instances", "life", "pool", "silent", "token_seconds", "used_tokens",
                 "what")
    # fmt: on

    def __init__(self, life: Life, what: About, load: Load, now: float) -> None:
        self.life = life
        self.what = what
        self.token_seconds = 1 / what.prefill_rate
        self.cached: dict[int, tuple[int, float]] = {}
        self.document = -1  # the version that it has reported
        self.heard = now
        self.silent = False
        self.drain_until: float | None = None
        self.again = False
        self.take(load, now)

    def take(self, load: Load, now: float) -> None:
        """A report's load, in which all that was placed before counts."""
        self.instances = load.instances
        self.has_worker = load.used_tokens != NO_WORKER
        self.used_tokens = load.used_tokens if self.has_worker else self.what.pool_tokens
        self.free_at = now + load.queued_tokens * self.token_seconds
        self._weigh()

    def place(self, tokens: int, now: float) -> None:
        """A launch comes, with so many tokens to compute, and to hold beside what is there."""
        self.instances += 1
        self.used_tokens += tokens
        self.free_at = max(now, self.free_at) + tokens * self.token_seconds
        self._weigh()

    def found(self, key: int, most: int) -> int:
        """The tokens that a launch would find cached of a key, of so many at most."""
        known = self.cached.get(key)
        return min(known[0], most) if known else 0

    def facts(self, now: float) -> NodeFacts:
        """As operators see it."""
        what, waiting = self.what, max(0.0, self.free_at - now)
        at = self.state.value, what.version, what.endpoint
        seconds = self.pool, waiting, now - self.heard
        return NodeFacts(*self.life, *at, self.instances, *seconds, "", what.public_key)

    def _weigh(self) -> None:
        self.pool = self.used_tokens / self.what.pool_tokens
        self.has_room = self.instances < self.what.most_instances and self.pool <= FULL_POOL

    @property
    def state(self) -> State:
        """Its state; a silent node is silent whatever else it is."""
        if self.silent:
            return State.SILENT
        if self.drain_until is not None:
            return State.DRAINING
        return State.READY if self.has_worker else State.NO_WORKER
