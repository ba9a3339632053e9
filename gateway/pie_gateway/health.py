"""`/health`, `/ready`, `/version`: for programs that watch servers. No key is needed."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from pie_gateway.http.answers import json_response
from pie_py import __version__
from pie_py.config.shipped_files import contract_version


class Version(msgspec.Struct):
    """Versions of pie_py and of its contract."""

    version: str
    contract: str


class Status(msgspec.Struct):
    """Whether the server can be used."""

    status: str


async def health(request: Request) -> Response:
    """The gateway runs."""
    return json_response(Status("ok"))


async def ready(request: Request) -> Response:
    """The control process listens, so that requests are answered."""
    if await request.app.state.door.backends.is_reachable():
        return json_response(Status("ready"))
    return json_response(Status("the control process does not answer"), 503)


async def version(request: Request) -> Response:
    """Which version runs."""
    return json_response(Version(__version__, contract_version()))
