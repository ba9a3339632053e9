"""`POST /v1/messages` and `/v1/messages/count_tokens`, in the words of OpenAI's chat."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET
from starlette.responses import Response

from pie_gateway.backend.job import End
from pie_gateway.dialects.forms import Call
from pie_gateway.dialects.splitter import Said, Thought, Words
from pie_gateway.dialects.written import Arguments
from pie_gateway.http.admission import Exchange
from pie_gateway.http.answers import event, json_response, while_asked
from pie_gateway.openai.building import Building
from pie_gateway.openai.conversation import merged_up
from pie_gateway.openai.talk import Talk, prepare
from pie_gateway.problems import Problem, headers_of, unsupported, wrong
from pie_gateway.schemas import anthropic
from pie_gateway.schemas import messages as openai
from pie_gateway.schemas.chat import ChatRequest, Function, FunctionName, NamedTool, Tool
from pie_gateway.schemas.sampling import JsonSchema, NamedSchema, same

_REASONS = {"length": "max_tokens", "tool_calls": "tool_use"}
_KINDS = {413: "request_too_large", 503: "overloaded_error", 504: "timeout_error"}


async def messages(exchange: Exchange) -> Response:
    """The next message of a conversation."""
    try:
        asked = await exchange.read(anthropic.MessagesRequest)
        if asked.thread:
            why = "`thread`: conversations are not kept here, send all messages"
            raise Problem(400, why, param="thread", code="thread_unsupported_request")
        wanted = await exchange.by_size(chat_request, asked)
        talk = await prepare(exchange, wanted, "messages", None, clamp=True)
        told = lambda problem: event(_error(problem), "error")  # noqa: E731
        return await _Message(f"msg_{exchange.id}", talk).response(exchange, told)
    except Problem as problem:
        return problem_answer(problem)


async def count_tokens(exchange: Exchange) -> Response:
    """The number of tokens of a conversation."""
    try:
        wanted = await exchange.by_size(chat_request, await exchange.read(anthropic.CountRequest))
        talk = await prepare(exchange, wanted, "messages", None, counts=True)
        return json_response(anthropic.Counted((await while_asked(exchange, talk.prompt)).tokens))
    except Problem as problem:
        return problem_answer(problem)


class _Message(Building):
    beat = event({"type": "ping"}, "ping")

    def __init__(self, name: str, talk: Talk) -> None:
        super().__init__(talk)
        used = anthropic.AnthropicUsage(0, 0)
        self.answer = anthropic.MessagesAnswer(name, talk.model, [], None, None, used)

    def _begin(self, prompt: int) -> bytes:
        self.answer.usage.input_tokens = prompt
        return _event("message_start", message=self.answer)

    def _open(self, said: Said) -> bytes:
        block = _empty(said)
        self.answer.content.append(block)
        return self._of_block("content_block_start", content_block=block)

    def _go_on(self, said: Said) -> bytes:
        match said, self.answer.content[-1]:
            case Words(text), anthropic.TextBlock() as block:
                block.text += text
                delta = {"type": "text_delta", "text": text}
            case Thought(text), anthropic.ThinkingBlock() as block:
                block.thinking += text
                delta = {"type": "thinking_delta", "thinking": text}
            case Call(_, "", _), anthropic.ToolUseBlock():
                return b""  # its arguments follow
            case ((Call(_, text, _) | Arguments(text)), anthropic.ToolUseBlock() as block):
                if isinstance(said, Call):
                    block.input = msgspec.json.decode(text)
                delta = {"type": "input_json_delta", "partial_json": text}
        return self._of_block("content_block_delta", delta=delta)

    def _close(self, cut: bool) -> bytes:
        return self._of_block("content_block_stop")

    def _finish(self, end: End) -> bytes:
        answer, prompt = self.answer, self.answer.usage.input_tokens
        answer.usage = anthropic.AnthropicUsage(prompt - end.cached, end.tokens, end.cached)
        answer.stop_reason = _REASONS.get(end.reason, "end_turn")
        if end.stop is not None:
            answer.stop_reason, answer.stop_sequence = "stop_sequence", end.stop
        delta = {"stop_reason": answer.stop_reason, "stop_sequence": end.stop}
        return _event("message_delta", delta=delta, usage=answer.usage) + _event("message_stop")

    def _of_block(self, name: str, **fields: Any) -> bytes:
        return _event(name, index=len(self.answer.content) - 1, **fields)


def _empty(said: Said) -> anthropic.TextBlock | anthropic.ThinkingBlock | anthropic.ToolUseBlock:
    """The block that something said begins."""
    match said:
        case Words():
            return anthropic.TextBlock("")
        case Thought():
            return anthropic.ThinkingBlock("")
        case Call(name, _, key):
            return anthropic.ToolUseBlock(f"toolu_{key}", name, {})
        case Arguments():
            raise AssertionError("arguments go on with their call's block")


def _event(name: str, **fields: Any) -> bytes:
    return event({"type": name, **fields}, name)


def _error(problem: Problem) -> anthropic.AnthropicError:
    kind = _KINDS.get(problem.status, problem.kind if problem.status < 500 else "api_error")
    details = UNSET if problem.code is None else {"error_code": problem.code}
    return anthropic.AnthropicError(anthropic.AnthropicFault(kind, problem.message, details))


def problem_answer(problem: Problem) -> Response:
    """The answer to a request that cannot be answered, in Anthropic's error object."""
    return json_response(_error(problem), problem.status, headers_of(problem))


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
                made = openai.GivenCall(openai.GivenFunction(name, given), call)
                message.tool_calls = [*(message.tool_calls or []), made]
            case anthropic.RedactedBlock():
                pass
            case _:
                raise _misplaced(at, "assistant")
    message.content = "\n".join(texts)
    return [message]


_TURNS = {"user": _user, "assistant": _assistant, "system": _system}


def _misplaced(at: int, role: str) -> Problem:
    where = f"messages[{at}].content"
    return wrong(where, f"no block of the role {role} is of this type")
