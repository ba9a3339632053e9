"""Messages between the nodes of a cluster and its directory: parameters and answers of requests at
the gateway, by the protocol that clients speak.

All numbers are whole and bounded: a load that is not a number, or a list without end, is refused
before anything sees it.

What starts a node asks for a new life of it first (`begin`). Then the life sends a `Report` twice
per second, with what has changed; one that is new, or that the directory does not know (it was
restarted), with all that it has. Each answer renews the node's lease.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b
from typing import Annotated, Any, TypeAlias

import msgspec

from pie_cluster.config import NODE_NAME

NO_WORKER = 1 << 53  # `used_tokens` of a node whose worker is away: it has no room
MOST_HINTS = 512  # keys that one message names, and that the directory keeps of one node

Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
Positive: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=1 << 53)]
Key: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]  # see `program_key`
Name: TypeAlias = Annotated[str, msgspec.Meta(pattern=rf"\A{NODE_NAME}\Z")]
Text: TypeAlias = Annotated[str, msgspec.Meta(max_length=256)]
Cached: TypeAlias = Annotated[list[tuple[Key, Count]], msgspec.Meta(max_length=MOST_HINTS)]


class Load(msgspec.Struct, frozen=True):
    """The tasks of a node."""

    instances: Count = 0
    queued_tokens: Count = 0  # of prompts, not computed yet
    used_tokens: Count = 0  # of the KV pool, by instances; what is only cached does not count
    rested_ms: Count | None = None  # what is cached was used since; None: all that ever was, is


# Node to directory


class About(msgspec.Struct, frozen=True):
    """A node, as it stays for a life."""

    version: Text  # of pie_py
    endpoint: Text
    public_key: Text
    most_instances: Positive
    pool_tokens: Positive
    prefill_rate: Positive  # prompt tokens per second that the node computes


class Report(msgspec.Struct, frozen=True):
    """The changes since the message before; or all, with what the node is. To be told twice
    does no harm.
    """

    node: Name
    incarnation: Positive  # counts the node's lives; never given twice
    load: Load
    cached: Cached = []  # (user, program) and the tokens a launch would find; 0: no more
    drain_ms: Count | None = None  # what is left until the deadline, if the node drains
    again: bool = False  # after which another life of it is to begin
    document: Count = 0  # the version that it has
    about: About | None = None


# Directory to node


class Renewed(msgspec.Struct, frozen=True, tag="renewed"):
    """The lease goes on."""

    drain_ms: Count | None = None  # drain until then
    document: Count = 0  # the version that there is
    again: bool = False  # another life is to begin after the drain


class JoinAgain(msgspec.Struct, frozen=True, tag="join-again"):
    """The directory does not know the node, which is to tell all."""


class Fenced(msgspec.Struct, frozen=True, tag="fenced"):
    """The node is to end: another life of it has begun, or it does not fit the cluster."""

    reason: str


ToNode: TypeAlias = Renewed | JoinAgain | Fenced


# What operators see


class NodeFacts(msgspec.Struct, frozen=True):
    """A node as operators see it."""

    node: Name
    incarnation: Count
    state: str  # "ready", "draining", "no-worker", "silent", "starting" or "lost"
    version: str = ""
    endpoint: str = ""
    instances: int = 0
    pool: float = 0.0  # share in use
    waiting_seconds: float = 0.0  # of prompts that are not computed yet: its load
    silent_seconds: float = 0.0
    reason: str = ""  # why the life before has ended, or a lost one
    public_key: str = ""  # of its endpoint, off loopback

    @property
    def life(self) -> str:
        """`n7.3`: the node and its incarnation."""
        return f"{self.node}.{self.incarnation}"

    @property
    def serves(self) -> bool:
        """True if it answers, be it only for the instances that it still has."""
        return self.state in ("ready", "draining")


# What nodes report of their caches, and launches are placed by


@lru_cache(1 << 15)
def program_key(user: str, program: str) -> int:
    """A prefix that a user has cached by a program, named by the hash of its content.

    A key is a hash of 63 bits, so that tables and reports are small and tell no names. Two names
    with the same key cost a prefill at most, for a hint may always be wrong.
    """
    who = user.encode("utf-8", "surrogatepass")
    # The length keeps apart what would read alike: the user "a" and the name "bc", "ab" and "c".
    text = b"%d:%b%b" % (len(who), who, program.encode("utf-8", "surrogatepass"))
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "little") >> 1


# What all nodes are to have


class Setting(msgspec.Struct, frozen=True):
    """The requests by which a node gets something, and by which it has it no more."""

    method: str
    params: dict[str, Any]
    back: str
    back_params: dict[str, Any]


class Document(msgspec.Struct, frozen=True):
    """The document that nodes pull."""

    users: dict[str, str] = {}  # names by public key
    settings: list[Setting] = []

    @property
    def version(self) -> int:
        """A hash of 52 bits: a gateway that is started again has the same."""
        text = msgspec.json.encode(self, order="deterministic")
        return int.from_bytes(blake2b(text, digest_size=8).digest()) >> 12
