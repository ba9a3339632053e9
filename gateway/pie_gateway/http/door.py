"""Who asks: lets requests in, as users of the server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

import msgspec
from starlette.requests import Request

from pie_gateway.backend.backend import Backend
from pie_gateway.backend.backends import Backends
from pie_gateway.http.reading import read_json
from pie_py.config.gateway import GatewayConfig

Body = TypeVar("Body", bound=msgspec.Struct)


@dataclass(frozen=True)
class Exchange:
    """A request that was let in."""

    request: Request
    backend: Backend
    config: GatewayConfig

    @property
    def id(self) -> str:
        """Of the request, in headers, answers and logs."""
        found: str = self.request.state.request_id
        return found

    async def read(self, kind: type[Body]) -> Body:
        """The body, as a structure; see `reading.read_json` for errors."""
        return await read_json(self.request, self.config, kind)


class Door:
    """Lets requests in."""

    def __init__(
        self, config: GatewayConfig, backends: Backends, clock: Callable[[], float]
    ) -> None:
        self.config = config
        self.backends = backends
        self.clock = clock

    @asynccontextmanager
    async def exchange(self, request: Request) -> AsyncIterator[Exchange]:
        """A request, while it is answered.

        Raises:
            Problem: 401 without a key that is needed, 503 if the server is not reached.
        """
        backend = await self.backends.of(None)
        yield Exchange(request, backend, self.config)
