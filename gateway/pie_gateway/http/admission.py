"""Admission of requests, as users of the server and within their limits."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
from starlette.requests import HTTPConnection, Request

from pie_gateway.backend.backend import Backend, Backends
from pie_gateway.backend.generation import Generation, Observer
from pie_gateway.backend.job import EmbeddingJob, Job, Piece, Prompt
from pie_gateway.http.aside import Aside
from pie_gateway.http.connections import STATE
from pie_gateway.http.keys import Keys
from pie_gateway.http.limits import UserLimits
from pie_gateway.http.reading import parse, read_body
from pie_gateway.metrics.requests import RequestMetrics
from pie_gateway.problems import Problem
from pie_py.client import Client
from pie_py.config.gateway import GatewayConfig, Route
from pie_py.config.keys import LOCAL_USER
from pie_py.config.server import ServerConfig

MAX_TOKENS_HEADER = "x-pie-max-tokens"
Body = TypeVar("Body", bound=msgspec.Struct)
Value = TypeVar("Value")
SHORT = 32 << 10  # bytes that are parsed at once


@dataclass(frozen=True)
class Exchange:
    """A request that was let in."""

    connection: HTTPConnection
    backend: Backend
    config: GatewayConfig
    limits: UserLimits
    metrics: RequestMetrics
    user: str  # by the API key, or `local`
    is_operator: bool
    aside: Aside

    @property
    def request(self) -> Request:
        """The request, which is none for a WebSocket."""
        assert isinstance(self.connection, Request)
        return self.connection

    @property
    def client(self) -> Client:
        """The user's, of the control process."""
        return self.backend.client

    @property
    def path(self) -> dict[str, str]:
        """Parameters of the path."""
        return self.connection.path_params

    @property
    def id(self) -> str:
        """Of the request, in headers, answers and logs."""
        found: str = self.connection.state.request_id
        return found

    async def read(self, kind: type[Body]) -> Body:
        """The body, as a structure; see `reading.parse` and `read_body` for errors."""
        return await self.by_size(parse, await self.body(), kind)

    async def body(self) -> bytes:
        """The bytes of the body; raises as `read_body`."""
        found = await read_body(self.request, self.config)
        self.connection.state.size = len(found)
        return found

    async def by_size(self, work: Callable[..., Value], *arguments: Any) -> Value:
        """Calls a function of the body; in a thread unless it has few bytes."""
        if self.connection.state.size <= SHORT:
            return work(*arguments)
        return await self.aside.run(self.user, work, *arguments)

    def flag(self, name: str) -> bool:
        """A parameter of the query, false by default. Raises `Problem`: 400, it is no boolean."""
        found = self.request.query_params.get(name, "false")
        if found not in ("true", "false"):
            raise Problem(400, f"`{name}` is true or false", param=name)
        return found == "true"

    def number(self, name: str) -> int:
        """A number of the query, 0 by default. Raises `Problem`: 400, it is none."""
        found = self.request.query_params.get(name, "0")
        if not (found.isascii() and found.isdigit() and len(found) < 16):
            raise Problem(400, f"`{name}` is a number", param=name)
        return int(found)

    async def generation(
        self,
        route: Route,
        job: Job | EmbeddingJob,
        images: Sequence[bytes] = (),
        tag: str | None = None,
        **goal: Any,
    ) -> Generation:
        """An instance for a job, which `async with` launches; its tokens count for the user, in the
        ledger under a tag. The goal is as of the client's `launch`.
        """
        state = self.connection.scope["state"]
        if isinstance(job, Job):
            job.priority = min(job.priority, state.get("priority", 0))
        goal["tag"] = (tag or "")[:64]
        generation = self.backend.generation(route, job, images, state.get("together"), **goal)
        generation.by_size = self.by_size
        generation.observers.append(_Accounts(self, job))
        if isinstance(job, Job) and job.clamp:
            longest = (await self.backend.catalog.describe(job.model))["max_position"]
            generation.observers.append(_Clamped(self, job.max_tokens or 0, longest))
        streams = isinstance(job, Job) and job.stream
        measured = self.metrics.generation(job.model, self.user, streams=streams)
        generation.observers.append(measured)
        return generation

    def instance_launched(self, instance: str) -> None:
        """Notes an instance that serves the request, for its line of the log."""
        self.connection.state.instances.append(instance)

    def instance_over(self, instance: str) -> None:
        """An instance that served the request has ended."""
        if self.connection.state.span is not None:
            self.connection.state.span.instance_over(self.backend.client, instance)


class _Accounts(Observer):
    """Counts a generation's tokens for its user, and notes its instance."""

    def __init__(self, exchange: Exchange, job: Job | EmbeddingJob) -> None:
        self._exchange = exchange
        self._limits = exchange.limits
        self._job = job
        self._inputs = self._outputs = 0

    def launched(self, instance: str) -> None:
        self._exchange.instance_launched(instance)

    def over(self, instance: str) -> None:
        state = self._exchange.connection.state
        if state.span is not None and isinstance(self._job, Job):
            state.span.generation(state.path, self._job.model, self._inputs, self._outputs)
        self._exchange.instance_over(instance)

    def prompt(self, event: Prompt) -> None:
        self._inputs += event.tokens
        self._limits.take_tokens(event.tokens)

    def piece(self, event: Piece) -> None:
        self._outputs += event.tokens
        self._limits.take_tokens(event.tokens)


class _Clamped(Observer):
    """Tells the client in a header that its `max_tokens` are more than the context has left."""

    def __init__(self, exchange: Exchange, wanted: int, longest: int) -> None:
        self._exchange, self._wanted, self._longest = exchange, wanted, longest

    def prompt(self, event: Prompt) -> None:
        left = self._longest - event.tokens
        if self._wanted > left:
            self._exchange.connection.state.headers[MAX_TOKENS_HEADER] = str(left)


class Admission:
    """Finds the user of each request, and counts it against the user's limits."""

    def __init__(
        self,
        config: ServerConfig,
        backends: Backends,
        keys: Keys,
        metrics: RequestMetrics,
        clock: Callable[[], float],
    ) -> None:
        self.backends = backends
        self._metrics = metrics
        self._config = config.gateway
        self._admins = config.admins
        self._keys = keys
        self._clock = clock
        self._limits: dict[str, UserLimits] = {}  # by user
        self._aside = Aside()

    @asynccontextmanager
    async def exchange(self, connection: HTTPConnection) -> AsyncIterator[Exchange]:
        """A request or a WebSocket, while it is answered. Raises `Problem`: 401 without a key that
        is needed, 429 beyond a limit, 503 if the server is not reached.
        """
        key = self._keys.key_of(connection.headers)
        user = LOCAL_USER if key is None else key.user
        bounded = getattr(connection.state, STATE, None)  # none under another server
        if bounded is not None and not bounded.admit(user, alone=not self._keys.needed):
            raise Problem(
                429,
                "half of the server's connections are yours: close some, or use one for several"
                " requests",
                code="connections_per_user",
                retry_after=1,
            )
        if user not in self._limits:
            config = self._config
            self._limits[user] = UserLimits(
                config.requests_per_minute, config.tokens_per_minute, self._clock
            )
        limits = self._limits[user]
        limits.take_request()
        backend = await self.backends.of(self._keys.rpc_key(key))
        is_operator = user == LOCAL_USER or user in self._admins
        with backend.used():
            yield Exchange(
                connection,
                backend,
                self._config,
                limits,
                self._metrics,
                user,
                is_operator,
                self._aside,
            )
