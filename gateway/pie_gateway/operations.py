"""Every path: what answers it, what it takes and gives. Routes and OpenAPI follow from it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from starlette.responses import Response

from pie_gateway import watching
from pie_gateway.anthropic import messages
from pie_gateway.http.door import Exchange
from pie_gateway.inferlets import instances, programs, runs
from pie_gateway.openai.chat import chat_completions
from pie_gateway.openai.completions import completions
from pie_gateway.openai.embeddings import embeddings
from pie_gateway.openai.models import model, models
from pie_gateway.openai.responses import responses
from pie_gateway.problems import ErrorBody
from pie_gateway.schemas import anthropic, chat, inferlets
from pie_gateway.schemas.completions import CompletionAnswer, CompletionRequest
from pie_gateway.schemas.embeddings import EmbeddingsRequest
from pie_gateway.schemas.models import ModelCard, ModelList
from pie_gateway.schemas.responses import ResponsesAnswer, ResponsesRequest

Endpoint: TypeAlias = Callable[[Exchange], Awaitable[Response]]
ANY = dict[str, Any]


@dataclass(frozen=True)
class Operation:
    """One method of one path."""

    method: str
    path: str
    endpoint: Endpoint
    answer: Any  # its type
    body: Any = None  # its type; bytes for a file
    query: tuple[tuple[str, dict[str, Any]], ...] = ()  # parameters and their JSON schemas
    status: int = 200
    error: Any = ErrorBody  # its type
    streams: bool = False  # it may answer with server-sent events
    statuses: tuple[int, ...] = ()  # in addition to those that every operation has


_LISTED = (("all", {"type": "boolean", "default": False}),)
_FORCED = (("force", {"type": "boolean", "default": False}),)
_AFTER = (("after", {"type": "integer", "minimum": 0, "maximum": 10**15 - 1, "default": 0}),)
_NAMED = (("name", {"type": "string", "minLength": 1, "maxLength": 64}),)
_CARD = inferlets.InstanceCard
_INSTANCE = "/v1/instances/{instance}"

OPERATIONS = (
    Operation("GET", "/v1/models", models, ModelList),
    Operation("GET", "/v1/models/{model:path}", model, ModelCard, statuses=(404,)),
    Operation(
        "POST",
        "/v1/chat/completions",
        chat_completions,
        chat.ChatAnswer,
        chat.ChatRequest,
        streams=True,
        statuses=(404, 504),
    ),
    Operation(
        "POST",
        "/v1/completions",
        completions,
        CompletionAnswer,
        CompletionRequest,
        streams=True,
        statuses=(404, 504),
    ),
    Operation(
        "POST",
        "/v1/responses",
        responses,
        ResponsesAnswer,
        ResponsesRequest,
        streams=True,
        statuses=(404, 504),
    ),
    Operation(
        "POST",
        "/v1/messages",
        messages.messages,
        anthropic.MessagesAnswer,
        anthropic.MessagesRequest,
        streams=True,
        statuses=(404, 504),
        error=anthropic.AnthropicError,
    ),
    Operation(
        "POST",
        "/v1/messages/count_tokens",
        messages.count_tokens,
        anthropic.Counted,
        anthropic.CountRequest,
        statuses=(404, 504),
        error=anthropic.AnthropicError,
    ),
    Operation(
        "POST",
        "/v1/embeddings",
        embeddings,
        ANY,
        EmbeddingsRequest,
        statuses=(404,),
    ),
    Operation("GET", "/v1/programs", programs.programs, inferlets.ProgramList),
    Operation(
        "POST",
        "/v1/programs",
        programs.upload,
        inferlets.ProgramCard,
        bytes,
        _NAMED,
        status=201,
        statuses=(504,),
    ),
    Operation(
        "GET", "/v1/programs/{program}", programs.program, inferlets.ProgramCard, statuses=(404,)
    ),
    Operation(
        "DELETE",
        "/v1/programs/{program}",
        programs.remove,
        inferlets.Removed,
        query=_FORCED,
        statuses=(404, 409),
    ),
    Operation(
        "POST",
        "/v1/inferlets/{program}",
        runs.run,
        inferlets.Run,
        inferlets.LaunchRequest,
        streams=True,
        statuses=(404, 504),
    ),
    Operation("GET", "/v1/instances", instances.instances, inferlets.InstanceList, query=_LISTED),
    Operation(
        "POST",
        "/v1/instances",
        instances.launch,
        inferlets.Launched,
        inferlets.DetachedRequest,
        status=201,
        statuses=(404, 504),
    ),
    Operation("GET", _INSTANCE, instances.instance, _CARD, statuses=(404,)),
    Operation("DELETE", _INSTANCE, instances.kill, inferlets.Killed, statuses=(404,)),
    Operation(
        "GET",
        _INSTANCE + "/events",
        instances.events,
        bytes,
        streams=True,
        statuses=(404, 409, 504),
    ),
    Operation(
        "POST",
        _INSTANCE + "/messages",
        instances.send,
        inferlets.Done,
        inferlets.MessageRequest,
        statuses=(404, 409, 504),
    ),
    Operation("GET", _INSTANCE + "/result", instances.result, inferlets.Ended, statuses=(404, 504)),
    Operation(
        "GET", _INSTANCE + "/trace", instances.trace, inferlets.Trace, query=_AFTER, statuses=(404,)
    ),
    Operation(
        "GET", _INSTANCE + "/log", instances.log, inferlets.Log, query=_AFTER, statuses=(404,)
    ),
    Operation("GET", _INSTANCE + "/inspect", watching.inspect, ANY, statuses=(404,)),
    Operation("GET", "/v1/live", watching.live, bytes, streams=True, statuses=(504,)),
    Operation("GET", "/v1/server", instances.server, inferlets.ServerInfo),
    Operation("GET", "/v1/stats", instances.stats, ANY),
    Operation("GET", "/metrics", watching.metrics, str),
)
