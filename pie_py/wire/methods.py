"""The methods that a client can call: of each its parameters, and what it answers.

A class is a method, named alike: `LoadAdapter` is `load-adapter`. The server finds its handlers by
these names and checks parameters by these types; the client's requests are made of these classes;
the tables of the site's page on the protocol are made of what the docstrings (the value) and the
comments (a parameter) say.

Parameters that a method does not know are ignored, so that a newer client can speak to an older
server.
"""

from __future__ import annotations

import re
from functools import cache
from hashlib import blake2b
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Generic,
    Literal,
    TypeAlias,
    TypeVar,
    get_args,
    get_origin,
)

import msgspec

FIRST = 512  # characters of the shortest beginning
MOST_PREFIXES = 10
FIRST_TOKENS = FIRST // 4  # that it is about


def prefix_hashes(prompt: str) -> list[str]:
    """Hashes of a text's beginnings, each twice as long as the one before, the shortest first; none
    of a text that is shorter. By them launches are placed near what is cached of their prompts:
    those with a beginning in common have the hashes in common that are not longer.
    """
    hashed, at = blake2b(digest_size=16), 0
    hashes: list[str] = []
    end = FIRST
    while end <= len(prompt) and len(hashes) < MOST_PREFIXES:
        hashed.update(prompt[at:end].encode("utf-8", "surrogatepass"))
        hashes.append(hashed.hexdigest())
        at, end = end, 2 * end
    return hashes


Value = TypeVar("Value")

Number = Annotated[int, msgspec.Meta(ge=0, le=(1 << 62) - 1)]  # what Python can index by
# Of a goal: the date of a deadline, in nanoseconds, has room in an answer.
Deadline = Annotated[float, msgspec.Meta(gt=0, le=1e9)]
Tokens = Annotated[int, msgspec.Meta(ge=1, le=(1 << 62) - 1)]
Text = Annotated[str, msgspec.Meta(max_length=256)]
# Of a node: its name, and the number of its incarnation.
Life = Annotated[str, msgspec.Meta(pattern=r"\A[a-z][a-z0-9-]{0,31}\.[1-9][0-9]{0,15}\Z")]
Facts: TypeAlias = dict[str, Any]
# As it has come, where a type could not tell texts from bytes.
if TYPE_CHECKING:
    Unread: TypeAlias = str | bytes | msgspec.Raw
else:
    Unread = msgspec.Raw

Objective: TypeAlias = Literal["latency", "throughput"]

DEFAULT_WINDOW = 256  # items of a stream that are sent and not acknowledged


class Method(msgspec.Struct, Generic[Value]):
    """A call of a method: its parameters. Its answer is a `Value`."""


def name_of(method: type[Method[Any]]) -> str:
    """The name of a method in the protocol."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", method.__name__).lower()


@cache
def answer_of(method: type[Method[Any]]) -> Any:
    """The type of a method's answers."""
    for base in vars(method).get("__orig_bases__", ()):
        if get_origin(base) in (Method, OfInstance):
            return get_args(base)[0]
    return Any


# Of a server; a cluster's gateway answers them for all nodes.


class Server(Method[Facts]):
    """Versions, uptime, limits, load."""


class Models(Method[list[Facts]]):
    """The served models, default first, with their `state`."""

    unloaded: bool = False  # also those that are not loaded, of which little may be known


class LoadModel(Method[None]):
    """Null, once a model that is loaded by request is."""

    model: str
    keep: Annotated[float, msgspec.Meta(ge=0, le=1e12)] | None = None  # seconds, when it is not
    # used; for operators only


class UnloadModel(Method[None]):
    """Null, once its memory is free; operators only."""

    model: str


class Programs(Method[list[Facts]]):
    """The user's programs."""


class Instances(Method[list[Facts]]):
    """The user's instances; of their arguments the first 1024 characters, about, then `...`."""

    all: bool = False  # also ended ones
    users: bool = False  # of all users, for operators only


class Stats(Method[Facts]):
    """Numbers by model."""


class Quota(Method[list[Facts]]):
    """Of each user `user`, `weight`, `priority`, `launches`, and `kinds` of what he `has` and
    `may` have.
    """

    users: bool = False  # of all users, for operators only
    of: str = ""  # another user, for operators only


class Usage(Method[list[Facts]]):
    """The usage of programs, by `day` (UTC), `user`, `program` and `tag`: `instances`,
    `prompt_tokens`, `generated_tokens`, `cached_tokens`, `page_seconds`, `cpu_seconds`,
    `tool_seconds`.
    """

    days: Annotated[int, msgspec.Meta(ge=1, le=400)] = 1  # the last ones, with today
    users: bool = False  # of all users, for operators only
    of: str = ""  # another user, for operators only


class Has(Method[bool]):
    """True if a program is there."""

    hash: str


class Upload(Method[Facts | None]):
    """The program if its bytes are there, else null: send them."""

    hash: str  # SHA-256, hexadecimal
    name: str
    size: Number


class UploadChunk(Method[Facts | None]):
    """Null, or the program after the last chunk."""

    hash: str
    offset: Number
    data: bytes  # at most `chunk_bytes`


class RemoveProgram(Method[list[Facts]]):
    """The programs that were removed; `busy` while instances run, which `force` ends."""

    program: str  # name or hash
    force: bool = False


class PauseModel(Method[None]):
    """Null, once the model computes nothing until it is resumed; operators only."""

    model: str
    # What runs goes on then; otherwise it ends, and durable instances begin again.
    keep: bool = True


class ResumeModel(Method[None]):
    """Null; operators only."""

    model: str


class UpdateWeights(Method[str]):
    """The version of the model's weights from now on, once tensors of a safetensors file are in
    place of those of their names; operators only.
    """

    model: str
    file: str  # of the server's machine, absolute
    version: Text = ""  # by default a number


class Adapters(Method[list[Facts]]):
    """`model` and `name` of each adapter."""


class LoadAdapter(Method[None]):
    """Null, once it may be used. Operators load it from a folder for all users, others for
    themselves what they have uploaded: the file goes with the adapter, and with the one that takes
    its name.
    """

    model: str  # empty of tensors for device programs, which go the same way
    name: str
    folder: str = ""  # of the server's machine, absolute
    hash: str = ""  # instead of a file that was uploaded under this name
    session: bool = False  # what was uploaded goes with the session


class UnloadAdapter(Method[None]):
    """Null; instances that use it go on. One of all users: operators only."""

    model: str
    name: str


class McpServers(Method[list[Facts]]):
    """`name`, `own`, `at` of each MCP server that the user's instances may use."""

    user: str = ""  # another one, for operators only


class RegisterMcp(Method[None]):
    """Null; the server is this user's alone."""

    name: str
    url: str | None = None  # of HTTP, with `headers`
    headers: dict[str, str] = {}
    command: str | None = None  # instead of `url`, with `args` and `env`
    args: list[str] = []
    env: dict[str, str] = {}
    user: str = ""  # another one, for operators only


class UnregisterMcp(Method[None]):
    """Null; calls under way fail."""

    name: str
    user: str = ""  # another one, for operators only


# Of a server; in a cluster the node answers them that has the instance.


class Goal(msgspec.Struct, frozen=True, omit_defaults=True):
    """The goals by which an instance goes before others of its user, where not all have room."""

    deadline: Deadline | None = None  # seconds from its launch on
    objective: Objective | None = None
    expected_tokens: Tokens | None = None  # that it will generate


class Launch(Method[Facts]):
    """`instance`, `program`, `hash`."""

    program: str  # name or hash
    args: list[str] = []
    detached: bool = False
    window: Number = DEFAULT_WINDOW
    durable: bool = False  # it goes on after a crash of the server
    # Messages that no client reads give way to newer ones; else a full mailbox holds it up.
    keep_newest: bool = False
    tag: Annotated[str, msgspec.Meta(max_length=64)] = ""  # in the ledger
    goal: Goal = Goal()  # `deadline`, `objective`, `expected_tokens`


class OfInstance(Method[Value], Generic[Value]):
    """The request for one instance."""

    instance: str


class Attach(OfInstance[Facts]):
    """`instance`, `first` (number of the first item to come), `state`, `text`."""

    window: Number = DEFAULT_WINDOW
    received: Number | None = None  # number of the first item that the client lacks


class Resume(OfInstance[Facts]):
    """As of `launch`, of a durable instance that has ended without a result, and goes on."""


class Branch(OfInstance[Facts]):
    """As of `launch`, of a new instance that has lived as a durable one up to a call."""

    call: Number  # with it
    program: str | None = None  # another one: name or hash
    args: list[str] | None = None  # others
    window: Number = DEFAULT_WINDOW


class Calls(OfInstance[list[Facts]]):
    """`number`, `call`, `answer` in short, of each call in a durable instance's journal."""

    after: Number = 0


class Detach(OfInstance[None]):
    """Null."""


class Send(OfInstance[None]):
    """Null, once it is in the instance's mailbox."""

    message: Unread  # text or bytes
    id: bytes = b""  # of the message: a durable instance takes none twice


class Result(OfInstance[dict[str, str]]):
    """`state`, `text`, once it has ended."""


class AwaitTools(OfInstance[None]):
    """Null. The conversation, a turn of which this instance has served, waits for the tools that
    the turn has called: what earlier waits took tells how long its cached prefix is worth keeping.
    """

    # their names; none: it goes on
    tools: Annotated[list[Text], msgspec.Meta(max_length=32)] = []
    person: bool = False  # it waits for a person, if it goes on at all


class Kill(OfInstance[bool]):
    """True if it was alive; operators kill instances of any user."""


class Logs(OfInstance[Facts]):
    """`lines` (128 KiB at a time, about), `next` (the `after` of a later request), `total` (lines
    so far), `ended`.
    """

    after: Number = 0


class Trace(OfInstance[Facts]):
    """`spans` (waits and batches), `next`, `open` (the wait under way), `program`, `begun_ns`,
    `ended_ns`.
    """

    after: Number = 0


class Inspect(OfInstance[Facts]):
    """As of `instances`; what it has sent last (`sent`), its result or why it failed (`end`),
    queued commands, pages, and the contexts and other instances that have them; of one `context`,
    by its `queue`, the `context_tokens`.
    """

    context: int | None = None


# Of a cluster's gateway alone.


class Place(Method[Facts]):
    """`node`, `endpoint`, `key` (the node's public key), `hash` to launch there, `program`."""

    program: str
    near: Text | None = None
    # lives that have refused the launch, 8 at most
    avoid: Annotated[list[Text], msgspec.Meta(max_length=8)] = []
    # hashes of the first 512, 1024, … characters of its prompt, 10 at most
    prefixes: Annotated[list[Text], msgspec.Meta(max_length=MOST_PREFIXES)] = []


class Where(Method[Facts]):
    """`node`, `endpoint`, `key`, of a durable instance those of the node where it goes on; or
    `node-lost`.
    """

    instance: Text  # or a life alone
    broken: bool = False  # the client has lost the node
    lost: bool = False  # that node does not have it any more


class Nodes(Method[list[Facts]]):
    """The nodes, as `pie-py cluster status` lists them."""


class Drain(Method[None]):
    """Null; operators only. Another life of the node begins then if it is to serve `again`."""

    node: Text
    seconds: Annotated[float, msgspec.Meta(ge=0, le=1e9)]
    again: bool = False


class Program(Method[Facts]):
    """Facts of a program, for nodes alone."""

    hash: Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]
    user: str = ""


class ProgramBytes(Program):
    """Bytes of a program, for nodes alone."""

    offset: Number = 0


Methods: TypeAlias = tuple[type[Method[Any]], ...]

OF_ALL_NODES: Methods = (
    Server, Models, Programs, Instances, Stats, Quota, Usage, Has, Upload, UploadChunk,
    RemoveProgram, LoadModel, UnloadModel, PauseModel, ResumeModel, UpdateWeights, Adapters,
    LoadAdapter, UnloadAdapter, McpServers, RegisterMcp, UnregisterMcp,
)  # fmt: skip
OF_INSTANCES: Methods = (
    Launch, Attach, Resume, Branch, Calls, Detach, Send, Result, AwaitTools, Kill, Logs, Trace,
    Inspect,
)  # fmt: skip
OF_GATEWAYS: Methods = (Place, Where, Nodes, Drain, Program, ProgramBytes)
