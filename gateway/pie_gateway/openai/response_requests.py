"""From requests of `/v1/responses` to the one that conversations are answered by."""

from __future__ import annotations

from typing import Any

import msgspec

from pie_gateway.problems import Problem
from pie_gateway.schemas.chat import ChatRequest, Function, FunctionName, NamedTool, Tool
from pie_gateway.schemas.messages import (
    AssistantMessage,
    CalledFunction,
    ImageAddress,
    ImagePart,
    Message,
    SystemMessage,
    TextPart,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from pie_gateway.schemas.responses import (
    FlatChoice,
    FunctionCall,
    FunctionOutput,
    InputImage,
    InputMessage,
    Item,
    ResponsesRequest,
    TextFormat,
)
from pie_gateway.schemas.sampling import JsonObject, JsonSchema, NamedSchema, ResponseFormat


def chat_request(asked: ResponsesRequest) -> ChatRequest:
    """The same request as one of `/v1/chat/completions`.

    Raises:
        Problem: 400 naming what is wrong.
    """
    messages: list[Message] = []
    if asked.instructions:
        messages.append(SystemMessage(asked.instructions))
    if isinstance(asked.input, str):
        messages.append(UserMessage(asked.input))
    else:
        for at, given in enumerate(asked.input):
            _add(messages, _item(given, at))
    wanted = ChatRequest(model=asked.model, messages=messages)
    wanted.max_tokens, wanted.stream = asked.max_output_tokens, asked.stream
    wanted.temperature, wanted.top_p = asked.temperature, asked.top_p
    wanted.parallel_tool_calls = asked.parallel_tool_calls
    if asked.tools:
        wanted.tools = [
            Tool(Function(each.name, each.description, each.parameters)) for each in asked.tools
        ]
    choice = asked.tool_choice
    named = isinstance(choice, FlatChoice)
    wanted.tool_choice = NamedTool(FunctionName(choice.name)) if named else choice  # type: ignore
    if asked.text is not None and asked.text.format is not None:
        wanted.response_format = _format(asked.text.format)
    return wanted


def _item(given: dict[str, Any], at: int) -> Item:
    try:
        found: Item = msgspec.convert({"type": "message", **given}, Item)
        return found
    except msgspec.ValidationError as error:
        raise Problem(400, f"`input[{at}]`: {error}", param=f"input[{at}]") from None


def _add(messages: list[Message], item: Item) -> None:
    match item:
        case FunctionOutput(call, output):
            messages.append(ToolMessage(output, call))
        case FunctionCall(call, name, arguments):
            made = ToolCall(call, CalledFunction(name, arguments))
            last = messages[-1] if messages else None
            if isinstance(last, AssistantMessage):  # calls of one turn are one message
                last.tool_calls = [*(last.tool_calls or []), made]
            else:
                messages.append(AssistantMessage("", tool_calls=[made]))
        case InputMessage("assistant", content):
            messages.append(AssistantMessage(_text(content)))
        case InputMessage("user", content):
            messages.append(UserMessage(_parts(content)))
        case InputMessage(_, content):
            messages.append(SystemMessage(_text(content)))


def _parts(content: Any) -> str | list[TextPart | ImagePart]:
    if isinstance(content, str):
        return content
    return [
        ImagePart(ImageAddress(part.image_url))
        if isinstance(part, InputImage)
        else TextPart(part.text)
        for part in content
    ]


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if any(isinstance(part, InputImage) for part in content):
        raise Problem(400, "`input`: only the user's messages have images", param="input")
    return "\n".join(part.text for part in content)


def _format(asked: TextFormat) -> ResponseFormat | None:
    if asked.type == "json_object":
        return JsonObject()
    if asked.type == "json_schema":
        return JsonSchema(NamedSchema(asked.name or "answer", asked.schema))
    return None
