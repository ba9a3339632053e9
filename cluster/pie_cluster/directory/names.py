"""Names of lives and instances: where an instance runs can be read from its id.

A *life* is one incarnation of a node: `n7.3` is the third life of node `n7`. An instance's id in a
cluster is its name, `@` and the life it was launched in: `chat-1a2b3c4d@n7.3`. So no table of
instances exists that could be wrong, and an id of a life that has ended is known to be lost. Each
id has one spelling: what differs by a zero, a case or a foreign digit is refused.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from pie_cluster.config import NODE_NAME
from pie_control.errors import Refusal

MOST_INCARNATION = 1 << 53  # as `pie_cluster.wire.messages` has it

_is_name = re.compile(
    r"([A-Za-z0-9_][A-Za-z0-9._-]{0,63}-[0-9a-f]{8}@)?"
    rf"(?P<node>{NODE_NAME})\.(?P<incarnation>[1-9][0-9]{{0,15}})"
).fullmatch


class Life(NamedTuple):
    """One life of a node."""

    node: str
    incarnation: int

    def __str__(self) -> str:
        return f"{self.node}.{self.incarnation}"


def life_of(text: str) -> Life:
    """The life of an instance's id, or that is named itself.

    Raises:
        Refusal: `not-found` if it is anything else.
    """
    found = _is_name(text)
    if found is None or int(found["incarnation"]) > MOST_INCARNATION:
        raise Refusal(
            "not-found", f"{text!r:.200} is no name of this cluster; one is chat-1a2b3c4d@n7.3"
        )
    return Life(found["node"], int(found["incarnation"]))
