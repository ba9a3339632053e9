"""Around every request: its id, a line of the log, and errors as error objects."""

from __future__ import annotations

import ipaddress
import re
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from typing import Any

import structlog
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pie_gateway.http.answers import problem_response
from pie_gateway.problems import Problem
from pie_gateway.telemetry import Telemetry

log = structlog.get_logger("pie.http")

# Messages with the headers of an answer, and statuses of WebSockets.
_HEADS = ("http.response.start", "websocket.accept", "websocket.http.response.start")
_IDS = (b"x-request-id", b"request-id")
SWITCHING, FORBIDDEN = 101, 403

_GIVEN_ID = re.compile(r"[\x21-\x7e]{1,128}")


class RequestIds:
    """Gives each request an id, taken from `x-request-id` if it has one, and logs its end."""

    def __init__(
        self, app: ASGIApp, requests: Counter[tuple[str, str, str]], telemetry: Telemetry | None
    ) -> None:
        """Takes a counter by path, method and status, and what sends spans, if any is to."""
        self._app = app
        self._requests = requests
        self._telemetry = telemetry

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles a request; one for a WebSocket lasts as long as that."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        method = scope.get("method", "GET")  # a WebSocket's has none
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        found = given if _GIVEN_ID.fullmatch(given) else uuid.uuid4().hex
        instances: list[str] = []
        more: dict[str, str] = {}
        telemetry = self._telemetry
        span = None if telemetry is None else telemetry.request(method, headers, found)
        scope.setdefault("state", {}).update(
            request_id=found, instances=instances, span=span, headers=more
        )
        started = time.perf_counter()
        status = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] in _HEADS:
                status = message.get("status", SWITCHING)
                headers: list[Any] = list(message.get("headers", ()))
                # OpenAI's clients read the first name, Anthropic's the second.
                headers += [(name, found.encode("ascii")) for name in _IDS]
                headers += [(name.encode(), text.encode()) for name, text in more.items()]
                message = {**message, "headers": headers}
            elif message["type"] == "websocket.close":
                status = status or FORBIDDEN  # which is what a client gets before it is accepted
            await send(message)

        with structlog.contextvars.bound_contextvars(request=found):
            try:
                await self._app(scope, receive, send_with_id)
            finally:
                if span is not None:
                    span.end(scope["state"].get("path", "other"), status)
                self._count(scope, method, status)
                log.info(
                    "request",
                    method=method,
                    path=scope["path"],
                    status=status or "gone",
                    instances=instances,
                    ms=round((time.perf_counter() - started) * 1000, 1),
                )

    def _count(self, scope: Scope, method: str, status: int) -> None:
        """Counts by the path as it is declared: what clients make up would be no end of series."""
        path = scope["state"].get("path", "other")
        method = method if path != "other" else ""
        self._requests[path, method, str(status or "gone")] += 1


class Origins:
    """Keeps out web pages of other origins, which a browser on this machine may have open.

    A browser lets any page send simple requests, and only `origin` says whose page it was. And
    where no key is needed, a page whose host's address was changed to this machine's (DNS
    rebinding) shows in `host`.
    """

    def __init__(self, app: ASGIApp, allowed: Sequence[str], names_allowed: bool) -> None:
        """Takes origins whose pages may call, and whether `host` may be any name."""
        self._app = app
        self._allowed = frozenset(allowed)
        self._names_allowed = names_allowed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles a request."""
        if scope["type"] != "lifespan" and (why := self._refusal(Headers(scope=scope))):
            response = problem_response(Problem(403, why, code="forbidden_origin"))
            if scope["type"] == "websocket":
                response = Response(status_code=403)
            await response(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _refusal(self, headers: Headers) -> str:
        host, origin = headers.get("host", ""), headers.get("origin")
        if not self._names_allowed and not _is_address(host):
            return f"this server is not called {host[:200]!r}: use its address, or localhost"
        if origin is None and headers.get("sec-fetch-site") == "cross-site":
            if "*" in self._allowed:
                return ""
            return "pages of other sites may not call; --cors-origin lets those of an origin"
        if origin is None or "*" in self._allowed or origin in self._allowed:
            return ""
        if origin.partition("://")[2] == host:
            return ""
        return f"pages of {origin[:200]} may not call; --cors-origin lets them"


def _is_address(host: str) -> bool:
    """True if a `host` header names an address, or this machine."""
    name = host.rpartition(":")[0] if re.search(r":\d*$", host) else host
    if name == "localhost":
        return True
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True
