"""An instance whose messages go to a client of HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import TypeAlias, TypeVar

import msgspec

from pie_gateway.backend.generation import end
from pie_gateway.http.door import Exchange
from pie_gateway.problems import Problem, of_client
from pie_gateway.schemas.inferlets import Begun, Blob, Ended, LaunchRequest, Text
from pie_py.client import Client, ClientError, InferletFailed, Instance

Told: TypeAlias = Begun | Text | Blob | Ended
Value = TypeVar("Value")


async def asked(call: Awaitable[Value]) -> Value:
    """What the control process answers.

    Raises:
        Problem: it refuses.
    """
    try:
        return await call
    except ClientError as error:
        raise of_client(error) from None


@asynccontextmanager
async def launched(client: Client, program: str, wanted: LaunchRequest) -> AsyncIterator[Instance]:
    """A new instance, which ends with the context at the latest.

    Raises:
        Problem: the server refuses.
    """
    args = wanted.args
    if wanted.input is not None:
        args = ["--input", msgspec.json.encode(wanted.input).decode(), *args]
    instance = await asked(client.launch(program, args))
    try:
        yield instance
    finally:
        await end(instance)


async def told_by(instance: Instance) -> AsyncIterator[Told]:
    """Which instance it is, its messages, and its end.

    Raises:
        Problem: nothing more can come, though the instance may live.
    """
    yield Begun(instance.id)
    try:
        async for message in instance:
            yield Text(message) if isinstance(message, str) else Blob(message)
        yield Ended("finished", await instance.result())
    except InferletFailed as error:
        yield Ended("killed" if error.state == "killed" else "failed", error.text)
    except ClientError as error:
        raise of_client(error) from None


def flag(exchange: Exchange, name: str) -> bool:
    """A parameter of the query that is true or false, which it is by default.

    Raises:
        Problem: 400, it is neither.
    """
    found = exchange.request.query_params.get(name, "false")
    if found not in ("true", "false"):
        raise Problem(400, f"`{name}` is true or false", param=name)
    return found == "true"


def of_path(exchange: Exchange) -> str:
    """The instance that the request's path names."""
    found: str = exchange.request.path_params["instance"]
    return found
