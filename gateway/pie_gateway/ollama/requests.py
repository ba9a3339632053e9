"""From Ollama's requests to OpenAI's."""

from __future__ import annotations

import re

import msgspec

from pie_gateway.http.reading import convert
from pie_gateway.problems import Problem
from pie_gateway.schemas import messages as schema
from pie_gateway.schemas.chat import ChatRequest, ServerTools, Tool
from pie_gateway.schemas.ollama import (
    OllamaChatRequest,
    OllamaGenerateRequest,
    OllamaMessage,
    OllamaOptions,
    OllamaRequest,
)
from pie_gateway.schemas.sampling import SAMPLER, JsonObject, JsonSchema, NamedSchema, same

FOREVER = 1e9  # seconds
_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3}
_PNG = "iVBOR"  # how one begins in base64


def kept_seconds(asked: str | float) -> float:
    """Seconds of `keep_alive`, as `1h30m`; negative: always. Raises `Problem`: 400, it is none."""
    text = str(asked).strip()
    parts = re.findall(r"(\d+(?:\.\d+)?)(ms|h|m|s)", text)
    if re.fullmatch(r"-?\d+(\.\d+)?", text):
        seconds = float(text)
    elif parts and "".join(map("".join, parts)) == text.lstrip("-"):
        seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    else:
        raise Problem(400, f"`keep_alive`: {text[:50]!r} is no time such as 5m", param="keep_alive")
    return FOREVER if text.startswith("-") else min(seconds, FOREVER)


def chat_request(asked: OllamaChatRequest) -> ChatRequest:
    """A chat as OpenAI has it. Raises `Problem`: 400 naming the option that is wrong."""
    tools: list[Tool | ServerTools] = [Tool(each.function) for each in asked.tools or []]
    return _request(asked, asked.messages, tools)


def generate_request(asked: OllamaGenerateRequest) -> ChatRequest:
    """A generation as a chat of one message. Raises as `chat_request`."""
    system = [OllamaMessage("system", asked.system)] if asked.system else []
    return _request(asked, [*system, OllamaMessage("user", asked.prompt, images=asked.images)], [])


def _request(
    asked: OllamaRequest, messages: list[OllamaMessage], tools: list[Tool | ServerTools]
) -> ChatRequest:
    options: OllamaOptions = convert(asked.options or {}, OllamaOptions, "options")
    wanted = ChatRequest(
        model=asked.model,
        messages=_messages(messages),
        tools=tools or None,
        stream=asked.stream,
        max_tokens=None if (most := options.num_predict or 0) < 1 else most,
        **same(options, *SAMPLER, "seed", "stop"),
    )
    if isinstance(asked.format, dict):
        wanted.response_format = JsonSchema(NamedSchema("answer", asked.format))
    elif asked.format:
        wanted.response_format = JsonObject()
    if isinstance(asked.think, bool):
        wanted.reasoning_effort = "high" if asked.think else "none"
    else:
        wanted.reasoning_effort = asked.think
    return wanted


def _messages(given: list[OllamaMessage]) -> list[schema.Message]:
    """Messages; a result belongs to the call before it that has none yet, as Ollama has no ids."""
    messages: list[schema.Message] = []
    waiting: list[str] = []
    for at, each in enumerate(given):
        match each.role:
            case "system":
                messages.append(schema.SystemMessage(each.content))
            case "user":
                images = [_image(data) for data in each.images or []]
                text = schema.TextPart(each.content)
                messages.append(schema.UserMessage([text, *images] if images else each.content))
            case "tool":
                own = each.tool_call_id or (waiting.pop(0) if waiting else f"call_{at}")
                messages.append(schema.ToolMessage(each.content, own, each.tool_name))
            case "assistant":
                message = schema.AssistantMessage(each.content, reasoning_content=each.thinking)
                message.tool_calls = [
                    schema.ToolCall(
                        call.id or f"call_{at}_{number}",
                        schema.CalledFunction(
                            call.function.name,
                            msgspec.json.encode(call.function.arguments).decode(),
                        ),
                    )
                    for number, call in enumerate(each.tool_calls or [])
                ] or None
                waiting = [call.id for call in message.tool_calls or []]
                messages.append(message)
    return messages


def _image(data: str) -> schema.ImagePart:
    kind = "png" if data.startswith(_PNG) else "jpeg"
    return schema.ImagePart(schema.ImageAddress(f"data:image/{kind};base64,{data}"))
