"""Every path: what answers it, what it takes and gives. Routes and OpenAPI follow from it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from starlette.responses import Response

from pie_gateway import watching
from pie_gateway.anthropic import messages
from pie_gateway.batches import endpoints as batches
from pie_gateway.batches.store import Batch, StoredFile
from pie_gateway.http.admission import Exchange
from pie_gateway.inferlets import instances, programs, running
from pie_gateway.ollama import embedding as ollama_embedding
from pie_gateway.ollama import generating
from pie_gateway.ollama import models as ollama_models
from pie_gateway.openai import stored, tokens
from pie_gateway.openai.chat import chat_completions
from pie_gateway.openai.completions import completions
from pie_gateway.openai.embeddings import embeddings, rerank, score
from pie_gateway.openai.models import ModelCard, ModelList, model, models
from pie_gateway.openai.responses import input_tokens, responses
from pie_gateway.problems import ErrorBody
from pie_gateway.schemas import anthropic, chat, inferlets, ollama
from pie_gateway.schemas import embeddings as embedding
from pie_gateway.schemas.completions import CompletionAnswer, CompletionRequest
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
    is_form: bool = False  # the body is multipart
    streams: bool = False  # it may answer with server-sent events
    more: tuple[int, ...] = ()  # statuses, in addition to `statuses`

    @property
    def statuses(self) -> set[int]:
        """Statuses in addition to those that every operation has.

        What is named may not be there, and a stream may take too long.
        """
        fields = getattr(self.body, "__struct_fields__", ())
        named = "{" in self.path or "model" in fields or "program" in fields
        return {*self.more, *({404} if named else ()), *({504} if self.streams else ())}


_LISTED = (("all", {"type": "boolean", "default": False}),)
_FORCED = (("force", {"type": "boolean", "default": False}),)
_AFTER = (("after", {"type": "integer", "minimum": 0, "maximum": 10**15 - 1, "default": 0}),)
_LIMIT = ("limit", {"type": "integer", "minimum": 1, "maximum": 10_000, "default": 100})
_BATCHES = (_LIMIT, ("after", {"type": "string", "default": ""}))
_FILES = (
    *_BATCHES,
    ("purpose", {"type": "string", "default": "batch"}),
    ("order", {"enum": ["asc", "desc"], "default": "desc"}),
)
_NAMED = (("name", {"type": "string", "minLength": 1, "maxLength": 64}),)
_PAGE = (
    ("limit", {"type": "integer", "minimum": 1, "maximum": 100, "default": 20}),
    ("after", {"type": "string"}),
    ("order", {"enum": ["asc", "desc"], "default": "desc"}),
)
_AGAIN = (
    ("stream", {"type": "boolean", "default": False}),
    ("starting_after", {"type": "integer", "minimum": 0, "default": 0}),
    ("include", {"const": stored.INCLUDED, "default": ""}),
    ("include_obfuscation", {"const": False, "default": False}),
)
_MOST = (("limit", {"type": "integer", "minimum": 1, "maximum": 10**6, "default": 10**6}),)
_MODEL = (("model", {"type": "string"}),)
_CARD = inferlets.InstanceCard
_INSTANCE = "/v1/instances/{instance}"

OPERATIONS = (
    Operation("GET", "/v1/models", models, ModelList, query=_MOST),
    Operation("GET", "/v1/models/{model:path}", model, ModelCard),
    Operation(
        "POST",
        "/v1/chat/completions",
        chat_completions,
        chat.ChatAnswer,
        chat.ChatRequest,
        streams=True,
    ),
    Operation(
        "POST", "/v1/completions", completions, CompletionAnswer, CompletionRequest, streams=True
    ),
    Operation("POST", "/v1/responses", responses, ResponsesAnswer, ResponsesRequest, streams=True),
    Operation(
        "POST", "/v1/responses/input_tokens", input_tokens, ANY, ResponsesRequest, more=(504,)
    ),
    Operation(
        "GET",
        "/v1/responses/{response}",
        stored.response,
        ResponsesAnswer,
        query=_AGAIN,
        streams=True,
    ),
    Operation("GET", "/v1/responses/{response}/input_items", stored.input_items, ANY, query=_PAGE),
    Operation("DELETE", "/v1/responses/{response}", stored.forget_response, ANY),
    Operation(
        "POST",
        "/v1/messages",
        messages.messages,
        anthropic.MessagesAnswer,
        anthropic.MessagesRequest,
        streams=True,
        error=anthropic.AnthropicError,
    ),
    Operation(
        "POST",
        "/v1/messages/count_tokens",
        messages.count_tokens,
        anthropic.Counted,
        anthropic.CountRequest,
        more=(504,),
        error=anthropic.AnthropicError,
    ),
    Operation("POST", "/tokenize", tokens.tokenize, tokens.Tokenized, tokens.TokenizeRequest),
    Operation(
        "POST", "/detokenize", tokens.detokenize, tokens.Detokenized, tokens.DetokenizeRequest
    ),
    *(
        Operation("POST", path, answer, kind, body, more=(504,))
        for path, answer, kind, body in (
            (
                "/v1/embeddings",
                embeddings,
                embedding.EmbeddingsAnswer,
                embedding.EmbeddingsRequest,
            ),
            ("/v1/score", score, embedding.ScoreAnswer, embedding.ScoreRequest),
            ("/v1/rerank", rerank, embedding.RerankAnswer, embedding.RerankRequest),
            ("/v2/rerank", rerank, embedding.RerankAnswer, embedding.RerankRequest),
        )
    ),
    Operation(
        "POST", "/v1/files", batches.upload_file, StoredFile, batches.UploadedFile, is_form=True
    ),
    Operation("GET", "/v1/files", batches.files, batches.Listing, query=_FILES),
    Operation("GET", "/v1/files/{name}", batches.file, StoredFile),
    Operation("DELETE", "/v1/files/{name}", batches.delete_file, ANY),
    Operation("GET", "/v1/files/{name}/content", batches.file_content, bytes),
    Operation(
        "POST", "/v1/batches", batches.create_batch, Batch, batches.BatchRequest, more=(404,)
    ),
    Operation("GET", "/v1/batches", batches.batches, batches.Listing, query=_BATCHES),
    Operation("GET", "/v1/batches/{name}", batches.batch, Batch),
    Operation("POST", "/v1/batches/{name}/cancel", batches.cancel_batch, Batch, more=(409,)),
    Operation("GET", "/tokenizer_info", tokens.tokenizer_info, ANY, query=_MODEL, more=(404,)),
    Operation(
        "POST",
        "/api/chat",
        generating.chat,
        ollama.OllamaChunk,
        ollama.OllamaChatRequest,
        streams=True,
        error=ollama.OllamaError,
    ),
    Operation(
        "POST",
        "/api/generate",
        generating.generate,
        ollama.OllamaChunk,
        ollama.OllamaGenerateRequest,
        streams=True,
        error=ollama.OllamaError,
    ),
    Operation(
        "POST",
        "/api/show",
        ollama_models.show,
        ollama.OllamaShown,
        ollama.OllamaShowRequest,
        error=ollama.OllamaError,
    ),
    *(
        Operation("POST", path, answer, kind, body, more=(504,), error=ollama.OllamaError)
        for path, answer, kind, body in (
            (
                "/api/embed",
                ollama_embedding.embed,
                ollama.OllamaEmbeddings,
                ollama.OllamaEmbedRequest,
            ),
            (
                "/api/embeddings",
                ollama_embedding.embed_one,
                ollama.OllamaEmbedding,
                ollama.OllamaEmbedOneRequest,
            ),
        )
    ),
    *(
        Operation("GET", path, answer, kind, error=ollama.OllamaError)
        for path, answer, kind in (
            ("/api/tags", ollama_models.tags, ollama.OllamaModels),
            ("/api/ps", ollama_models.loaded, ollama.OllamaModels),
            ("/api/version", ollama_models.version, ANY),
        )
    ),
    Operation("GET", "/v1/library", programs.library, inferlets.LibraryList),
    Operation("GET", "/v1/programs", programs.programs, inferlets.ProgramList),
    Operation(
        "POST",
        "/v1/programs",
        programs.upload,
        inferlets.ProgramCard,
        bytes,
        _NAMED,
        status=201,
        more=(504,),
    ),
    Operation("GET", "/v1/programs/{program}", programs.program, inferlets.ProgramCard),
    Operation(
        "DELETE",
        "/v1/programs/{program}",
        programs.remove,
        inferlets.Removed,
        query=_FORCED,
        more=(409,),
    ),
    Operation(
        "POST",
        "/v1/inferlets/{program}",
        running.run,
        inferlets.Run,
        inferlets.LaunchRequest,
        streams=True,
    ),
    Operation("GET", "/v1/instances", instances.instances, inferlets.InstanceList, query=_LISTED),
    Operation(
        "POST",
        "/v1/instances",
        instances.launch,
        inferlets.Launched,
        inferlets.DetachedRequest,
        status=201,
        more=(504,),
    ),
    Operation("GET", _INSTANCE, instances.instance, _CARD),
    Operation("DELETE", _INSTANCE, instances.kill, inferlets.Killed),
    Operation("GET", _INSTANCE + "/events", instances.events, bytes, streams=True, more=(409,)),
    Operation(
        "POST",
        _INSTANCE + "/messages",
        instances.send,
        inferlets.Done,
        inferlets.MessageRequest,
        more=(409, 504),
    ),
    Operation("GET", _INSTANCE + "/result", instances.result, inferlets.Ended, more=(504,)),
    Operation("GET", _INSTANCE + "/trace", instances.trace, inferlets.Trace, query=_AFTER),
    Operation("GET", _INSTANCE + "/log", instances.log, inferlets.Log, query=_AFTER),
    Operation("GET", _INSTANCE + "/inspect", watching.inspect, ANY),
    Operation("GET", "/v1/live", watching.live, bytes, streams=True),
    Operation("GET", "/v1/server", instances.server, inferlets.ServerInfo),
    Operation("GET", "/v1/stats", instances.stats, ANY),
    Operation("GET", "/metrics", watching.metrics, str),
)
