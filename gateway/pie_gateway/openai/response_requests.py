"""From requests of `/v1/responses` to the one that conversations are answered by."""

from __future__ import annotations

from typing import Any

from pie_gateway.http.reading import convert
from pie_gateway.openai.conversation import merged_up
from pie_gateway.problems import Problem
from pie_gateway.schemas.chat import (
    Allowed,
    AllowedTools,
    ChatRequest,
    Function,
    FunctionName,
    NamedTool,
    ServerTools,
    Tool,
)
from pie_gateway.schemas.messages import (
    AssistantMessage,
    CalledFunction,
    ImageAddress,
    ImagePart,
    Message,
    RefusalPart,
    SystemMessage,
    TextPart,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from pie_gateway.schemas.responses import (
    FlatAllowed,
    FlatChoice,
    FunctionCall,
    FunctionOutput,
    InputImage,
    InputMessage,
    InputReasoning,
    Item,
    ResponsesRequest,
    TextFormat,
)
from pie_gateway.schemas.sampling import JsonObject, JsonSchema, NamedSchema, ResponseFormat, same


def items_of(asked: ResponsesRequest) -> list[dict[str, Any]]:
    """The input as items."""
    if isinstance(asked.input, str):
        return [{"type": "message", "role": "user", "content": asked.input}]
    return asked.input


def chat_request(asked: ResponsesRequest, items: list[dict[str, Any]]) -> ChatRequest:
    """The same request as one of `/v1/chat/completions`, of the conversation, its input last.
    Raises `Problem`: 400 naming what is wrong.
    """
    messages: list[Message] = []
    if asked.instructions:
        messages.append(SystemMessage(asked.instructions))
    before = len(items) - len(items_of(asked))
    for at, given in enumerate(items):
        _add(messages, _item(given, at - before))
    tools: list[Tool | ServerTools] = [
        Tool(Function(each.name, each.description, each.parameters, each.strict))
        for each in asked.tools or []
    ]
    return ChatRequest(
        model=asked.model,
        messages=merged_up(messages),
        max_tokens=asked.max_output_tokens,
        tools=tools or None,
        tool_choice=_choice(asked.tool_choice),
        reasoning_effort=asked.reasoning.effort if asked.reasoning else None,
        response_format=_format(asked.text.format) if asked.text and asked.text.format else None,
        **same(asked, "stream", "temperature", "top_p", "parallel_tool_calls"),
    )


def _choice(asked: Any) -> Any:
    match asked:
        case FlatChoice(name):
            return NamedTool(FunctionName(name))
        case FlatAllowed(mode, tools):
            return AllowedTools(Allowed(mode, [_choice(tool) for tool in tools]))
    return asked


def _item(given: dict[str, Any], at: int) -> Item:
    item = {**given, "type": given.get("type") or "message"}
    found: Item = convert(item, Item, f"input[{at}]")
    return found


def _add(messages: list[Message], item: Item) -> None:
    last = messages[-1] if messages else None
    match item:
        case FunctionOutput(call, output):  # templates look for images in the user's messages
            images = [part for part in output if isinstance(part, InputImage)]
            rest = output if isinstance(output, str) else [p for p in output if p not in images]
            # Results of one turn stay together.
            messages.insert(
                len(messages) - isinstance(last, UserMessage), ToolMessage(_text(rest), call)
            )
            if images:
                messages.append(UserMessage(_parts(images)))
        case FunctionCall(call, name, arguments):  # calls of one turn are one message
            if not isinstance(last, AssistantMessage):
                messages.append(last := AssistantMessage(""))
            made = ToolCall(call, CalledFunction(name, arguments))
            last.tool_calls = [*(last.tool_calls or []), made]
        case InputReasoning(content):
            if content:  # else it is encrypted
                thought = "".join(part.text for part in content)
                messages.append(AssistantMessage("", reasoning_content=thought))
        case InputMessage("assistant", content):  # what was thought before is of its turn
            if not isinstance(last, AssistantMessage) or last.content or last.tool_calls:
                messages.append(last := AssistantMessage(""))
            last.content = _text(content)
        case InputMessage("user", content):
            messages.append(UserMessage(_parts(content)))
        case InputMessage(_, content):
            messages.append(SystemMessage(_text(content)))


def _parts(content: Any) -> str | list[TextPart | ImagePart]:
    if isinstance(content, str):
        return content
    return [
        ImagePart(ImageAddress(part.image_url, part.detail))
        if isinstance(part, InputImage)
        else TextPart(part.text)
        for part in content
    ]


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if any(isinstance(part, InputImage) for part in content):
        raise Problem(400, "`input`: only the user's messages have images", param="input")
    return "\n".join(
        part.refusal if isinstance(part, RefusalPart) else part.text for part in content
    )


def _format(asked: TextFormat) -> ResponseFormat | None:
    if asked.type == "json_object":
        return JsonObject()
    if asked.type == "json_schema":
        return JsonSchema(NamedSchema(asked.name or "answer", asked.schema, strict=asked.strict))
    return None
