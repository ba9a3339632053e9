"""Request bodies: their size, the time they take, and JSON into typed structures."""

from __future__ import annotations

import re
from functools import cache
from typing import Any, TypeVar

import anyio
import msgspec
import msgspec.inspect
from starlette.requests import ClientDisconnect, Request

from pie_gateway.http.nothing import leave_out_nothing
from pie_gateway.problems import Problem
from pie_py.config.gateway import GatewayConfig

Body = TypeVar("Body", bound=msgspec.Struct)

# The place comes last; what precedes it may have a client's words in it.
_PLACE = r"(?: - at `\$([^`]*)`)?"
_UNKNOWN = re.compile(f"Object contains unknown field `(.*?)`{_PLACE}", re.DOTALL)
_MISSING = re.compile(f"Object missing required field `(.*?)`{_PLACE}", re.DOTALL)
_WRONG = re.compile(f"(.*?){_PLACE}", re.DOTALL)


async def read_body(request: Request, config: GatewayConfig) -> bytes:
    """The bytes of a request's body.

    Raises:
        Problem: 413 if it is too large, 408 if it takes too long.
        ClientDisconnect: the client has left.
    """
    limit = config.body_bytes
    told = request.headers.get("content-length", "")
    if told.isdigit() and int(told) > limit:
        raise _too_large(limit)
    parts: list[bytes] = []
    size = 0
    with anyio.move_on_after(config.body_seconds) as scope:
        async for part in request.stream():
            parts.append(part)
            size += len(part)
            if size > limit:
                raise _too_large(limit)
    if scope.cancelled_caught:
        raise Problem(408, f"the request's body has not arrived within {config.body_seconds:g} s")
    return b"".join(parts)


async def read_json(request: Request, config: GatewayConfig, kind: type[Body]) -> Body:
    """A request's body as a structure.

    Raises:
        Problem: as `read_body`, and 400 naming the field that is wrong.
        ClientDisconnect: the client has left.
    """
    return parse(await read_body(request, config), kind)


def parse(body: bytes, kind: type[Body]) -> Body:
    """JSON as a structure.

    Raises:
        Problem: 400 naming the field that is wrong.
    """
    try:
        try:
            found: Body = _decoder(kind).decode(body)
        except msgspec.ValidationError:
            found = convert(msgspec.json.decode(body), kind)
        return found
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Problem(400, f"the body is no JSON: {error}") from None
    except RecursionError:
        raise Problem(400, "the body is nested too deep") from None


def convert(value: Any, kind: Any, place: str = "") -> Any:
    """Parsed JSON as a structure; what asks for nothing is left out of it, in place.

    Args:
        value: the JSON.
        kind: what it should be.
        place: where it stands in the request.

    Raises:
        Problem: 400 naming the field that is wrong.
        RecursionError: it is nested too deep.
    """
    leave_out_nothing(value, _type(kind))
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise _explain(str(error), place) from None


@cache
def _type(kind: Any) -> msgspec.inspect.Type:
    return msgspec.inspect.type_info(kind)


@cache
def _decoder(kind: type[Body]) -> msgspec.json.Decoder[Body]:
    return msgspec.json.Decoder(kind)


def _explain(text: str, place: str) -> Problem:
    """msgspec's error about what stands at a place, with the field's name apart."""
    for pattern, code, why in (
        (_UNKNOWN, "unknown_parameter", "is not supported"),
        (_MISSING, "missing_parameter", "is missing"),
    ):
        if found := pattern.fullmatch(text):
            field = f"{place}{found[2] or ''}.{found[1]}".removeprefix(".")
            return Problem(400, f"`{field}` {why}", param=field, code=code)
    reason, within = _WRONG.fullmatch(text).groups()  # type: ignore[union-attr]
    field = f"{place}{within or ''}".removeprefix(".")
    if not field:
        return Problem(400, text, code="invalid_value")
    if reason.startswith("Expected `null`"):
        message, code = f"`{field}` is not supported", "unsupported_parameter"
    else:
        message, code = f"`{field}`: {reason}", "invalid_value"
    return Problem(400, message, param=field, code=code)


def _too_large(limit: int) -> Problem:
    return Problem(413, f"the request's body has more than {limit} bytes", code="body_too_large")


def encode(value: Any) -> bytes:
    """JSON of an answer."""
    return msgspec.json.encode(value)


__all__ = ["ClientDisconnect", "convert", "encode", "parse", "read_body", "read_json"]
