"""Programs and instances."""

from __future__ import annotations

from typing import Annotated, Any, Generic, Literal, TypeVar

import msgspec

from pie_py.wire.methods import Deadline, Objective, Tokens

Item = TypeVar("Item")


class Data(msgspec.Struct, Generic[Item]):
    """Several."""

    data: list[Item]


class ProgramCard(msgspec.Struct):
    """An uploaded program."""

    hash: str
    name: str
    kind: str  # "python" or "component"
    size: int  # bytes
    user: str
    uploaded_ns: int


class LibraryCard(msgspec.Struct):
    """A program of the library."""

    name: str
    description: str


class Removed(msgspec.Struct):
    """The programs that were removed."""

    removed: list[ProgramCard]


class InstanceCard(msgspec.Struct):
    """An instance."""

    id: str
    program: str
    program_hash: str
    args: list[str]
    user: str
    state: str  # "running", "asleep", "finished", "failed" or "killed"
    reason: str
    parent: str | None
    created_ns: int
    ended_ns: int | None
    cpu_ms: float
    pages: int  # KV pages on the device
    tokens: int  # in these
    waits: list[str]  # what it waits for
    attached: bool
    prompt_tokens: int = 0  # that it has read
    generated_tokens: int = 0
    most_pages: int = 0  # that it had at once
    uses: list[str] = []  # models
    durable: bool = False  # it has a journal, and so `calls`
    objective: Objective | None = None
    deadline_ns: int | None = None  # Unix epoch
    late: bool = False  # it is alive after its deadline, or was


class LaunchGoal(msgspec.Struct):
    """When an instance goes before others of its user, where not all have room."""

    deadline: Deadline | None = None  # seconds from its launch on
    objective: Objective | None = None  # "latency" goes first, "throughput" last
    expected_tokens: Tokens | None = None  # that it will generate

    def goal(self) -> dict[str, Any]:
        """These, as arguments of the client's `launch`."""
        return {name: getattr(self, name) for name in LaunchGoal.__struct_fields__}


class LaunchRequest(LaunchGoal):
    """The arguments of an instance. Other fields are options: `{"prompt": "x"}` is `--prompt x`."""

    args: list[str] = []
    input: dict[str, Any] | None = None  # goes before the arguments, as `--input JSON`
    messages: Annotated[list[str], msgspec.Meta(max_length=1000)] = []  # sent at once
    stream: bool = False  # true: messages as they come, as events
    durable: bool = False  # true: it goes on after a crash of the server, and without the client


class DetachedRequest(LaunchGoal, kw_only=True, forbid_unknown_fields=True):
    """Launches an instance that lives without a client."""

    program: Annotated[str, msgspec.Meta(min_length=1, max_length=256)]  # name or hash
    args: list[str] = []
    durable: bool = False  # true: it goes on after a crash of the server
    keep_newest: bool = False  # true: unread messages give way to newer ones, and hold nothing up


class Launched(msgspec.Struct):
    """A new instance."""

    id: str


class BranchRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A new instance that has lived as a durable one up to and with a call."""

    call: Annotated[int, msgspec.Meta(ge=0)]  # its number
    program: str | None = None  # another one: name or hash
    args: list[str] | None = None  # others


class JournalCall(msgspec.Struct):
    """A call in a durable instance's journal."""

    number: int
    call: str  # its name
    answer: str  # in short


class CallList(msgspec.Struct):
    """Calls of a durable instance, 1000 at most."""

    data: list[JournalCall]
    next: int  # the `after` of a later request


class MessageRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A message to an instance: a text, or bytes in base64."""

    text: str | None = None
    base64: bytes | None = None


class Text(msgspec.Struct, tag="text"):
    """An instance has sent a text."""

    text: str


class Blob(msgspec.Struct, tag="bytes"):
    """An instance has sent bytes."""

    base64: bytes


class Ended(msgspec.Struct, tag="end"):
    """An instance has ended, and sends no more."""

    state: Literal["finished", "failed", "killed"]
    text: str  # its result, or why it ended otherwise


class Begun(msgspec.Struct, tag="instance"):
    """Which instance it is."""

    id: str


class Run(msgspec.Struct):
    """The messages of an instance, and its result."""

    id: str
    messages: list[Text | Blob]
    result: Any  # an object or a list if it is one in JSON, else the text


class Killed(msgspec.Struct):
    """The answer to an instance's end."""

    killed: bool


class LogLine(msgspec.Struct):
    """A line that an instance has logged."""

    time_ns: int
    level: str
    text: str


class Span(msgspec.Struct):
    """A wait of an instance, or a batch that commands of it were in."""

    track: Literal["wait", "batch"]
    name: str  # what was waited for; the kind of the batch
    begin_ns: int  # of a batch: its plan was sent
    end_ns: int
    size: int  # commands in the batch, of all instances
    device_ns: int  # that the batch took at the worker


class Trace(msgspec.Struct):
    """The waits and batches of an instance. Times are nanoseconds since the Unix epoch."""

    program: str
    begun_ns: int
    ended_ns: int | None
    spans: list[Span]
    next: int  # the `after` of a later request
    open: Span | None  # the wait that is under way, as far as it has lasted


class Log(msgspec.Struct):
    """Lines of an instance's log; `next` is the `after` of a later request."""

    lines: list[LogLine]
    next: int
    ended: bool


class ServerInfo(msgspec.Struct):
    """The server: versions, load and limits."""

    version: str
    contract: str
    uptime: float  # seconds
    user: str
    models: list[str]
    instances: int
    max_instances: int
    launched: int
    limits: dict[str, Any]


class UsageRow(msgspec.Struct):
    """The usage of a program on a day (UTC), under a tag."""

    day: str
    user: str
    program: str
    tag: str
    instances: float
    prompt_tokens: float
    generated_tokens: float
    cached_tokens: float
    page_seconds: float
    cpu_seconds: float
    tool_seconds: float


class Done(msgspec.Struct):
    """It is done."""

    ok: Literal[True] = True
