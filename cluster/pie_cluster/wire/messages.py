"""Messages between the nodes of a cluster and its directory.

One message is one frame, as those of `pie_py.wire.rpc` are. All numbers are whole and bounded: a
load that is not a number, or a list without end, is refused before anything sees it.

What starts a node asks for a new life of it first (`Begin`). A life that is new, or that the
directory does not know (it was restarted), sends `Join` with all that it has. From then on it sends
`Report` twice per second, with what has changed. The directory answers each, and the answer renews
the node's lease.

Nodes, and the command line, ask questions, which carry a number so that answers find theirs.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias, TypeVar

import msgspec

from pie_cluster.config import NODE_NAME

CLUSTER_PROTOCOL = 3  # grows with every incompatible change
ACCEPTED_PROTOCOLS = (3,)  # of nodes, so that a cluster can be upgraded node by node
MOST_AVOIDED = 8  # lives where one launch may not go
NO_WORKER = 1 << 53  # `used_tokens` of a node whose worker is away: it has no room
WAITS = "waits for "  # begins the reason of a node that needs other machines
MOST_HINTS = 512  # keys that one message names, and that the directory keeps of one node

Message = TypeVar("Message")
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
Positive: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=1 << 53)]
Key: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]  # see `wire/keys.py`
Name: TypeAlias = Annotated[str, msgspec.Meta(pattern=rf"\A{NODE_NAME}\Z")]
Seconds: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
Text: TypeAlias = Annotated[str, msgspec.Meta(max_length=256)]
Avoided: TypeAlias = Annotated[list[Text], msgspec.Meta(max_length=MOST_AVOIDED)]  # lives
Cached: TypeAlias = Annotated[list[tuple[Key, Count]], msgspec.Meta(max_length=MOST_HINTS)]
Keys: TypeAlias = Annotated[list[Key], msgspec.Meta(max_length=MOST_HINTS)]


class _Message(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """An array of the kind's name and the fields in their order."""


class Load(_Message, frozen=True):
    """What a node has to do."""

    instances: Count = 0
    queued_tokens: Count = 0  # of prompts, not computed yet
    used_tokens: Count = 0  # of the KV pool, by instances; what is only cached does not count


# Node to directory


class Join(_Message, tag="join", frozen=True):
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


class Report(_Message, tag="report", frozen=True):
    """What has changed since the message before."""

    node: Name
    incarnation: Positive
    number: Positive  # 1 after a `Join`, then one more each time
    load: Load
    cached: Cached = []  # 0 tokens: not cached any more
    exported: Keys = []
    released: Keys = []
    drain_ms: Count | None = None


# Directory to node


class Renewed(_Message, tag="renewed", frozen=True):
    """The lease goes on."""

    number: Count  # of the report, 0 of a join
    drain_ms: Count | None = None  # drain until then
    keys: Count = 0  # another number whenever users' keys may have been removed
    again: bool = False  # another life is to begin after the drain


class JoinAgain(_Message, tag="join-again", frozen=True):
    """The directory does not know the node, or has missed a report."""


class Fenced(_Message, tag="fenced", frozen=True):
    """The node is to end: another life of it has begun, or it does not fit the cluster."""

    reason: str


# Questions to the directory, and their answers: each answer has its question's number


class _Numbered(_Message, frozen=True):
    """A question, or its answer."""

    number: Count


class Begin(_Numbered, tag="begin", frozen=True):
    """A new life of a node is about to start; the one before, if there is one, is over."""

    node: Name
    reason: Text = ""  # why the one before has ended, for people


class Allot(_Numbered, tag="allot", frozen=True):
    """A machine joins with so many nodes: which names may they have?"""

    count: Annotated[int, msgspec.Meta(ge=1, le=1024)]
    models: Text  # a hash of what the machine would serve, which all nodes serve


class PlaceLaunch(_Numbered, tag="place", frozen=True):
    """Where may this launch go?"""

    user: Text
    program: Text  # its hash
    parent: Text | None = None  # the instance that launches it
    avoid: Avoided = []


class Nodes(_Numbered, tag="nodes", frozen=True):
    """Which nodes are there?"""


class Drain(_Numbered, tag="drain", frozen=True):
    """A node is to take no more, and to end when it is empty or at the deadline."""

    node: Text
    seconds: Seconds
    again: bool = False  # and then to begin another life


class UserOf(_Numbered, tag="user-of", frozen=True):
    """Whose key is this?"""

    key: Text  # a public one, in Z85


class Begun(_Numbered, tag="begun", frozen=True):
    """The new life's number."""

    incarnation: Positive


class Allotted(_Numbered, tag="allotted", frozen=True):
    """Names that no node has had before."""

    names: list[Name]


class NodeAddress(_Numbered, tag="there", frozen=True):
    """A node that serves."""

    node: Name
    incarnation: Positive
    endpoint: Text
    public_key: Text


class NodeFacts(_Message, tag="node", frozen=True):
    """A node as operators see it."""

    node: Name
    incarnation: Count
    state: str  # "ready", "draining", "no-worker", "silent" or "starting"
    version: str = ""
    endpoint: str = ""
    instances: int = 0
    pool: float = 0.0  # share in use
    waiting_seconds: float = 0.0  # of prompts that are not computed yet: its load
    silent_seconds: float = 0.0
    reason: str = ""  # why the life before has ended
    public_key: str = ""  # of its endpoint, off loopback


class NodeList(_Numbered, tag="node-list", frozen=True):
    """All nodes, by name."""

    nodes: list[NodeFacts]


class User(_Numbered, tag="user", frozen=True):
    """Who has a key."""

    name: str  # empty if no user has it


class Done(_Numbered, tag="done", frozen=True):
    """It is done."""


class Refused(_Numbered, tag="refused", frozen=True):
    """It is not granted."""

    code: str
    message: str


Question: TypeAlias = Begin | Allot | PlaceLaunch | Nodes | Drain | UserOf
Answer: TypeAlias = Begun | Allotted | NodeAddress | NodeList | User | Done | Refused
ToDirectory: TypeAlias = Join | Report | Question
ToNode: TypeAlias = Renewed | JoinAgain | Fenced
Told: TypeAlias = ToNode | Answer  # by the directory
UNASKED = (Renewed, JoinAgain, Fenced)  # what it says that is no answer

_encoder = msgspec.msgpack.Encoder()
_of_node: msgspec.msgpack.Decoder[ToDirectory] = msgspec.msgpack.Decoder(ToDirectory)
_told: msgspec.msgpack.Decoder[Told] = msgspec.msgpack.Decoder(Told)


class NotOfCluster(ValueError):
    """Bytes that are no message of this protocol."""


def encode(message: ToDirectory | Told) -> bytes:
    """Turns a message into the bytes of its frame."""
    return _encoder.encode(message)


def decode_to_directory(frame: bytes) -> ToDirectory:
    """Reads a report or a question.

    Raises:
        NotOfCluster: if the bytes are not such a message, and nothing else, whatever they are.
    """
    return _decode(_of_node, frame, "message of a node")


def decode_told(frame: bytes) -> Told:
    """Reads what the directory says.

    Raises:
        NotOfCluster: as `decode_to_directory` does.
    """
    return _decode(_told, frame, "message of the directory")


def _decode(decoder: msgspec.msgpack.Decoder[Message], frame: bytes, what: str) -> Message:
    try:
        return decoder.decode(frame)
    except Exception as error:  # hostile frames find more than msgspec's own errors
        raise NotOfCluster(f"no {what}: {error}") from None
