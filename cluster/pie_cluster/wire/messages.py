"""Messages between the nodes of a cluster and its directory.

One message is one frame, as those of `pie_py.wire.rpc` are. All numbers are whole and bounded: a
load that is not a number, or a list without end, is refused before anything sees it.

What starts a node asks for a new life of it first (`Begin`). A life that is new, or that the
directory does not know (it was restarted), sends `Join` with all that it has. From then on it sends
`Report` twice per second, with what has changed. The directory answers each, and the answer renews
the node's lease.

Questions are asked of the gateway, by the protocol that clients speak.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from hashlib import blake2b
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec

from pie_cluster.config import NODE_NAME

CLUSTER_PROTOCOL = 4  # grows with every incompatible change
ACCEPTED_PROTOCOLS = (4,)  # of nodes, so that a cluster can be upgraded node by node
NO_WORKER = 1 << 53  # `used_tokens` of a node whose worker is away: it has no room
WAITS = "waits for "  # begins the reason of a node that needs other machines
MOST_HINTS = 512  # keys that one message names, and that the directory keeps of one node

Message = TypeVar("Message")
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
Positive: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=1 << 53)]
Key: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]  # see `program_key`
Name: TypeAlias = Annotated[str, msgspec.Meta(pattern=rf"\A{NODE_NAME}\Z")]
Text: TypeAlias = Annotated[str, msgspec.Meta(max_length=256)]
Cached: TypeAlias = Annotated[list[tuple[Key, Count]], msgspec.Meta(max_length=MOST_HINTS)]
Keys: TypeAlias = Annotated[list[Key], msgspec.Meta(max_length=MOST_HINTS)]


class Frame(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """An array of the kind's name and the fields in their order."""


class Load(Frame, frozen=True):
    """What a node has to do."""

    instances: Count = 0
    queued_tokens: Count = 0  # of prompts, not computed yet
    used_tokens: Count = 0  # of the KV pool, by instances; what is only cached does not count


# Node to directory


class Join(Frame, tag="join", frozen=True):
    """A node's life begins, or the directory has asked for all of it again."""

    node: Name
    incarnation: Positive  # counts the node's lives; never given twice
    protocol: Count
    version: Text  # of pie_py
    endpoint: Text
    public_key: Text
    most_instances: Positive
    pool_tokens: Positive
    prefill_rate: Positive  # prompt tokens per second that the node computes
    load: Load = Load()
    cached: Cached = []  # (user, program) and the tokens that a launch would find
    exports: Keys = []
    drain_ms: Count | None = None  # what is left until the deadline, if the node drains
    again: bool = False  # after which another life of it is to begin


class Report(Frame, tag="report", frozen=True):
    """What has changed since the message before."""

    node: Name
    incarnation: Positive
    number: Positive  # 1 after a `Join`, then one more each time
    load: Load
    cached: Cached = []  # 0 tokens: not cached any more
    exported: Keys = []
    released: Keys = []
    drain_ms: Count | None = None
    settings: Count = 0  # the version of the cluster's settings that it has


# Directory to node


class Renewed(Frame, tag="renewed", frozen=True):
    """The lease goes on."""

    number: Count  # of the report, 0 of a join
    drain_ms: Count | None = None  # drain until then
    keys: Count = 0  # another number whenever users' keys may have been removed
    again: bool = False  # another life is to begin after the drain
    settings: Count = 0  # the version of the cluster's settings that there is


class JoinAgain(Frame, tag="join-again", frozen=True):
    """The directory does not know the node, or has missed a report."""


class Fenced(Frame, tag="fenced", frozen=True):
    """The node is to end: another life of it has begun, or it does not fit the cluster."""

    reason: str


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
        """Whether it answers, be it only for the instances that it still has."""
        return self.state in ("ready", "draining")


ToDirectory: TypeAlias = Join | Report
ToNode: TypeAlias = Renewed | JoinAgain | Fenced

_encoder = msgspec.msgpack.Encoder()
_of_node: msgspec.msgpack.Decoder[ToDirectory] = msgspec.msgpack.Decoder(ToDirectory)
_told: msgspec.msgpack.Decoder[ToNode] = msgspec.msgpack.Decoder(ToNode)


class NotOfCluster(ValueError):
    """Bytes that are no message of this protocol."""


def encode(message: ToDirectory | ToNode) -> bytes:
    """Turns a message into the bytes of its frame."""
    return _encoder.encode(message)


def _decode(decoder: msgspec.msgpack.Decoder[Message], what: str, frame: bytes) -> Message:
    try:
        return decoder.decode(frame)
    except Exception as error:  # noqa: BLE001  hostile frames find more than msgspec's own errors
        raise NotOfCluster(f"no {what}: {error}") from None


# They raise `NotOfCluster` for bytes that are no such message, and nothing else.
decode_to_directory = partial(_decode, _of_node, "message of a node")
decode_told = partial(_decode, _told, "message of the directory")


# What nodes report of their caches and exports, and launches are placed by


def program_key(user: str, program: str) -> int:
    """What a user has cached by a program, named by the hash of its content.

    A key is a hash of 63 bits, so that tables and reports are small and tell no names. Two names
    with the same key cost a prefill at most, for a hint may always be wrong.
    """
    return _key(b"program", user, program)


def prefix_key(user: str, digest: str) -> int:
    """What a user has cached of prompts that begin alike, as a hash of that tells."""
    return _key(b"prefix", user, digest)


def export_key(user: str, name: str) -> int:
    """Pages that a user has exported under a name."""
    return _key(b"export", user, name)


def _key(kind: bytes, user: str, name: str) -> int:
    who = user.encode("utf-8", "surrogatepass")
    # The length keeps apart what would read alike: the user "a" and the name "bc", "ab" and "c".
    text = b"%d:%b%b" % (len(who), who, name.encode("utf-8", "surrogatepass"))
    digest = blake2b(text, digest_size=8, person=kind).digest()
    return int.from_bytes(digest, "little") >> 1


# What is set at the gateway for all nodes, as one document that nodes pull.


class Setting(msgspec.Struct, frozen=True):
    """What a node is asked so that it has something, and so that it has it no more."""

    method: str
    params: dict[str, Any]
    back: str
    back_params: dict[str, Any]


def adapter(model: str, name: str, folder: str) -> Setting:
    """An adapter, in a folder that every node's machine has."""
    place = {"model": model, "name": name}
    return Setting("load-adapter", {**place, "folder": folder}, "unload-adapter", place)


def mcp_server(user: str, name: str, fields: dict[str, Any]) -> Setting:
    """An MCP server of a user; `fields` are those of `register-mcp`."""
    whose = {"user": user, "name": name}
    return Setting("register-mcp", {**fields, **whose}, "unregister-mcp", whose)


def version_of(settings: Sequence[Setting]) -> int:
    """A hash of what is set, of 52 bits: a gateway that is started again has the same."""
    text = msgspec.json.encode(settings, order="deterministic")
    return int.from_bytes(blake2b(text, digest_size=8).digest()) >> 12
