"""Every path: what answers it, what it takes and gives. Routes and OpenAPI follow from it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from starlette.responses import Response

from pie_gateway import watching
from pie_gateway.anthropic.messages import count_tokens, messages
from pie_gateway.batches import endpoints as batches
from pie_gateway.batches.store import Batch, StoredFile
from pie_gateway.http.admission import Exchange
from pie_gateway.inferlets import instances, programs, running
from pie_gateway.ollama import generating
from pie_gateway.ollama import models as ollama_models
from pie_gateway.ollama.generating import embed, embed_one, generate
from pie_gateway.ollama.models import pull
from pie_gateway.openai import adapters, stored, tokens
from pie_gateway.openai import models as served
from pie_gateway.openai.chat import chat_completions
from pie_gateway.openai.completions import completions
from pie_gateway.openai.embeddings import classify, embeddings, pooling, rerank, score
from pie_gateway.openai.responses import input_tokens, responses
from pie_gateway.problems import ErrorBody
from pie_gateway.schemas import anthropic, chat, inferlets, ollama
from pie_gateway.schemas import embeddings as vector
from pie_gateway.schemas.completions import CompletionAnswer, CompletionRequest
from pie_gateway.schemas.responses import ResponsesAnswer, ResponsesRequest

Endpoint: TypeAlias = Callable[[Exchange], Awaitable[Response]]
ANY = dict[str, Any]
_ERRORS = {"/api/": ollama.OllamaError, "/v1/messages": anthropic.AnthropicError}


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
    is_form: bool = False  # the body is multipart
    streams: bool = False  # it may answer with server-sent events
    more: tuple[int, ...] = ()  # statuses, in addition to `statuses`

    @property
    def error(self) -> Any:
        """The type of its errors."""
        found = (kind for begin, kind in _ERRORS.items() if self.path.startswith(begin))
        return next(found, ErrorBody)

    @property
    def statuses(self) -> set[int]:
        """Statuses in addition to those that every operation has.

        What is named may not be there, and a stream may take too long.
        """
        fields = getattr(self.body, "__struct_fields__", ())
        named = "{" in self.path or "model" in fields or "program" in fields
        return {*self.more, *({404} if named else ()), *({504} if self.streams else ())}


_get, _post, _delete = (partial(Operation, method) for method in ("GET", "POST", "DELETE"))
_LISTED = (("all", {"type": "boolean", "default": False}),)
_FORCED = (("force", {"type": "boolean", "default": False}),)
_AFTER = (("after", {"type": "integer", "minimum": 0, "maximum": 10**15 - 1, "default": 0}),)
_DAYS = (("days", {"type": "integer", "minimum": 1, "maximum": instances.MOST_DAYS, "default": 1}),)
_CONTEXT = (("context", {"type": "integer", "minimum": 0, "maximum": 10**9, "default": 0}),)
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
    _get("/v1/models", served.models, served.ModelList, query=_MOST),
    _get("/v1/models/{model:path}", served.model, served.ModelCard),
    _get("/models", served.models, served.ModelList, query=_MOST),
    _post("/models/load", served.load, served.ModelDone, served.ModelRequest),
    _post("/models/unload", served.unload, served.ModelDone, served.ModelRequest, more=(409,)),
    _post(
        "/v1/load_lora_adapter",
        adapters.load_lora_adapter,
        adapters.LoraDone,
        adapters.LoadLora,
        more=(404, 409, 504),
    ),
    _post(
        "/v1/unload_lora_adapter",
        adapters.unload_lora_adapter,
        adapters.LoraDone,
        adapters.UnloadLora,
        more=(404,),
    ),
    _post(
        "/v1/chat/completions", chat_completions, chat.ChatAnswer, chat.ChatRequest, streams=True
    ),
    _post("/v1/completions", completions, CompletionAnswer, CompletionRequest, streams=True),
    _post("/v1/responses", responses, ResponsesAnswer, ResponsesRequest, streams=True),
    _post("/v1/responses/input_tokens", input_tokens, ANY, ResponsesRequest, more=(504,)),
    _get("/v1/responses/{response}", stored.response, ResponsesAnswer, query=_AGAIN, streams=True),
    _get("/v1/responses/{response}/input_items", stored.input_items, ANY, query=_PAGE),
    _delete("/v1/responses/{response}", stored.forget_response, ANY),
    _post(
        "/v1/messages", messages, anthropic.MessagesAnswer, anthropic.MessagesRequest, streams=True
    ),
    _post(
        "/v1/messages/count_tokens",
        count_tokens,
        anthropic.Counted,
        anthropic.CountRequest,
        more=(504,),
    ),
    _post("/tokenize", tokens.tokenize, tokens.Tokenized, tokens.TokenizeRequest),
    _post("/detokenize", tokens.detokenize, tokens.Detokenized, tokens.DetokenizeRequest),
    _post(
        "/v1/embeddings", embeddings, vector.EmbeddingsAnswer, vector.EmbeddingsRequest, more=(504,)
    ),
    _post("/v1/score", score, vector.ScoreAnswer, vector.ScoreRequest, more=(504,)),
    _post("/v1/rerank", rerank, vector.RerankAnswer, vector.RerankRequest, more=(504,)),
    _post("/v2/rerank", rerank, vector.RerankAnswer, vector.RerankRequest, more=(504,)),
    _post("/pooling", pooling, vector.PooledAnswer, vector.TextsRequest, more=(504,)),
    _post("/classify", classify, vector.ClassifiedAnswer, vector.TextsRequest, more=(504,)),
    _post("/v1/files", batches.upload_file, StoredFile, batches.UploadedFile, is_form=True),
    _get("/v1/files", batches.files, batches.Listing, query=_FILES),
    _get("/v1/files/{name}", batches.file, StoredFile),
    _delete("/v1/files/{name}", batches.delete_file, ANY),
    _get("/v1/files/{name}/content", batches.file_content, bytes),
    _post("/v1/batches", batches.create_batch, Batch, batches.BatchRequest, more=(404,)),
    _get("/v1/batches", batches.batches, batches.Listing, query=_BATCHES),
    _get("/v1/batches/{name}", batches.batch, Batch),
    _post("/v1/batches/{name}/cancel", batches.cancel_batch, Batch, more=(409,)),
    _get("/tokenizer_info", tokens.tokenizer_info, ANY, query=_MODEL, more=(404,)),
    _post("/api/chat", generating.chat, ollama.OllamaChunk, ollama.OllamaChatRequest, streams=True),
    _post(
        "/api/generate", generate, ollama.OllamaChunk, ollama.OllamaGenerateRequest, streams=True
    ),
    _post("/api/show", ollama_models.show, ollama.OllamaShown, ollama.OllamaShowRequest),
    _post("/api/embed", embed, ollama.OllamaEmbeddings, ollama.OllamaEmbedRequest, more=(504,)),
    _post(
        "/api/embeddings",
        embed_one,
        ollama.OllamaEmbedding,
        ollama.OllamaEmbedOneRequest,
        more=(504,),
    ),
    _get("/api/tags", ollama_models.tags, ollama.OllamaModels),
    _get("/api/ps", ollama_models.loaded, ollama.OllamaModels),
    _post("/api/pull", pull, ollama.OllamaPulling, ollama.OllamaPullRequest, streams=True),
    _get("/api/version", ollama_models.version, ANY),
    _get("/v1/library", programs.library, inferlets.Data[inferlets.LibraryCard]),
    _get("/v1/programs", programs.programs, inferlets.Data[inferlets.ProgramCard]),
    _post(
        "/v1/programs",
        programs.upload,
        inferlets.ProgramCard,
        bytes,
        _NAMED,
        status=201,
        more=(504,),
    ),
    _get("/v1/programs/{program}", programs.program, inferlets.ProgramCard),
    _post("/v1/programs/{program}/current", programs.make_current, inferlets.ProgramCard),
    _delete(
        "/v1/programs/{program}", programs.remove, inferlets.Removed, query=_FORCED, more=(409,)
    ),
    _post(
        "/v1/inferlets/{program}", running.run, inferlets.Run, inferlets.LaunchRequest, streams=True
    ),
    _get("/v1/instances", instances.instances, inferlets.Data[_CARD], query=_LISTED),
    _post(
        "/v1/instances",
        instances.launch,
        inferlets.Launched,
        inferlets.DetachedRequest,
        status=201,
        more=(504,),
    ),
    _get(_INSTANCE, instances.instance, _CARD),
    _delete(_INSTANCE, instances.kill, inferlets.Killed),
    _get(_INSTANCE + "/events", instances.events, bytes, streams=True, more=(409,)),
    _post(
        _INSTANCE + "/messages",
        instances.send,
        inferlets.Done,
        inferlets.MessageRequest,
        more=(409, 504),
    ),
    _get(_INSTANCE + "/result", instances.result, inferlets.Ended, more=(504,)),
    _get(_INSTANCE + "/trace", instances.trace, inferlets.Trace, query=_AFTER),
    _get(_INSTANCE + "/log", instances.log, inferlets.Log, query=_AFTER),
    _get(_INSTANCE + "/calls", instances.calls, inferlets.CallList, query=_AFTER),
    _post(
        _INSTANCE + "/branch",
        instances.branch,
        inferlets.Launched,
        inferlets.BranchRequest,
        status=201,
        more=(409, 504),
    ),
    _get(_INSTANCE + "/inspect", watching.inspect, ANY, query=_CONTEXT),
    _get("/v1/server", instances.server, inferlets.ServerInfo),
    _get("/v1/stats", instances.stats, ANY),
    _get("/v1/usage", instances.usage, inferlets.Data[inferlets.UsageRow], query=_DAYS),
    _get("/metrics", watching.metrics, str),
)
