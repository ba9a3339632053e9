"""OpenAI's `/v1/responses`."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from pie_gateway.schemas.chat import Effort
from pie_gateway.schemas.messages import RefusalPart
from pie_gateway.schemas.sampling import (
    FUNCTIONS,
    Count,
    ModelName,
    Name,
    PromptDetails,
    Share,
    StreamOptions,
)


class InputText(msgspec.Struct, forbid_unknown_fields=True, tag="input_text"):
    """Text."""

    text: str


class OutputText(msgspec.Struct, forbid_unknown_fields=True, tag="output_text"):
    """Text that the model has said."""

    text: str
    annotations: list[Any] = []
    logprobs: list[Any] | None = None
    parsed: Any = None  # the official client's reading of it


class InputImage(msgspec.Struct, forbid_unknown_fields=True, tag="input_image"):
    """An image, as `data:image/png;base64,...`."""

    image_url: str
    detail: Literal["auto", "low", "high", "original"] | None = None


class FunctionCall(msgspec.Struct, forbid_unknown_fields=True, tag="function_call"):
    """A call that the model has made."""

    call_id: str
    name: str
    arguments: str
    id: str | None = None
    status: str | None = None
    parsed_arguments: Any = None


class FunctionOutput(msgspec.Struct, forbid_unknown_fields=True, tag="function_call_output"):
    """The result of a call."""

    call_id: str
    output: str | list[InputText | InputImage]
    id: str | None = None
    status: str | None = None


class InputMessage(msgspec.Struct, forbid_unknown_fields=True, tag="message"):
    """A message."""

    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[InputText | OutputText | InputImage | RefusalPart]
    id: str | None = None
    status: str | None = None
    phase: str | None = None  # of an answer of OpenAI's


class Reasoned(msgspec.Struct, tag="reasoning_text"):
    """The model's thoughts."""

    text: str


class InputReasoning(msgspec.Struct, forbid_unknown_fields=True, tag="reasoning"):
    """Thoughts of an answer. Of those that OpenAI has encrypted, no prompt has any."""

    content: list[Reasoned] = []
    summary: list[Any] = []
    encrypted_content: str | None = None
    id: str | None = None
    status: str | None = None


Item: TypeAlias = InputMessage | InputReasoning | FunctionCall | FunctionOutput


class TextFormat(msgspec.Struct, forbid_unknown_fields=True):
    """The form of the text."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    schema: dict[str, Any] | None = None
    description: str | None = None
    strict: bool | None = None


class TextSettings(msgspec.Struct, forbid_unknown_fields=True):
    """Of the text."""

    format: TextFormat | None = None
    verbosity: None = None


class FlatTool(msgspec.Struct, forbid_unknown_fields=True):
    """A function that the model may call."""

    name: Name
    type: Literal["function"] = "function"
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class FlatChoice(msgspec.Struct, forbid_unknown_fields=True, tag="function"):
    """The function that has to be called."""

    name: str


class FlatAllowed(msgspec.Struct, forbid_unknown_fields=True, tag="allowed_tools"):
    """Functions of which one may, or has to, be called."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[FlatChoice], msgspec.Meta(min_length=1), FUNCTIONS]


class Reasoning(msgspec.Struct, forbid_unknown_fields=True):
    """How much the model thinks."""

    effort: Effort | None = None


Included: TypeAlias = Literal[
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "message.input_image.image_url",
]


class ResponsesRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A request for what follows some input."""

    model: ModelName = ""
    # Items; a message may leave out its type, which only then is known from its fields.
    input: str | Annotated[list[dict[str, Any]], msgspec.Meta(min_length=1)]
    instructions: str | None = None
    max_output_tokens: Count | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0, le=100)] | None = None
    top_p: Share | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    text: TextSettings | None = None
    tools: Annotated[list[FlatTool], FUNCTIONS] | None = None
    tool_choice: Literal["none", "auto", "required"] | FlatChoice | FlatAllowed | None = None
    parallel_tool_calls: bool | None = None
    store: bool | None = None  # true by default, as OpenAI has it
    previous_response_id: str | None = None  # whose conversation goes on
    metadata: dict[str, Any] | None = None
    user: str | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    service_tier: Literal["auto", "default"] | None = None
    truncation: Literal["disabled"] | None = None
    top_logprobs: Literal[0] | None = None
    reasoning: Reasoning | None = None
    # Thoughts go back in without storage: the items have them in plain. The others are of items
    # that no answer has, and of the input, which is kept whole.
    include: list[Included] | None = None
    max_tool_calls: int | None = None  # of tools that others run: none
    background: Literal[False] | None = None


class TextDone(msgspec.Struct, tag="output_text"):
    """Text of the answer."""

    text: str
    annotations: list[Any] = []
    logprobs: list[Any] = []


class OutputMessage(msgspec.Struct, tag="message"):
    """A message of the answer."""

    id: str
    status: str
    content: list[TextDone]
    role: Literal["assistant"] = "assistant"


class OutputCall(msgspec.Struct, tag="function_call"):
    """A call of the answer."""

    id: str
    call_id: str
    name: str
    arguments: str
    status: str = "completed"


class OutputReasoning(msgspec.Struct, tag="reasoning"):
    """Thoughts of the answer."""

    id: str
    content: list[Reasoned]
    summary: list[Any] = []
    status: str = "completed"


Output: TypeAlias = OutputMessage | OutputCall | OutputReasoning


class ResponsesUsage(msgspec.Struct):
    """The number of tokens of a request."""

    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_tokens_details: PromptDetails
    output_tokens_details: dict[str, int] = msgspec.field(
        default_factory=lambda: {"reasoning_tokens": 0}
    )


class ResponsesAnswer(msgspec.Struct):
    """The response to the input."""

    id: str
    created_at: int
    model: str
    status: str
    output: list[Output]
    parallel_tool_calls: bool
    tool_choice: Any
    tools: list[Any]
    usage: ResponsesUsage | None = None
    incomplete_details: dict[str, str] | None = None
    error: dict[str, str] | None = None
    instructions: str | None = None
    metadata: dict[str, Any] | None = None
    temperature: float | None = None
    top_p: float | None = None
    text: TextSettings | None = None
    max_output_tokens: int | None = None
    reasoning: Reasoning | None = None
    store: bool = True
    truncation: str = "disabled"
    top_logprobs: int = 0
    previous_response_id: str | None = None
    background: bool = False
    service_tier: str = "default"
    object: Literal["response"] = "response"
