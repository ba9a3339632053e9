"""`POST /v1/inferlets/{program}`: runs a program, JSON in and server-sent events out."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from starlette.responses import Response

from pie_gateway.http.answers import event, json_response
from pie_gateway.http.door import Exchange
from pie_gateway.http.streams import stream_response, while_asked
from pie_gateway.inferlets.running import Told, asked, launched, told_by
from pie_gateway.problems import Problem
from pie_gateway.schemas.inferlets import Begun, Blob, Ended, LaunchRequest, Run, Text

MOST_KEPT = 16 << 20  # bytes of messages that an answer without a stream has


async def run(exchange: Exchange) -> Response:
    """Runs a program to its end, or until the client leaves."""
    wanted = await exchange.read(LaunchRequest)
    if wanted.stream:
        return await stream_response(exchange, _stream(exchange, wanted))
    return json_response(await while_asked(exchange, lambda: _whole(exchange, wanted)))


async def _told(exchange: Exchange, wanted: LaunchRequest) -> AsyncGenerator[Told, None]:
    program = exchange.request.path_params["program"]
    async with launched(exchange.backend.client, program, wanted) as instance:
        exchange.instance_launched(instance.id)
        for message in wanted.messages:
            await asked(instance.send(message))
        async for told in told_by(instance):
            yield told
    exchange.instance_over(instance.id)


async def _stream(exchange: Exchange, wanted: LaunchRequest) -> AsyncGenerator[bytes, None]:
    async for told in _told(exchange, wanted):
        yield event(told)


async def _whole(exchange: Exchange, wanted: LaunchRequest) -> Run:
    identity, size = "", 0
    messages: list[Text | Blob] = []
    async for told in _told(exchange, wanted):
        match told:
            case Begun(identity):
                pass
            case Ended():
                return Run(identity, messages, told)
            case Text(data) | Blob(data):
                size += len(data)
                messages.append(told)
        if size > MOST_KEPT:
            raise Problem(400, f"the program sends more than {MOST_KEPT} bytes: stream them")
    raise Problem(503, "the instance was lost", code="unreachable")
