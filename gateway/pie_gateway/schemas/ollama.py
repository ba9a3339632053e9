"""`/api/chat`, `/api/generate` and what tells of models, as Ollama has them."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import msgspec

from pie_gateway.schemas.chat import Effort, Function
from pie_gateway.schemas.embeddings import Warned
from pie_gateway.schemas.sampling import ALIASES, FUNCTIONS, SamplerFields


class OllamaFunction(msgspec.Struct, forbid_unknown_fields=True):
    """A function's name and its arguments."""

    name: str
    arguments: dict[str, Any]
    index: int | None = None


class OllamaCall(msgspec.Struct, forbid_unknown_fields=True):
    """A call that the model has made."""

    function: OllamaFunction
    id: str | None = None
    type: Literal["function"] | None = None


class OllamaMessage(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A message of a conversation."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str = msgspec.field(default_factory=str)  # so it is sent, also when it is empty
    thinking: str | None = None
    images: list[str] | None = None  # in base64
    tool_calls: list[OllamaCall] | None = None
    tool_name: str | None = None
    name: str | None = None  # its older name
    tool_call_id: str | None = None


class OllamaTool(msgspec.Struct, forbid_unknown_fields=True):
    """A function that the model may call."""

    function: Function
    type: Literal["function"] = "function"


class OllamaOptions(SamplerFields, kw_only=True, forbid_unknown_fields=True):
    """How tokens are chosen: the fields of a sampler, and some of Ollama's."""

    aliases: ClassVar = ALIASES

    seed: int | None = None
    num_predict: Annotated[int, msgspec.Meta(ge=-2, lt=2**31)] | None = None  # below 1: no bound
    stop: str | list[str] | None = None
    # How a server of Ollama's loads and runs a model, which here is served already.
    num_ctx: int | None = None
    num_batch: int | None = None
    num_gpu: int | None = None
    main_gpu: int | None = None
    num_thread: int | None = None
    num_keep: int | None = None
    use_mmap: bool | None = None
    use_mlock: bool | None = None
    numa: bool | None = None
    low_vram: bool | None = None
    f16_kv: bool | None = None
    # Penalties see all of the text; Ollama's own is what clients send that ask for nothing.
    repeat_last_n: Literal[-1, 64] | None = None


class OllamaRequest(SamplerFields, kw_only=True, forbid_unknown_fields=True):
    """The common fields of chats and generations; some clients write options here."""

    aliases: ClassVar = {"max_output_tokens": ("num_predict",)}

    num_predict: int | None = None
    model: Annotated[str, msgspec.Meta(max_length=512)] = ""
    stream: bool = True
    format: Literal["json", ""] | dict[str, Any] | None = None  # or a JSON schema
    options: dict[str, Any] | None = None  # `OllamaOptions`
    think: bool | Effort | None = None
    keep_alive: str | float | None = None  # seconds, or such as "5m"; of a model by request


class OllamaChatRequest(OllamaRequest, kw_only=True):
    """The next message of a conversation."""

    messages: list[OllamaMessage] = msgspec.field(default_factory=list)
    tools: Annotated[list[OllamaTool], FUNCTIONS] | None = None


class OllamaGenerateRequest(OllamaRequest, kw_only=True):
    """A request for what follows a prompt, in the model's chat format unless it is `raw`."""

    prompt: str = ""
    system: str | None = None
    images: list[str] | None = None
    raw: bool | None = None
    suffix: str | None = None  # what follows the text


class OllamaChunk(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A part of an answer, or all of it; times are nanoseconds."""

    model: str
    created_at: str
    message: OllamaMessage | None = None  # of a chat
    response: str | None = None  # of a generation
    thinking: str | None = None
    done: bool
    done_reason: str | None = None
    total_duration: int | None = None
    load_duration: int | None = None
    prompt_eval_count: int | None = None
    prompt_eval_duration: int | None = None
    eval_count: int | None = None
    eval_duration: int | None = None


class OllamaDetails(msgspec.Struct):
    """The kind of a model."""

    format: str
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


class OllamaModel(msgspec.Struct):
    """A model that is served."""

    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    details: OllamaDetails
    expires_at: str | msgspec.UnsetType = msgspec.UNSET  # when a loaded one goes


class OllamaModels(msgspec.Struct):
    """All of them."""

    models: list[OllamaModel]


class OllamaShowRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Asks for one."""

    model: str = ""
    name: str | None = None  # its older name
    verbose: bool | None = None


class OllamaShown(msgspec.Struct):
    """The facts of a model."""

    details: OllamaDetails
    model_info: dict[str, Any]
    capabilities: list[str]


class OllamaEmbedRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Asks for embeddings."""

    model: str = ""
    input: str | list[str] = ""
    truncate: bool | None = None
    dimensions: int | None = None
    options: dict[str, Any] | None = None
    keep_alive: str | float | None = None


class OllamaEmbeddings(msgspec.Struct):
    """Embeddings; times are nanoseconds."""

    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int
    prompt_eval_count: int
    warning: Warned = msgspec.UNSET


class OllamaEmbedOneRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Asks for one embedding."""

    model: str = ""
    prompt: str = ""
    options: dict[str, Any] | None = None
    keep_alive: str | float | None = None


class OllamaEmbedding(msgspec.Struct):
    """An embedding."""

    embedding: list[float]
    warning: Warned = msgspec.UNSET


class OllamaPullRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Asks for the files of a model."""

    model: str = ""
    name: str | None = None  # its older name
    stream: bool = True
    insecure: bool | None = None


class OllamaPulling(msgspec.Struct, omit_defaults=True):
    """How far it is."""

    status: str
    digest: str | None = None
    total: int | None = None  # bytes
    completed: int | None = None


class OllamaError(msgspec.Struct):
    """A request that cannot be answered."""

    error: str
