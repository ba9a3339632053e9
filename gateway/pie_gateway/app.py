"""The application: which path is answered by what."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import anyio
import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from pie_gateway import health
from pie_gateway.backend.backends import Backends
from pie_gateway.http.answers import problem_response
from pie_gateway.http.door import Door, Exchange
from pie_gateway.http.middleware import RequestIds
from pie_gateway.openai.chat import chat_completions
from pie_gateway.openai.completions import completions
from pie_gateway.openai.models import model, models
from pie_gateway.problems import Problem
from pie_py.config.gateway import GatewayConfig

log = structlog.get_logger("pie.http")

Endpoint: TypeAlias = Callable[[Exchange], Awaitable[Response]]

POSTS: Mapping[str, Endpoint] = {
    "/v1/chat/completions": chat_completions,
    "/v1/completions": completions,
}
GETS: Mapping[str, Endpoint] = {
    "/v1/models": models,
    "/v1/models/{model:path}": model,
}
OPEN = {"/health": health.health, "/ready": health.ready, "/version": health.version}


def make_app(endpoint: str, config: GatewayConfig) -> Starlette:
    """The application of a gateway whose control process listens at an endpoint."""
    backends = Backends(endpoint, config, time.monotonic)
    door = Door(config, backends, time.monotonic)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with anyio.create_task_group() as tasks:
            await tasks.start(backends.run)
            yield
            tasks.cancel_scope.cancel()

    app = Starlette(
        routes=[
            *(Route(path, _entered(act), methods=["POST"]) for path, act in POSTS.items()),
            *(Route(path, _entered(act), methods=["GET"]) for path, act in GETS.items()),
            *(Route(path, act, methods=["GET"]) for path, act in OPEN.items()),
        ],
        middleware=[Middleware(RequestIds)],
        exception_handlers={
            Problem: _on_problem,
            ClientDisconnect: _on_leave,
            HTTPException: _on_http_error,
            Exception: _on_fault,
        },
        lifespan=lifespan,
    )
    app.state.door = door
    return app


def _entered(endpoint: Endpoint) -> Callable[[Request], Awaitable[Response]]:
    """An endpoint behind the door."""

    async def answer(request: Request) -> Response:
        door: Door = request.app.state.door
        async with door.exchange(request) as exchange:
            return await endpoint(exchange)

    return answer


async def _on_problem(request: Request, error: Any) -> Response:
    return problem_response(error)


async def _on_leave(request: Request, error: Any) -> Response:
    return Response(status_code=499)  # no client reads it


async def _on_http_error(request: Request, error: Any) -> Response:
    messages = {
        404: f"there is nothing at {request.url.path}; /openapi.json tells what there is",
        405: f"{request.url.path} takes other methods: {(error.headers or {}).get('Allow', '')}",
    }
    problem = Problem(error.status_code, messages.get(error.status_code, error.detail))
    response = problem_response(problem)
    response.headers.update(error.headers or {})
    return response


async def _on_fault(request: Request, error: Any) -> Response:
    log.error("a fault of the gateway", exc_info=error)
    return problem_response(Problem(500, "a fault of the gateway; its log has more"))
