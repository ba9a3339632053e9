"""`/v1/programs`."""

from __future__ import annotations

import msgspec
from anyio import to_thread
from starlette.responses import Response

from pie_gateway.http.admission import Exchange
from pie_gateway.http.answers import json_response, while_asked
from pie_gateway.problems import Problem, asked, wrong
from pie_gateway.schemas import inferlets
from pie_py.build.library import library as shipped
from pie_py.build.library import library_source


async def programs(exchange: Exchange) -> Response:
    """The user's programs, oldest first."""
    found = await asked(exchange.client.programs())
    return json_response(inferlets.Data(msgspec.convert(found, list[inferlets.ProgramCard])))


async def library(exchange: Exchange) -> Response:
    """The library's programs in Python, which run without an upload."""
    rows = await to_thread.run_sync(lambda: list(shipped()))
    found = [row for row in rows if library_source(row["name"]) is not None]
    return json_response(inferlets.Data(msgspec.convert(found, list[inferlets.LibraryCard])))


async def upload(exchange: Exchange) -> Response:
    """Uploads a program: the body is a component's bytes or a Python source."""
    name = exchange.request.query_params.get("name", "")
    if not name:
        raise wrong("name", "what the program is to be called is missing")
    data = await exchange.body()
    client = exchange.client
    digest = await while_asked(exchange, lambda: asked(client.upload(data, name)))
    return json_response(await _card(exchange, digest), 201)


async def program(exchange: Exchange) -> Response:
    """One of the user's programs, by name or hash."""
    return json_response(await _card(exchange, exchange.path["program"]))


async def make_current(exchange: Exchange) -> Response:
    """Makes a former version of a program, by its hash, the one that its name stands for."""
    found = await _card(exchange, exchange.path["program"])
    await asked(exchange.client.make_current(found.hash, found.name))
    return json_response(await _card(exchange, found.hash))


async def remove(exchange: Exchange) -> Response:
    """Removes programs of a name, former ones too, or of a hash; with `force=true` also while
    instances run, which are ended.
    """
    removed = await asked(
        exchange.client.remove_program(exchange.path["program"], force=exchange.flag("force"))
    )
    return json_response(inferlets.Removed(msgspec.convert(removed, list[inferlets.ProgramCard])))


async def _card(exchange: Exchange, name: str) -> inferlets.ProgramCard:
    found = await asked(exchange.client.programs())
    for each in reversed(found):  # the newest of a name
        if name in (each["hash"], each["name"]):
            return msgspec.convert(each, inferlets.ProgramCard)
    raise Problem(404, f"no program is called {name[:200]!r}", code="not_found")
