"""From requests of `/v1/responses` to the one that conversations are answered by."""

from __future__ import annotations

from typing import Any

from pie_gateway.http.reading import convert
from pie_gateway.openai.conversation import merged_up
from pie_gateway.problems import wrong
from pie_gateway.schemas import chat, responses
from pie_gateway.schemas import messages as schema
from pie_gateway.schemas.sampling import JsonObject, JsonSchema, NamedSchema, ResponseFormat, same


def items_of(asked: responses.ResponsesRequest) -> list[dict[str, Any]]:
    """The input as items."""
    if isinstance(asked.input, str):
        return [{"type": "message", "role": "user", "content": asked.input}]
    return asked.input


def chat_request(
    asked: responses.ResponsesRequest, items: list[dict[str, Any]]
) -> chat.ChatRequest:
    """The same as a chat, its input last. Raises `Problem`: 400 naming what is wrong."""
    messages: list[schema.Message] = []
    if asked.instructions:
        messages.append(schema.SystemMessage(asked.instructions))
    before = len(items) - len(items_of(asked))
    for at, given in enumerate(items):
        _add(messages, _item(given, at - before))
    tools: list[chat.Tool | chat.ServerTools] = [
        chat.Tool(chat.Function(each.name, each.description, each.parameters, each.strict))
        for each in asked.tools or []
    ]
    return chat.ChatRequest(
        model=asked.model,
        messages=merged_up(messages),
        max_tokens=asked.max_output_tokens,
        tools=tools or None,
        tool_choice=_choice(asked.tool_choice),
        reasoning_effort=asked.reasoning.effort if asked.reasoning else None,
        response_format=_format(asked.text.format) if asked.text and asked.text.format else None,
        **same(
            asked,
            "stream",
            "temperature",
            "top_p",
            "parallel_tool_calls",
            "prompt_cache_key",
            "user",
        ),
    )


def _choice(asked: Any) -> Any:
    match asked:
        case responses.FlatChoice(name):
            return chat.NamedTool(chat.FunctionName(name))
        case responses.FlatAllowed(mode, tools):
            return chat.AllowedTools(chat.Allowed(mode, [_choice(tool) for tool in tools]))
    return asked


def _item(given: dict[str, Any], at: int) -> responses.Item:
    item = {**given, "type": given.get("type") or "message"}
    found: responses.Item = convert(item, responses.Item, f"input[{at}]")
    return found


def _add(messages: list[schema.Message], item: responses.Item) -> None:
    last = messages[-1] if messages else None
    match item:
        case responses.FunctionOutput(call, output):
            # Templates look for images in the user's messages.
            images = [part for part in output if isinstance(part, responses.InputImage)]
            rest = output if isinstance(output, str) else [p for p in output if p not in images]
            # Results of one turn stay together.
            messages.insert(
                len(messages) - isinstance(last, schema.UserMessage),
                schema.ToolMessage(_text(rest), call),
            )
            if images:
                messages.append(schema.UserMessage(_parts(images)))
        case responses.FunctionCall(call, name, arguments):  # calls of one turn are one message
            if not isinstance(last, schema.AssistantMessage):
                messages.append(last := schema.AssistantMessage(""))
            made = schema.ToolCall(call, schema.CalledFunction(name, arguments))
            last.tool_calls = [*(last.tool_calls or []), made]
        case responses.InputReasoning(content):
            if content:  # else it is encrypted
                thought = "".join(part.text for part in content)
                messages.append(schema.AssistantMessage("", reasoning_content=thought))
        case responses.InputMessage("assistant", content):  # what was thought before is of its turn
            if not isinstance(last, schema.AssistantMessage) or last.content or last.tool_calls:
                messages.append(last := schema.AssistantMessage(""))
            last.content = _text(content)
        case responses.InputMessage("user", content):
            messages.append(schema.UserMessage(_parts(content)))
        case responses.InputMessage(_, content):
            messages.append(schema.SystemMessage(_text(content)))


def _parts(content: Any) -> str | list[schema.TextPart | schema.ImagePart]:
    if isinstance(content, str):
        return content
    return [
        schema.ImagePart(schema.ImageAddress(part.image_url, part.detail))
        if isinstance(part, responses.InputImage)
        else schema.TextPart(part.text)
        for part in content
    ]


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if any(isinstance(part, responses.InputImage) for part in content):
        raise wrong("input", "only the user's messages have images")
    return "\n".join(
        part.refusal if isinstance(part, schema.RefusalPart) else part.text for part in content
    )


def _format(asked: responses.TextFormat) -> ResponseFormat | None:
    if asked.type == "json_object":
        return JsonObject()
    if asked.type == "json_schema":
        return JsonSchema(NamedSchema(asked.name or "answer", asked.schema, strict=asked.strict))
    return None
