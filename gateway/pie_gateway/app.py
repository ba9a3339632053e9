"""The application: which path is answered by what."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from pie_gateway import page, watching
from pie_gateway.anthropic.messages import problem_answer
from pie_gateway.backend.backend import Backends
from pie_gateway.batches.running import Batches
from pie_gateway.batches.store import Store
from pie_gateway.http.admission import MAX_TOKENS_HEADER, Admission, Exchange
from pie_gateway.http.answers import json_response, problem_response
from pie_gateway.http.keys import KEY_PROTOCOL, Keys
from pie_gateway.http.middleware import Origins, RequestIds
from pie_gateway.inferlets.running import SESSION_PATH, session
from pie_gateway.listening import CannotServe
from pie_gateway.metrics.requests import RequestMetrics
from pie_gateway.openai.stored import Responses
from pie_gateway.openapi import description
from pie_gateway.operations import OPERATIONS, Operation
from pie_gateway.problems import Problem, fault, headers_of
from pie_gateway.schemas.ollama import OllamaError
from pie_gateway.telemetry import Telemetry
from pie_py.config.gateway import NO_USERS, GatewayConfig
from pie_py.config.kept_files import FILES_FOLDER, RESPONSES_FILE
from pie_py.config.server import ServerConfig
from pie_py.config.turns import Turns

# Of the query, which clients of Anthropic, Azure and Google, and Codex, send with each request.
HINTS = ("beta", "api-version", "alt", "key", "client_version")
# Paths that llama.cpp or vLLM has without `/v1`, too, where some of their clients ask.
BARE = ("/chat/completions", "/completions", "/embeddings", "/rerank", "/score")
PROTOCOL = "pie"  # which is what a browser is answered that offers it beside its key
REFUSED, FAILED = 1008, 1011  # of RFC 6455
REASON_BYTES = 120


def make_app(config: ServerConfig, turns: Turns | None = None) -> Starlette:
    """The application of a server's gateway; the configuration has the control process's endpoint.
    `turns` are measured.
    Raises `CannotServe`: no user has a key where keys are needed, or telemetry is not installed.
    """
    gateway = config.gateway
    backends = Backends(config, time.monotonic)
    metrics = RequestMetrics(time.monotonic, turns)
    telemetry = None if config.telemetry.endpoint is None else Telemetry(config.telemetry)
    folder = config.data_folder / FILES_FOLDER
    batches = Batches(Store(folder, gateway.file_bytes, gateway.file_seconds))
    responses = Responses(config.data_folder / RESPONSES_FILE)
    keys = Keys(config.endpoint, config.data_folder, gateway.is_local, time.monotonic)
    if keys.needed and not keys.store.users():
        raise CannotServe(NO_USERS)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with anyio.create_task_group() as connections:
            await connections.start(backends.run)
            async with anyio.create_task_group() as tasks:
                await tasks.start(batches.run)
                tasks.start_soon(responses.run)
                if telemetry is not None:
                    tasks.start_soon(telemetry.run)
                yield
                tasks.cancel_scope.cancel()
            connections.cancel_scope.cancel()  # at last: instances of batches end over them

    app = Starlette(
        routes=[
            *_routes(),
            *page.routes(),
            _socket_route(SESSION_PATH, session),
            _socket_route(watching.LIVE_PATH, watching.live),
        ],
        middleware=[
            Middleware(RequestIds, metrics.http, telemetry),
            Middleware(Origins, gateway.cors_origins, keys.needed),
            *_cors(gateway),
        ],
        exception_handlers={
            Problem: _on_problem,
            ClientDisconnect: _on_leave,
            HTTPException: _on_http_error,
            Exception: _on_fault,
        },
        lifespan=lifespan,
    )
    app.state.responses = responses
    app.state.leaves = False  # it is about to stop
    app.state.batches = batches
    app.state.admission = Admission(config, backends, keys, metrics, time.monotonic)
    return app


def _routes() -> list[Route]:
    """Those that admit requests, one for each path, and those that are public."""
    paths: dict[str, dict[str, Operation]] = {}
    for each in OPERATIONS:
        paths.setdefault(each.path, {})[each.method] = each
    places = [*((path, path) for path in paths), *((bare, f"/v1{bare}") for bare in BARE)]
    found = [
        Route(place, _entered(path, paths[path]), methods=[*paths[path]]) for place, path in places
    ]
    return [*found, *(Route(path, act, methods=["GET"]) for path, act in PUBLIC.items())]


def _cors(gateway: GatewayConfig) -> list[Middleware]:
    if not gateway.cors_origins:
        return []
    return [
        Middleware(
            CORSMiddleware,
            allow_origins=gateway.cors_origins,
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],
            expose_headers=["x-request-id", "retry-after", MAX_TOKENS_HEADER],
        )
    ]


async def openapi(request: Request) -> Response:
    """The description of all operations."""
    return json_response(description())


PUBLIC = {
    "/health": watching.health,
    "/ready": watching.ready,
    "/version": watching.version,
    "/openapi.json": openapi,
}


def _entered(
    path: str, methods: Mapping[str, Operation]
) -> Callable[[Request], Awaitable[Response]]:
    """The endpoints of a path, for requests that are admitted."""

    async def answer(request: Request) -> Response:
        admission: Admission = request.app.state.admission
        request.state.path = path
        async with admission.exchange(request) as exchange:
            method = "GET" if request.method == "HEAD" else request.method
            known = {*HINTS, *(name for name, _ in methods[method].query)}
            for name, value in request.query_params.multi_items():
                if value and name.removesuffix("[]") not in known:
                    message = f"`{name[:100]}` of the query is not supported"
                    raise Problem(400, message, param=name[:100], code="unknown_parameter")
            return await methods[method].endpoint(exchange)

    return answer


async def _on_problem(request: Request, problem: Any) -> Response:
    """A problem as the clients of a path read it."""
    path = request.url.path
    if path.startswith("/v1/messages"):
        return problem_answer(problem)
    if path.startswith("/api/"):
        return json_response(OllamaError(problem.message), problem.status, headers_of(problem))
    return problem_response(problem)


async def _on_leave(request: Request, error: Any) -> Response:
    return Response(status_code=499)  # no client reads it


async def _on_http_error(request: Request, error: Any) -> Response:
    if error.status_code == 405 and request.method == "OPTIONS":
        return Response(status_code=204, headers=error.headers)
    messages = {
        404: f"there is nothing at {request.url.path}; /openapi.json tells what there is",
        405: f"{request.url.path} takes other methods: {(error.headers or {}).get('Allow', '')}",
    }
    problem = Problem(error.status_code, messages.get(error.status_code, error.detail))
    response = await _on_problem(request, problem)
    response.headers.update(error.headers or {})
    return response


async def _on_fault(request: Request, error: Any) -> Response:
    return await _on_problem(request, fault(error))


def _socket_route(
    path: str, serve: Callable[[WebSocket, Exchange], Awaitable[None]]
) -> WebSocketRoute:
    """The route of a path whose WebSockets are served by a function once they are admitted, as
    requests are; they are closed with the reason of a problem."""

    async def connected(socket: WebSocket) -> None:
        admission: Admission = socket.app.state.admission
        socket.state.path = path
        try:
            async with admission.exchange(socket) as exchange:
                offers = socket.headers.get("sec-websocket-protocol", "")
                await socket.accept(PROTOCOL if KEY_PROTOCOL in offers else None)
                await serve(socket, exchange)
        except Problem as problem:
            reason = problem.message.encode()[:REASON_BYTES].decode(errors="ignore")
            await socket.close(FAILED if problem.status >= 500 else REFUSED, reason)
        except WebSocketDisconnect:
            pass

    return WebSocketRoute(path, connected)
