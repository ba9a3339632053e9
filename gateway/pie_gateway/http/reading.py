"""Request bodies: their size, the time they take, and JSON into typed structures."""

from __future__ import annotations

import re
from functools import cache
from typing import Any, TypeVar

import anyio
import msgspec
from starlette.requests import ClientDisconnect, Request

from pie_gateway.problems import Problem
from pie_py.config.gateway import GatewayConfig

Body = TypeVar("Body", bound=msgspec.Struct)

_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`(?: - at `\$\.?(.*)`)?", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(.*)`(?: - at `\$\.?(.*)`)?", re.DOTALL)
_WRONG = re.compile(r"(.*) - at `\$\.?(.*)`", re.DOTALL)


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
        found: Body = _decoder(kind).decode(body)
        return found
    except msgspec.ValidationError as error:
        raise _explain(str(error)) from None
    except msgspec.DecodeError as error:
        raise Problem(400, f"the body is no JSON: {error}") from None
    except RecursionError:
        raise Problem(400, "the body is nested too deep") from None


@cache
def _decoder(kind: type[Body]) -> msgspec.json.Decoder[Body]:
    return msgspec.json.Decoder(kind)


def _explain(text: str) -> Problem:
    """msgspec's error, with the field's name apart."""
    for pattern, code in ((_UNKNOWN, "unknown_parameter"), (_MISSING, "missing_parameter")):
        if found := pattern.fullmatch(text):
            field = ".".join(part for part in (found[2], found[1]) if part)
            message = {
                "unknown_parameter": f"`{field}` is not supported",
                "missing_parameter": f"`{field}` is missing",
            }[code]
            return Problem(400, message, param=field, code=code)
    if found := _WRONG.fullmatch(text):
        reason, field = found[1], found[2]
        if reason.startswith("Expected `null`"):
            return Problem(
                400, f"`{field}` is not supported", param=field, code="unsupported_parameter"
            )
        return Problem(400, f"`{field}`: {reason}", param=field, code="invalid_value")
    return Problem(400, text, code="invalid_value")


def _too_large(limit: int) -> Problem:
    return Problem(413, f"the request's body has more than {limit} bytes", code="body_too_large")


def encode(value: Any) -> bytes:
    """JSON of an answer."""
    return msgspec.json.encode(value)


__all__ = ["ClientDisconnect", "encode", "parse", "read_body", "read_json"]
