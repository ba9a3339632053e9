"""From Ollama's requests to OpenAI's."""

from __future__ import annotations

import msgspec

from pie_gateway.schemas.chat import ChatRequest, Tool
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
from pie_gateway.schemas.ollama import (
    OllamaChatRequest,
    OllamaGenerateRequest,
    OllamaMessage,
    OllamaOptions,
    OllamaRequest,
)
from pie_gateway.schemas.sampling import JsonObject, JsonSchema, NamedSchema

_PNG = "iVBOR"  # how one begins in base64


def chat_request(asked: OllamaChatRequest) -> ChatRequest:
    """A chat as OpenAI has it."""
    wanted = ChatRequest(model=asked.model, messages=_messages(asked.messages))
    if asked.tools:
        wanted.tools = [Tool(each.function) for each in asked.tools]
    return _with_options(wanted, asked)


def generate_request(asked: OllamaGenerateRequest) -> ChatRequest:
    """A generation as a chat of one message."""
    user = OllamaMessage("user", asked.prompt, images=asked.images)
    system = [OllamaMessage("system", asked.system)] if asked.system else []
    wanted = ChatRequest(model=asked.model, messages=_messages([*system, user]))
    return _with_options(wanted, asked)


def _with_options(wanted: ChatRequest, asked: OllamaRequest) -> ChatRequest:
    options = asked.options or OllamaOptions()
    wanted.stream = asked.stream
    for name in ("temperature", "top_k", "top_p", "min_p", "typical_p", "seed", "stop"):
        setattr(wanted, name, getattr(options, name))
    wanted.repetition_penalty = options.repeat_penalty
    wanted.presence_penalty = options.presence_penalty
    wanted.frequency_penalty = options.frequency_penalty
    if options.num_predict is not None and options.num_predict > 0:
        wanted.max_tokens = options.num_predict
    if isinstance(asked.format, dict):
        wanted.response_format = JsonSchema(NamedSchema("answer", asked.format))
    elif asked.format:
        wanted.response_format = JsonObject()
    if isinstance(asked.think, bool):
        wanted.reasoning_effort = "high" if asked.think else "none"
    else:
        wanted.reasoning_effort = asked.think
    return wanted


def _messages(given: list[OllamaMessage]) -> list[Message]:
    """Messages; a result belongs to the call before it that has none yet, as Ollama has no ids."""
    messages: list[Message] = []
    waiting: list[str] = []
    for at, each in enumerate(given):
        match each.role:
            case "system":
                messages.append(SystemMessage(each.content))
            case "user":
                images = [_image(data) for data in each.images or []]
                text = TextPart(each.content)
                messages.append(UserMessage([text, *images] if images else each.content))
            case "tool":
                own = each.tool_call_id or (waiting.pop(0) if waiting else f"call_{at}")
                messages.append(ToolMessage(each.content, own, each.tool_name))
            case "assistant":
                message = AssistantMessage(each.content, reasoning_content=each.thinking)
                message.tool_calls = [
                    ToolCall(
                        call.id or f"call_{at}_{number}",
                        CalledFunction(
                            call.function.name,
                            msgspec.json.encode(call.function.arguments).decode(),
                        ),
                    )
                    for number, call in enumerate(each.tool_calls or [])
                ] or None
                waiting = [call.id for call in message.tool_calls or []]
                messages.append(message)
    return messages


def _image(data: str) -> ImagePart:
    kind = "png" if data.startswith(_PNG) else "jpeg"
    return ImagePart(ImageAddress(f"data:image/{kind};base64,{data}"))
