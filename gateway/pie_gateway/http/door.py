"""Lets requests in, as users of the server, within their limits."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

import msgspec
from starlette.requests import HTTPConnection, Request

from pie_gateway.backend.backend import Backend
from pie_gateway.backend.backends import Backends
from pie_gateway.backend.generation import Generation
from pie_gateway.backend.job import Job
from pie_gateway.http.keys import Keys
from pie_gateway.http.limits import UserLimits
from pie_gateway.http.reading import read_json
from pie_py.config.gateway import GatewayConfig, Route
from pie_py.config.keys import LOCAL_USER

Body = TypeVar("Body", bound=msgspec.Struct)


@dataclass(frozen=True)
class Exchange:
    """A request that was let in."""

    request: Request
    backend: Backend
    config: GatewayConfig
    limits: UserLimits

    @property
    def id(self) -> str:
        """Of the request, in headers, answers and logs."""
        found: str = self.request.state.request_id
        return found

    async def read(self, kind: type[Body]) -> Body:
        """The body, as a structure; see `reading.read_json` for errors."""
        return await read_json(self.request, self.config, kind)

    async def generation(self, route: Route, job: Job, images: Sequence[bytes] = ()) -> Generation:
        """An instance for a job, which `async with` launches; its tokens count for the user.

        Raises:
            Problem: the route's program cannot be uploaded.
        """
        generation = await self.backend.generation(route, job, images)
        generation.on_tokens = self.limits.take_tokens
        generation.on_launch = self.request.state.instances.append
        return generation


class Door:
    """Lets requests in."""

    def __init__(
        self, config: GatewayConfig, backends: Backends, keys: Keys, clock: Callable[[], float]
    ) -> None:
        self.config = config
        self.backends = backends
        self.keys = keys
        self._clock = clock
        self._limits: dict[str, UserLimits] = {}  # by user

    @asynccontextmanager
    async def exchange(self, request: Request) -> AsyncIterator[Exchange]:
        """A request, while it is answered.

        Raises:
            Problem: 401 without a key that is needed, 429 beyond a limit, 503 if the server is not
                reached.
        """
        backend, limits = await self.enter(request)
        with backend.used():
            yield Exchange(request, backend, self.config, limits)

    async def enter(self, connection: HTTPConnection) -> tuple[Backend, UserLimits]:
        """What a user's request goes through, and the user's limits.

        Raises:
            Problem: as `exchange`.
        """
        key = self.keys.key_of(connection.headers)
        user = LOCAL_USER if key is None else key.user
        if user not in self._limits:
            config = self.config
            self._limits[user] = UserLimits(
                config.requests_per_minute, config.tokens_per_minute, self._clock
            )
        limits = self._limits[user]
        limits.take_request()
        return await self.backends.of(self.keys.rpc_key(key)), limits
