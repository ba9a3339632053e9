"""HTTP requests of inferlets: what they may reach, and the exchanges themselves.

`policy` says which hosts and addresses are allowed, `network` connects to nothing else, `request`
checks what a program asks for, `exchange` carries one request out and streams its answer, and
the client here owns them all: one connection pool, and limits per instance and user.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import httpcore2
import trio

from pie_control.api.http.exchange import Exchange, Head
from pie_control.api.http.network import CheckedBackend, HttpPolicy, Resolve, resolve, tls_context
from pie_control.api.http.request import HEADER_BYTES, check_request
from pie_control.errors import ApiError, Shortage, exceeded, invalid
from pie_control.instances.futures import FutureKind
from pie_control.instances.instance import Handles
from pie_control.tasks import Service, take_off
from pie_py.config.http import HttpConfig

if TYPE_CHECKING:
    from pie_control.instances.instance import Instance

DEFAULT_TIMEOUT = 60.0  # seconds, of a request that asks for none
MAX_TIMEOUT = 600.0  # seconds from the request to the body's end, that a program may ask for
MAX_CONNECTIONS = 512  # of the server; more requests wait
IDLE_CONNECTIONS = 64
USER_REQUESTS = 64  # under way, in all instances of one user
BURST = 100.0  # requests that an instance may make at once after a rest
MOST_BYTES_A_READ = 1 << 20
Headers: TypeAlias = list[tuple[str, str]]


@dataclass
class _Share:
    """Requests and bodies of one instance."""

    tokens: float  # requests that it may make at once
    refilled: float  # trio time
    running: set[Exchange] = field(default_factory=set)
    bodies: Handles[Exchange] = field(default_factory=Handles)


class HttpClient(Service):
    """Makes requests for instances. `run` must run before the first one."""

    def __init__(self, config: HttpConfig, *, resolve: Resolve = resolve) -> None:
        self._config = config
        self._policy = HttpPolicy(config)
        self._backend = CheckedBackend(self._policy, 2 * HEADER_BYTES, resolve)
        self._pool: httpcore2.AsyncConnectionPool | None = None
        self._opening = trio.Lock()
        self._shares: dict[Instance, _Share] = {}
        self._owners: dict[Exchange, Instance] = {}
        self._users: Counter[str] = Counter()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Carries the exchanges until cancelled, then closes every connection."""
        try:
            await super().run(task_status)
        finally:
            if self._pool is not None:
                with trio.CancelScope(shield=True):
                    await self._pool.aclose()

    async def _connections(self) -> httpcore2.AsyncConnectionPool:
        """The connections, made when first asked for: trusted authorities take a while to load."""
        async with self._opening:
            if self._pool is None:
                self._pool = httpcore2.AsyncConnectionPool(
                    ssl_context=await trio.to_thread.run_sync(tls_context),
                    max_connections=MAX_CONNECTIONS,
                    max_keepalive_connections=IDLE_CONNECTIONS,
                    keepalive_expiry=5.0,
                    network_backend=self._backend,
                )
        return self._pool

    # Trait `http`

    def http_get(self, instance: Instance, url: str, headers: Headers) -> int:
        """Starts a GET and opens a future of its answer."""
        return self.http_request(instance, "GET", url, headers, b"", 0)

    def http_post(self, instance: Instance, url: str, headers: Headers, body: bytes) -> int:
        """Starts a POST and opens a future of its answer."""
        return self.http_request(instance, "POST", url, headers, body, 0)

    def http_request(
        self,
        instance: Instance,
        method: str,
        url: str,
        headers: Headers,
        body: bytes,
        timeout_ms: int,
    ) -> int:
        """Starts a request and returns the handle of the future of its head.

        Raises:
            ApiError: `invalid-argument`, `permission-denied`, `limit-exceeded`.
        """
        request = check_request(self._policy, method, url, headers, body)
        timeout = timeout_ms / 1000 if timeout_ms else DEFAULT_TIMEOUT
        if timeout > MAX_TIMEOUT:
            raise invalid(f"a time-out of {timeout:g} s; {MAX_TIMEOUT:g} s at most")
        share = self._share(instance)
        self._check_limits(instance, share)
        future = instance.futures.create_outside(FutureKind.RESPONSE, f"http {request.host}")
        exchange = Exchange(
            self._policy, self._connections, self._release, request, timeout, future
        )
        future.on_cancel = exchange.close
        share.running.add(exchange)
        self._owners[exchange] = instance
        self._users[instance.user] += 1
        self._start_task(exchange.run)
        return future.handle

    def take_response(self, instance: Instance, future: int) -> tuple[int, Headers, int]:
        """Consumes a future of an answer: status, headers, handle of the body."""
        head: Head = instance.futures.take(future, FutureKind.RESPONSE)
        return head.status, head.headers, self.open_body(instance, head.exchange)

    def open_body(self, instance: Instance, exchange: Exchange) -> int:
        """Gives the body of an answer a handle."""
        return self._share(instance).bodies.add(exchange)

    def skip_body(self, instance: Instance) -> None:
        """A body that is lost: no other one has its handle."""
        bodies = self._share(instance).bodies
        del bodies[bodies.add(None)]  # type: ignore[arg-type]

    def read_body(self, instance: Instance, body: int, most: int) -> int:
        """Asks for the next bytes of a body and returns the handle of their future.

        Raises:
            ApiError: `invalid-handle`, `invalid-argument`, `busy`, `limit-exceeded`.
        """
        exchange = self._body(instance, body)
        if most == 0:
            raise invalid("a read of 0 bytes; 1 at least")
        most = min(most, MOST_BYTES_A_READ)
        return instance.futures.open(FutureKind.BLOB, partial(exchange.read, most))

    def response_url(self, instance: Instance, body: int) -> str:
        """The URL that a body came from. Raises ApiError `invalid-handle`."""
        return self._body(instance, body).url

    def close_body(self, instance: Instance, body: int) -> None:
        """Gives the rest of a body up. Raises ApiError `invalid-handle`."""
        self._body(instance, body).close()
        del self._share(instance).bodies[body]

    def is_busy(self, instance: Instance) -> bool:
        """True if an instance has requests under way, or bodies that are not read to their end."""
        return instance in self._shares and bool(self._shares[instance].running)

    def drop_instance(self, instance: Instance) -> None:
        """Closes all that an instance has open: it has ended."""
        share = self._shares.pop(instance, None)
        if share is not None:
            for exchange in [*share.running]:
                exchange.close()

    # Shares

    def _share(self, instance: Instance) -> _Share:
        share = self._shares.get(instance)
        if share is None:
            share = _Share(BURST, trio.current_time())
            self._shares[instance] = share
        return share

    def _body(self, instance: Instance, handle: int) -> Exchange:
        share = self._shares.get(instance)
        if share is None or handle not in share.bodies:
            raise ApiError("invalid-handle", f"{handle} is no open body (closed already?)")
        return share.bodies[handle]

    def _check_limits(self, instance: Instance, share: _Share) -> None:
        """Takes a token of the rate, if nothing else speaks against another request."""
        config = self._config
        if len(share.running) >= config.concurrent:
            raise exceeded(
                f"{config.concurrent} requests are under way; read or close their bodies first"
            )
        if len(share.bodies) >= config.bodies:
            raise exceeded(f"{config.bodies} bodies are open; close some first")
        if self._users[instance.user] >= USER_REQUESTS:
            raise Shortage(f"{USER_REQUESTS} requests of this user are under way, in all instances")
        now = trio.current_time()
        share.tokens = min(BURST, share.tokens + (now - share.refilled) * config.rate)
        share.refilled = now
        if share.tokens < 1:
            wait = math.ceil((1 - share.tokens) / config.rate * 1000)
            raise Shortage(
                f"more than {config.rate:g} requests per second; the next one may go in {wait} ms"
            )
        share.tokens -= 1

    def _release(self, exchange: Exchange) -> None:
        """An exchange is over: its place is free."""
        instance = self._owners.pop(exchange)
        take_off(self._users, instance.user)
        share = self._shares.get(instance)
        if share is not None:
            share.running.discard(exchange)

    @property
    def running(self) -> int:
        """Exchanges under way, of all instances."""
        return len(self._owners)
