"""From Anthropic's requests to the one that conversations are answered by."""

from __future__ import annotations

import msgspec

from pie_gateway.openai.conversation import merged_up
from pie_gateway.problems import Problem, unsupported
from pie_gateway.schemas import anthropic
from pie_gateway.schemas import messages as openai
from pie_gateway.schemas.chat import ChatRequest, Function, FunctionName, NamedTool, Tool
from pie_gateway.schemas.sampling import JsonSchema, NamedSchema, same


def chat_request(asked: anthropic.CountRequest) -> ChatRequest:
    """The same request in OpenAI's words. Raises `Problem`: 400 naming what is wrong."""
    messages: list[openai.Message] = []
    if asked.system:
        messages.append(openai.SystemMessage(_text(asked.system)))
    for at, turn in enumerate(asked.messages):
        messages += _TURNS[turn.role](turn, at)
    wanted = ChatRequest(
        model=asked.model,
        messages=merged_up(messages),
        tools=[_tool(each) for each in asked.tools or []] or None,
        continue_final_message=asked.messages[-1].role == "assistant" or None,
        stop=asked.stop_sequences,
        **same(asked, "max_tokens", "stream", "temperature", "top_p", "top_k"),
    )
    _choose(asked, wanted)
    if asked.output_config is not None:
        wanted.reasoning_effort = asked.output_config.effort
        if (form := asked.output_config.format) is not None:
            wanted.response_format = JsonSchema(NamedSchema("answer", form.schema))
    if asked.thinking is not None:
        if asked.thinking.type == "disabled":
            wanted.reasoning_effort = "none"
        elif asked.thinking.type == "enabled":
            wanted.reasoning_effort = wanted.reasoning_effort or "high"
    return wanted


def _choose(asked: anthropic.CountRequest, wanted: ChatRequest) -> None:
    choice = asked.tool_choice
    if choice is None:
        return
    if (choice.type == "tool") != (choice.name is not None):
        raise unsupported("tool_choice", "`name` goes with `type: tool`")
    wanted.parallel_tool_calls = not choice.disable_parallel_tool_use
    if choice.name is not None:
        wanted.tool_choice = NamedTool(FunctionName(choice.name))
    elif choice.type == "any":
        wanted.tool_choice = "required"
    else:
        wanted.tool_choice = "none" if choice.type == "none" else "auto"


def _tool(asked: anthropic.AnthropicTool) -> Tool:
    schema = asked.input_schema
    if asked.input_examples:  # where JSON Schema has them
        schema = {**schema, "examples": asked.input_examples}
    return Tool(Function(asked.name, asked.description, schema, asked.strict))


def _text(content: str | list[anthropic.TextBlock]) -> str:
    return content if isinstance(content, str) else "\n".join(block.text for block in content)


def _system(turn: anthropic.Turn, at: int) -> list[openai.Message]:
    if isinstance(turn.content, str):
        return [openai.SystemMessage(turn.content)]
    texts = [block for block in turn.content if isinstance(block, anthropic.TextBlock)]
    if len(texts) < len(turn.content):
        raise _misplaced(at, "system")
    return [openai.SystemMessage(_text(texts))]


def _user(turn: anthropic.Turn, at: int) -> list[openai.Message]:
    """The user's words, after the results of calls."""
    if isinstance(turn.content, str):
        return [openai.UserMessage(turn.content)]
    results: list[openai.Message] = []
    parts: list[openai.TextPart | openai.ImagePart] = []
    for block in turn.content:
        match block:
            case anthropic.TextBlock(text):
                parts.append(openai.TextPart(text))
            case anthropic.ImageBlock():
                parts.append(_image(block))
            case anthropic.ToolResultBlock(call, str(text)):
                results.append(openai.ToolMessage(text, call))
            case anthropic.ToolResultBlock(
                call, given
            ):  # templates look for images in the user's messages
                texts = [block for block in given if isinstance(block, anthropic.TextBlock)]
                results.append(openai.ToolMessage(_text(texts), call))
                parts += [
                    _image(block) for block in given if isinstance(block, anthropic.ImageBlock)
                ]
            case _:
                raise _misplaced(at, "user")
    return [*results, openai.UserMessage(parts)] if parts or not results else results


def _image(block: anthropic.ImageBlock) -> openai.ImagePart:
    return openai.ImagePart(
        openai.ImageAddress(f"data:{block.source.media_type};base64,{block.source.data}")
    )


def _assistant(turn: anthropic.Turn, at: int) -> list[openai.Message]:
    if isinstance(turn.content, str):
        return [openai.AssistantMessage(turn.content)]
    message = openai.AssistantMessage("")
    texts: list[str] = []
    for block in turn.content:
        match block:
            case anthropic.TextBlock(text):
                texts.append(text)
            case anthropic.ThinkingBlock(thought):
                message.reasoning_content = (message.reasoning_content or "") + thought
            case anthropic.ToolUseBlock(call, name, given):
                arguments = msgspec.json.encode(given).decode()
                calls = message.tool_calls or []
                message.tool_calls = [
                    *calls,
                    openai.ToolCall(call, openai.CalledFunction(name, arguments)),
                ]
            case anthropic.RedactedBlock():
                pass
            case _:
                raise _misplaced(at, "assistant")
    message.content = "\n".join(texts)
    return [message]


_TURNS = {"user": _user, "assistant": _assistant, "system": _system}


def _misplaced(at: int, role: str) -> Problem:
    where = f"messages[{at}].content"
    return Problem(400, f"`{where}`: no block of the role {role} is of this type", param=where)
