"""The parameters of each method that a client can call, as typed structures.

A client may have got them wrong in any way: `read` checks names and types, the methods what they
mean. Parameters that a method does not know are ignored, so that a newer client can speak to an
older server.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

import msgspec

from pie_control.errors import ApiError

Number = Annotated[int, msgspec.Meta(ge=0, le=(1 << 62) - 1)]  # what Python can index by

DEFAULT_WINDOW = 256  # items of a stream that are sent and not acknowledged


class Nothing(msgspec.Struct):
    """Of a method without parameters."""


class Instances(msgspec.Struct):
    """Of `instances`."""

    all: bool = False  # also those that have ended
    users: bool = False  # of all users
    of: str = ""  # of another user, for operators


class Quota(msgspec.Struct):
    """Of `quota`."""

    users: bool = False  # of all users
    of: str = ""  # of another user, for operators


class Has(msgspec.Struct):
    """Of `has`."""

    hash: str


class Upload(msgspec.Struct):
    """Of `upload`."""

    hash: str
    name: str
    size: Number


class Chunk(msgspec.Struct):
    """Of `upload-chunk`."""

    hash: str
    offset: Number
    data: bytes


class RemoveProgram(msgspec.Struct):
    """Of `remove-program`."""

    program: str
    force: bool = False  # end its instances


class Launch(msgspec.Struct):
    """Of `launch`."""

    program: str
    args: list[str] = []
    detached: bool = False
    window: Number = DEFAULT_WINDOW
    restart: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 0  # times, when its node is lost
    keep: bool = False  # its result in the database


class LaunchAgain(msgspec.Struct):
    """Of `launch-again`, by members of a cluster."""

    launch: str
    run: Number  # the last one


class Attach(msgspec.Struct):
    """Of `attach`."""

    instance: str
    window: Number = DEFAULT_WINDOW
    received: Number | None = None  # number of the first item that the client lacks


class OfInstance(msgspec.Struct):
    """Of `detach`, `result`, `kill` and `inspect`."""

    instance: str


class Send(msgspec.Struct):
    """Of `send`."""

    instance: str
    message: Any  # text or bytes: msgspec takes no union of the two

    def __post_init__(self) -> None:
        if not isinstance(self.message, str | bytes):
            kind = type(self.message).__name__
            raise ValueError(f"Expected a message of text or bytes, got `{kind}`")


class Logs(msgspec.Struct):
    """Of `logs` and `trace`."""

    instance: str
    after: Number = 0


class LoadAdapter(msgspec.Struct):
    """Of `load-adapter`."""

    model: str
    name: str
    folder: str


class UnloadAdapter(msgspec.Struct):
    """Of `unload-adapter`."""

    model: str
    name: str


class RegisterMcp(msgspec.Struct):
    """Of `register-mcp`: `url` and `headers`, or `command`, `args` and `env`."""

    name: str
    url: str | None = None
    headers: dict[str, str] = {}
    command: str | None = None
    args: list[str] = []
    env: dict[str, str] = {}
    user: str = ""  # as of `unregister-mcp`


class UnregisterMcp(msgspec.Struct):
    """Of `unregister-mcp`."""

    name: str
    user: str = ""  # another one, for operators only


class OfUser(msgspec.Struct):
    """Of `mcp-servers`."""

    user: str = ""  # as of `unregister-mcp`


Params = TypeVar("Params", bound=msgspec.Struct)


def read(method: str, values: dict[str, Any], kind: type[Params]) -> Params:
    """Checks a request's parameters.

    Raises:
        ApiError: `invalid-argument` if one is missing or of another type.
    """
    try:
        # Bytes come as bytes: without `builtin_types` a text would be read as base64.
        return msgspec.convert(values, kind, builtin_types=(bytes,))
    except msgspec.ValidationError as error:
        text = f"the request cannot be read: {method}: {error}"
        raise ApiError("invalid-argument", text) from None
