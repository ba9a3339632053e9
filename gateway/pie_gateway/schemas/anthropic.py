"""Anthropic's `/v1/messages`."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from pie_gateway.schemas.chat import Effort
from pie_gateway.schemas.sampling import Count, ModelName, Name, Share, StopText


class TextBlock(msgspec.Struct, forbid_unknown_fields=True, tag="text", omit_defaults=True):
    """Text."""

    text: str
    cache_control: dict[str, Any] | None = None  # every prefix is cached anyway
    citations: list[Any] | None = None  # of what others' servers have searched


class ImageSource(msgspec.Struct, forbid_unknown_fields=True):
    """An image's bytes in base64."""

    media_type: Annotated[str, msgspec.Meta(pattern="^image/")]
    data: str
    type: Literal["base64"] = "base64"


class ImageBlock(msgspec.Struct, forbid_unknown_fields=True, tag="image"):
    """An image."""

    source: ImageSource
    cache_control: dict[str, Any] | None = None


class ToolUseBlock(msgspec.Struct, forbid_unknown_fields=True, tag="tool_use", omit_defaults=True):
    """A call that the model makes."""

    id: str
    name: str
    input: dict[str, Any]
    cache_control: dict[str, Any] | None = None


class ToolResultBlock(msgspec.Struct, forbid_unknown_fields=True, tag="tool_result"):
    """The result of a call."""

    tool_use_id: str
    content: str | list[TextBlock | ImageBlock] = ""
    is_error: bool | None = None
    cache_control: dict[str, Any] | None = None


class ThinkingBlock(msgspec.Struct, forbid_unknown_fields=True, tag="thinking"):
    """The model's thoughts."""

    thinking: str
    signature: str = ""


class RedactedBlock(msgspec.Struct, forbid_unknown_fields=True, tag="redacted_thinking"):
    """The thoughts of a model of Anthropic's: encrypted, so no prompt has it."""

    data: str


Block: TypeAlias = (
    TextBlock | ImageBlock | ToolUseBlock | ToolResultBlock | ThinkingBlock | RedactedBlock
)


class Turn(msgspec.Struct, forbid_unknown_fields=True):
    """A message of the user or of the model, or more instructions."""

    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


class AnthropicTool(msgspec.Struct, forbid_unknown_fields=True):
    """A function that the model may call."""

    name: Name
    input_schema: dict[str, Any]
    description: str | None = None
    type: Literal["custom"] | None = None
    cache_control: dict[str, Any] | None = None
    eager_input_streaming: bool | None = None  # a call is sent once it is whole
    strict: bool | None = None
    input_examples: list[dict[str, Any]] | None = None


class AnthropicChoice(msgspec.Struct, forbid_unknown_fields=True):
    """The choice of a function."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None  # of type `tool`
    disable_parallel_tool_use: bool | None = None


class Thinking(msgspec.Struct):
    """The choice to think first: a hint, as is what else it says of budgets and summaries."""

    type: str = "adaptive"


class OutputFormat(msgspec.Struct, forbid_unknown_fields=True):
    """The form of the text."""

    schema: dict[str, Any]
    type: Literal["json_schema"] = "json_schema"


class OutputConfig(msgspec.Struct, forbid_unknown_fields=True):
    """Of the text."""

    format: OutputFormat | None = None
    effort: Effort | None = None


class KeepThoughts(msgspec.Struct, forbid_unknown_fields=True, tag="clear_thinking_20251015"):
    """Claude Code asks for it: thoughts stay in the conversation, as they do anyway."""

    keep: Literal["all"]


class ContextManagement(msgspec.Struct, forbid_unknown_fields=True):
    """The parts that are taken out of a conversation: none."""

    edits: list[KeepThoughts] = []


class Metadata(msgspec.Struct):
    """The request's sender, for logs."""

    user_id: str | None = None


class CountRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A conversation whose tokens are counted."""

    model: ModelName = ""
    messages: Annotated[list[Turn], msgspec.Meta(min_length=1)]
    system: str | list[TextBlock] | None = None
    tools: Annotated[list[AnthropicTool], msgspec.Meta(extra={"types": ("custom",)})] | None = None
    tool_choice: AnthropicChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    cache_control: dict[str, Any] | None = None
    context_management: ContextManagement | None = None
    # How it goes on does not change the count: a client may send what it asks for next.
    max_tokens: Count | None = None
    stop_sequences: Annotated[list[StopText], msgspec.Meta(max_length=64)] | None = None
    stream: bool | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    top_p: Share | None = None
    top_k: Annotated[int, msgspec.Meta(ge=0, lt=2**31)] | None = None
    metadata: Metadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = None


class MessagesRequest(CountRequest, kw_only=True):
    """A request for the next message."""

    max_tokens: Count
    thread: dict[str, Any] | None = None  # refused in the way that has clients send all of it


class AnthropicUsage(msgspec.Struct):
    """The number of tokens of a request."""

    input_tokens: int  # without those that the prefix cache had
    output_tokens: int
    cache_read_input_tokens: int = 0
    cache_creation_input_tokens: int = 0  # is not counted apart


class MessagesAnswer(msgspec.Struct):
    """The next message."""

    id: str
    model: str
    content: list[TextBlock | ToolUseBlock | ThinkingBlock]
    stop_reason: str | None
    stop_sequence: str | None
    usage: AnthropicUsage
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"


class Counted(msgspec.Struct):
    """The number of tokens of a conversation."""

    input_tokens: int


class AnthropicFault(msgspec.Struct):
    """The error."""

    type: str
    message: str
    details: dict[str, str] | UnsetType = UNSET  # the error's code


class AnthropicError(msgspec.Struct):
    """Anthropic's error object."""

    error: AnthropicFault
    type: Literal["error"] = "error"
