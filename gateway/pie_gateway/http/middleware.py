"""Around every request: its id, a line of the log, and errors as error objects."""

from __future__ import annotations

import re
import time
import uuid
from typing import Any

import structlog
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

log = structlog.get_logger("pie.http")

_GIVEN_ID = re.compile(r"[\x21-\x7e]{1,128}")


class RequestIds:
    """Gives each request an id, taken from `x-request-id` if it has one, and logs its end."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        found = given if _GIVEN_ID.fullmatch(given) else uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = found
        started = time.perf_counter()
        status = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers: list[Any] = list(message["headers"])
                headers.append((b"x-request-id", found.encode("ascii")))
                message = {**message, "headers": headers}
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        finally:
            log.info(
                "request",
                id=found,
                method=scope["method"],
                path=scope["path"],
                status=status or "gone",
                ms=round((time.perf_counter() - started) * 1000, 1),
            )
