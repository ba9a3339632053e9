"""`POST /v1/chat/completions`."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator

from msgspec import UNSET
from starlette.responses import Response

from pie_gateway.backend.job import End, Piece, Prompt
from pie_gateway.dialects.forms import Call
from pie_gateway.dialects.splitter import Said, Thought, Words
from pie_gateway.http.admission import Exchange
from pie_gateway.http.answers import DONE, event, json_response, stream_response, while_asked
from pie_gateway.openai import asynchronous
from pie_gateway.openai.choices import Whole, chat_logprobs, gather, prompt_logprobs
from pie_gateway.openai.sampling import stream_options
from pie_gateway.openai.talk import Talk, TextSplitter, prepare
from pie_gateway.schemas.chat import (
    AnswerMessage,
    ChatAnswer,
    ChatChoice,
    ChatChunk,
    ChatRequest,
    ChunkChoice,
    Delta,
    FunctionDelta,
    ToolCallDelta,
)
from pie_gateway.schemas.messages import CalledFunction, ToolCall
from pie_gateway.schemas.sampling import StreamOptions, usage


async def chat_completions(exchange: Exchange) -> Response:
    """The next message of a conversation."""
    asked = await exchange.read(ChatRequest)
    usage_told = stream_options(asked)
    answer = _Answer(f"chatcmpl-{exchange.id}", await _prepared(exchange, asked))
    if asked.stream:
        return stream_response(exchange, answer.stream(usage_told))
    return json_response(await while_asked(exchange, answer.whole))


async def _prepared(exchange: Exchange, asked: ChatRequest) -> Talk:
    if asked.model.startswith(asynchronous.PREFIX):
        return await asynchronous.prepare(exchange, asked)
    return await prepare(exchange, asked)


class _Answer:
    """The answer to one request."""

    def __init__(self, name: str, talk: Talk) -> None:
        self._id = name
        self._talk = talk
        self._asked = talk.asked
        self._job = talk.job
        self._words = talk.words
        self._created = int(time.time())

    async def whole(self) -> ChatAnswer:
        """All of it at once."""
        async with self._talk.generation as generation:
            prompt = await generation.prompt()
            wholes = await gather(generation.events(), self._job.choices)
        return ChatAnswer(
            self._id,
            self._created,
            self._asked.model,
            [self._choice(at, whole, prompt) for at, whole in enumerate(wholes)],
            usage(
                prompt.tokens,
                sum(whole.tokens for whole in wholes),
                sum(whole.cached for whole in wholes),
            ),
            prompt_token_ids=prompt.ids if self._job.ids else UNSET,
            prompt_logprobs=UNSET
            if self._job.prompt_logprobs is None
            else prompt_logprobs(prompt, self._words, self._job.prompt_logprobs),
        )

    def _choice(self, at: int, whole: Whole, prompt: Prompt) -> ChatChoice:
        logprobs = chat_logprobs(whole.piece, self._words) if self._job.logprobs else None
        splitter = self._talk.splitter(prompt)
        message = AnswerMessage("")
        calls = []
        for said in [*splitter.feed(whole.text), *splitter.finish(whole.reason)]:
            match said:
                case Words(text):
                    message.content = (message.content or "") + text
                case Thought(text):
                    before = message.reasoning_content
                    message.reasoning_content = text if before is UNSET else before + text
                case Call(name, arguments):
                    calls.append(ToolCall(_call_id(), CalledFunction(name, arguments)))
        if calls:
            message.tool_calls, message.content = calls, message.content or None
        ids = whole.ids if self._job.ids else UNSET
        return ChatChoice(at, message, splitter.reason(whole.reason), logprobs, whole.stop, ids)

    async def stream(self, told: StreamOptions) -> AsyncGenerator[bytes, None]:
        """Its parts as server-sent events; the first one only once text comes."""
        async with self._talk.generation as generation:
            prompt = await generation.prompt()
            splitters: dict[int, TextSplitter] = {}
            tokens = cached = 0
            async for each in generation.events():
                if isinstance(each, Prompt):
                    continue
                if isinstance(each, Piece):
                    tokens += each.tokens
                else:
                    cached += each.cached
                if each.choice not in splitters:
                    splitters[each.choice] = self._talk.splitter(prompt)
                    first = ChunkChoice(each.choice, Delta(role="assistant", content=""))
                    yield event(self._chunk([first], prompt))
                for choice in self._parts(each, splitters[each.choice]):
                    chunk = self._chunk([choice])
                    if told.continuous_usage_stats:
                        chunk.usage = usage(prompt.tokens, tokens, cached)
                    yield event(chunk)
            if told.include_usage:
                last = self._chunk([])
                last.usage = usage(prompt.tokens, tokens, cached)
                yield event(last)
            yield DONE

    def _parts(self, each: Piece | End, splitter: TextSplitter) -> list[ChunkChoice]:
        """What an event adds to its choice."""
        calls = splitter.calls
        said = splitter.feed(each.text) if isinstance(each, Piece) else splitter.finish(each.reason)
        parts = []
        for one in said:
            parts.append(ChunkChoice(each.choice, _delta(one, calls)))
            calls += isinstance(one, Call)
        if isinstance(each, End):
            last = ChunkChoice(each.choice, Delta(), splitter.reason(each.reason))
            if each.stop is not None:
                last.stop_reason = each.stop
            return [*parts, last]
        if (self._job.ids or self._job.logprobs) and not parts:
            parts.append(ChunkChoice(each.choice, Delta(content="")))
        if self._job.logprobs:
            parts[0].logprobs = chat_logprobs(each, self._words)
        if self._job.ids:
            parts[0].token_ids = each.ids
        return parts

    def _chunk(self, choices: list[ChunkChoice], prompt: Prompt | None = None) -> ChatChunk:
        chunk = ChatChunk(self._id, self._created, self._asked.model, choices)
        first = choices and choices[0].delta.role is not UNSET
        if prompt is not None and first and self._job.ids:
            chunk.prompt_token_ids = prompt.ids
        return chunk


def _delta(said: Said, calls: int) -> Delta:
    """What is said, after so many calls."""
    match said:
        case Words(text):
            return Delta(content=text)
        case Thought(text):
            return Delta(reasoning_content=text)
        case Call(name, arguments):
            function = FunctionDelta(name, arguments)
            return Delta(tool_calls=[ToolCallDelta(calls, function, _call_id(), "function")])


def _call_id() -> str:
    return f"call_{uuid.uuid4().hex[:24]}"
