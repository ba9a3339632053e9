"""`POST /v1/messages` and `/v1/messages/count_tokens`."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator
from typing import Any

import msgspec
from starlette.responses import Response

from pie_gateway.anthropic.requests import chat_request
from pie_gateway.backend.events import End, Prompt
from pie_gateway.dialects.splitter import Call, Said, Thought, Words
from pie_gateway.http.answers import event, json_response
from pie_gateway.http.door import Exchange
from pie_gateway.http.streams import stream_response, while_asked
from pie_gateway.openai.talk import Talk, prepare
from pie_gateway.problems import Problem, headers_of
from pie_gateway.schemas.anthropic import (
    AnthropicError,
    AnthropicFault,
    AnthropicUsage,
    Counted,
    CountRequest,
    MessagesAnswer,
    MessagesRequest,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
)

_REASONS = {"length": "max_tokens", "tool_calls": "tool_use"}
_KINDS = {413: "request_too_large", 503: "overloaded_error", 504: "timeout_error"}


async def messages(exchange: Exchange) -> Response:
    """The next message of a conversation."""
    try:
        asked = await exchange.read(MessagesRequest)
        talk = await prepare(exchange, chat_request(asked), "messages")
        name = f"msg_{exchange.id}"
        if asked.stream:
            return await stream_response(exchange, _stream(name, talk), _problem_event)
        return json_response(await while_asked(exchange, lambda: _whole(name, talk)))
    except Problem as problem:
        return _problem(problem)


async def count_tokens(exchange: Exchange) -> Response:
    """The number of tokens of a conversation."""
    try:
        wanted = chat_request(await exchange.read(CountRequest))
        wanted.max_tokens = 1
        talk = await prepare(exchange, wanted, "messages")

        async def count() -> Counted:
            async with talk.generation as generation:
                return Counted((await generation.prompt()).tokens)

        return json_response(await while_asked(exchange, count))
    except Problem as problem:
        return _problem(problem)


async def _whole(name: str, talk: Talk) -> MessagesAnswer:
    answer = MessagesAnswer(name, talk.asked.model, [], None, None, AnthropicUsage(0, 0))
    blocks = answer.content
    async for told in talk.told():
        last = blocks[-1] if blocks else None
        match told:
            case Prompt(tokens):
                answer.usage.input_tokens = tokens
            case Words(text) if isinstance(last, TextBlock):
                last.text += text
            case Thought(text) if isinstance(last, ThinkingBlock):
                last.thinking += text
            case Words() | Thought() | Call():
                blocks.append(_block(told))
            case End():
                answer.usage = _used(answer.usage.input_tokens, told)
                answer.stop_reason, answer.stop_sequence = _reason(told), told.stop
    return answer


def _block(said: Said) -> TextBlock | ThinkingBlock | ToolUseBlock:
    match said:
        case Words(text):
            return TextBlock(text)
        case Thought(text):
            return ThinkingBlock(text)
        case Call(name, arguments):
            given: Any = msgspec.json.decode(arguments or "{}")
            return ToolUseBlock(f"toolu_{uuid.uuid4().hex[:24]}", name, given)


def _used(prompt: int, end: End) -> AnthropicUsage:
    return AnthropicUsage(prompt - end.cached, end.tokens, end.cached)


def _reason(end: End) -> str:
    if end.stop is not None:
        return "stop_sequence"
    return _REASONS.get(end.reason, "end_turn")


async def _stream(name: str, talk: Talk) -> AsyncGenerator[bytes, None]:
    blocks = _Blocks()
    async for told in talk.told():
        match told:
            case Prompt(tokens):
                used = AnthropicUsage(tokens, 0)
                start = MessagesAnswer(name, talk.asked.model, [], None, None, used)
                first = _event("message_start", message=start)
            case End():
                yield first + blocks.close()
                delta = {"stop_reason": _reason(told), "stop_sequence": told.stop}
                yield _event("message_delta", delta=delta, usage=_used(used.input_tokens, told))
                yield _event("message_stop")
            case said:
                yield first + blocks.add(said)
                first = b""


class _Blocks:
    """The blocks of a streamed message: one is open at a time."""

    def __init__(self) -> None:
        self._open: type[Said] | None = None
        self._index = -1

    def add(self, said: Said) -> bytes:
        """Events that add what is said, to the open block or a new one."""
        start = b""
        if type(said) is not self._open or isinstance(said, Call):
            start = self.close()
            self._index += 1
            self._open = type(said)
            start += _event("content_block_start", index=self._index, content_block=_empty(said))
        match said:
            case Words(text):
                delta = {"type": "text_delta", "text": text}
            case Thought(text):
                delta = {"type": "thinking_delta", "thinking": text}
            case Call(_, arguments):
                delta = {"type": "input_json_delta", "partial_json": arguments}
        return start + _event("content_block_delta", index=self._index, delta=delta)

    def close(self) -> bytes:
        """Events that close the open block."""
        if self._open is None:
            return b""
        self._open = None
        return _event("content_block_stop", index=self._index)


def _empty(said: Said) -> Any:
    """The block that something said begins."""
    match said:
        case Words():
            return {"type": "text", "text": ""}
        case Thought():
            return {"type": "thinking", "thinking": "", "signature": ""}
        case Call():
            block = _block(said)
            assert isinstance(block, ToolUseBlock)
            block.input = {}
            return block


def _event(name: str, **fields: Any) -> bytes:
    return event({"type": name, **fields}, name)


def _error(problem: Problem) -> AnthropicError:
    kind = _KINDS.get(problem.status, problem.kind if problem.status < 500 else "api_error")
    return AnthropicError(AnthropicFault(kind, problem.message))


def _problem(problem: Problem) -> Response:
    return json_response(_error(problem), problem.status, headers_of(problem))


def _problem_event(problem: Problem) -> bytes:
    return event(_error(problem), "error")
