"""Handlers of requests, found by the methods' names, and checks of their parameters."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, TypeAlias, TypeVar

import msgspec

from pie_control.errors import ApiError, invalid, unsupported
from pie_control.rpc.session import Session
from pie_py.wire.methods import Methods, name_of
from pie_py.wire.rpc import Request

Answer: TypeAlias = Any  # what msgpack can carry
Method: TypeAlias = tuple[type[Any], Callable[[Session, Any], Answer | Awaitable[Answer]]]
Params = TypeVar("Params", bound=msgspec.Struct)


class Handlers:
    """Answers requests by the method of an object that has the name of what is asked for."""

    def __init__(self, methods: Methods, *objects: object, more: Mapping[str, Method] = {}) -> None:
        """Takes the first of the objects whose class has a method that clients may call, with `_`
        before its name or not; and more methods, which no list for clients names.
        """
        self._methods: dict[str, Method] = {}
        for kind in methods:
            name = name_of(kind)
            own = name.replace("-", "_")
            [handler, *_] = (
                getattr(one, method)
                for one in objects
                for method in (own, f"_{own}")
                if hasattr(type(one), method)
            )
            self._methods[name] = kind, handler
        self._named = ", ".join(self._methods)
        self._methods |= more

    def answer(self, session: Session, request: Request) -> Answer | Awaitable[Answer]:
        """Does what a request asks; what may have to wait is returned as a coroutine.

        Raises:
            ApiError, ProgramRejected: the error that the client gets.
        """
        known = self._methods.get(request.method)
        if known is None:
            text = f"no method {request.method[:50]!r}; there are {self._named}"
            raise unsupported(text)
        kind, method = known
        return method(session, read(request.method, request.params, kind))


def read(method: str, values: msgspec.Raw | dict[str, Any], kind: type[Params]) -> Params:
    """Checks a request's parameters; what their types do not name is skipped.

    Raises:
        ApiError: `invalid-argument` if one is missing or of another type.
    """
    try:
        if isinstance(values, msgspec.Raw):
            return msgspec.msgpack.decode(values, type=kind)
        # Bytes come as bytes: without `builtin_types` a text would be read as base64.
        return msgspec.convert(values, kind, builtin_types=(bytes,))
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise unreadable(method, str(error)) from None


def text_or_bytes(method: str, value: str | bytes | msgspec.Raw) -> str | bytes:
    """Reads a text or bytes.

    Raises:
        ApiError: `invalid-argument`, it is neither.
    """
    if not isinstance(value, msgspec.Raw):
        return value
    with suppress(msgspec.DecodeError):
        return msgspec.msgpack.decode(value, type=str)
    with suppress(msgspec.DecodeError):
        return msgspec.msgpack.decode(value, type=bytes)
    raise unreadable(method, "Expected a message of text or bytes")


def unreadable(method: str, why: str) -> ApiError:
    """The error of parameters that are not what a method takes."""
    return invalid(f"the request cannot be read: {method}: {why}")
