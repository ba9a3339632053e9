"""`/v1/chat/completions`."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from pie_gateway.schemas.messages import CalledFunction, Messages, ToolCall
from pie_gateway.schemas.sampling import (
    FINGERPRINT,
    FUNCTIONS,
    MAX_TOP_LOGPROBS,
    Name,
    PromptLogprobs,
    SamplingRequest,
    Usage,
)


class Function(msgspec.Struct, forbid_unknown_fields=True):
    """A function that the model may call."""

    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None  # a JSON schema
    strict: bool | None = None


class Tool(msgspec.Struct, forbid_unknown_fields=True, tag="function"):
    """A function. What follows it is for asynchronous calls, which the server makes."""

    function: Function
    run: dict[str, Any] | None = None  # where it runs: docs/async-function-calling.md
    seconds: float | None = None  # that a call is expected to take
    timeout: float | None = None


class ServerTools(msgspec.Struct, forbid_unknown_fields=True, tag="mcp"):
    """The tools of a registered MCP server, for asynchronous calls."""

    server: str
    allow: list[str] | None = None  # all by default


class FunctionName(msgspec.Struct, forbid_unknown_fields=True):
    """The name of one of the functions."""

    name: str


class NamedTool(msgspec.Struct, forbid_unknown_fields=True, tag="function"):
    """The function that has to be called."""

    function: FunctionName


class Allowed(msgspec.Struct, forbid_unknown_fields=True):
    """Functions of which one may, or has to, be called."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], msgspec.Meta(min_length=1), FUNCTIONS]


class AllowedTools(msgspec.Struct, forbid_unknown_fields=True, tag="allowed_tools"):
    """The other functions are told, and not called."""

    allowed_tools: Allowed


ToolChoice: TypeAlias = Literal["none", "auto", "required", "any"]  # `any`: Mistral's `required`
MostTokens = Annotated[int, msgspec.Meta(ge=-1, le=2**31 - 1)]  # -1: no bound
Effort: TypeAlias = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class ChatRequest(SamplingRequest, kw_only=True):
    """A request for the next message of a conversation."""

    messages: Messages
    logprobs: bool | None = None
    top_logprobs: Annotated[int, msgspec.Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    max_tokens: MostTokens | None = None
    max_completion_tokens: MostTokens | None = None
    tools: (
        Annotated[list[Tool | ServerTools], msgspec.Meta(extra={"types": ("function", "mcp")})]
        | None
    ) = None
    tool_choice: ToolChoice | NamedTool | AllowedTools | None = None
    parallel_tool_calls: bool | None = None
    modalities: list[Literal["text"]] | None = None
    metadata: dict[str, Any] | None = None  # not stored: `store` is refused
    safety_identifier: str | None = None
    service_tier: Literal["auto", "default"] | None = None
    reasoning_effort: Effort | None = None
    # vLLM's
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class TopLogprob(msgspec.Struct):
    """A token that was likely, too."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(msgspec.Struct):
    """A token of the answer."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct):
    """The tokens of a choice."""

    content: list[TokenLogprob]
    refusal: None = None


class AnswerMessage(msgspec.Struct):
    """The model's message."""

    content: str | None
    role: Literal["assistant"] = "assistant"
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


class ChatChoice(msgspec.Struct):
    """One answer."""

    index: int
    message: AnswerMessage
    finish_reason: str
    logprobs: ChatLogprobs | None = None
    stop_reason: str | None = None  # vLLM's: the stop string
    token_ids: list[int] | UnsetType = UNSET


class ChatAnswer(msgspec.Struct):
    """The next messages."""

    id: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    object: Literal["chat.completion"] = "chat.completion"
    system_fingerprint: str = FINGERPRINT
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class FunctionDelta(msgspec.Struct):
    """A call goes on."""

    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET


class ToolCallDelta(msgspec.Struct):
    """A call goes on."""

    index: int
    function: FunctionDelta
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET


class Delta(msgspec.Struct):
    """The growth of a message."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET


class ChunkChoice(msgspec.Struct):
    """The growth of a choice."""

    index: int
    delta: Delta
    finish_reason: str | None = None
    logprobs: ChatLogprobs | None = None
    stop_reason: str | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET


class ChatChunk(msgspec.Struct):
    """A part of a streamed answer."""

    id: str
    created: int
    model: str
    choices: list[ChunkChoice]
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    system_fingerprint: str = FINGERPRINT
    usage: Usage | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


__all__ = ["CalledFunction", "ChatAnswer", "ChatChunk", "ChatRequest", "ToolCall"]
