"""`POST /v1/chat/completions`."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator

from msgspec import UNSET
from starlette.responses import Response

from pie_gateway.backend.job import End, Piece, Prompt
from pie_gateway.dialects.forms import Call
from pie_gateway.dialects.splitter import Said, Thought, Words
from pie_gateway.dialects.written import Arguments
from pie_gateway.http.admission import Exchange
from pie_gateway.http.answers import DONE, event, json_response, stream_response, while_asked
from pie_gateway.openai import asynchronous
from pie_gateway.openai.choices import Whole, chat_logprobs, prompt_logprobs
from pie_gateway.openai.sampling import stream_options
from pie_gateway.openai.talk import Part, Talk, prepare
from pie_gateway.schemas import chat
from pie_gateway.schemas.messages import CalledFunction, ToolCall
from pie_gateway.schemas.sampling import StreamOptions, fingerprint, usage


async def chat_completions(exchange: Exchange) -> Response:
    """The next message of a conversation."""
    asked = await exchange.read(chat.ChatRequest)
    usage_told = stream_options(asked)
    is_asynchronous = asked.model.startswith(asynchronous.PREFIX)
    talk = await (asynchronous.prepare if is_asynchronous else prepare)(exchange, asked)
    answer = _Answer(f"chatcmpl-{exchange.id}", talk)
    if asked.stream:
        return stream_response(exchange, answer.stream(usage_told))
    return json_response(await while_asked(exchange, answer.whole))


class _Answer:
    def __init__(self, name: str, talk: Talk) -> None:
        self._id = name
        self._talk = talk
        self._job = talk.job
        self._created = int(time.time())
        self._fingerprint = ""

    async def whole(self) -> chat.ChatAnswer:
        prompt = Prompt(0)
        wholes = [Whole() for _ in range(self._job.choices)]
        messages = [chat.AnswerMessage("") for _ in wholes]
        async for part in self._talk.parts():
            if isinstance(part, Prompt):
                prompt = part
                continue
            at = part.event.choice
            wholes[at].add(part.event)
            for said in part.said:
                message = messages[at]
                match said:
                    case Words(text):
                        message.content = (message.content or "") + text
                    case Thought(text):
                        before = message.reasoning_content
                        message.reasoning_content = text if before is UNSET else before + text
                    case Call(name, arguments, key):
                        call = ToolCall(f"call_{key}", CalledFunction(name, arguments))
                        message.tool_calls = [*(message.tool_calls or []), call]
        tokens = sum(whole.tokens for whole in wholes)
        cached = sum(whole.cached for whole in wholes)
        most = self._job.prompt_logprobs
        return chat.ChatAnswer(
            self._id,
            self._created,
            self._talk.model,
            [self._choice(*each) for each in enumerate(zip(wholes, messages, strict=True))],
            usage(prompt.tokens, tokens, cached),
            system_fingerprint=fingerprint(prompt.version),
            prompt_token_ids=prompt.ids if self._job.ids else UNSET,
            prompt_logprobs=UNSET
            if most is None
            else prompt_logprobs(prompt, self._talk.words, most),
        )

    def _choice(self, at: int, choice: tuple[Whole, chat.AnswerMessage]) -> chat.ChatChoice:
        whole, message = choice
        if message.tool_calls:
            message.content = message.content or None
        logprobs = chat_logprobs(whole.piece, self._talk.words) if self._job.logprobs else None
        ids = whole.ids if self._job.ids else UNSET
        return chat.ChatChoice(at, message, whole.reason, logprobs, whole.stop, ids)

    async def stream(self, told: StreamOptions) -> AsyncGenerator[bytes, None]:
        """Its parts as server-sent events; the first one only once text comes."""
        prompt = Prompt(0)
        calls: dict[int, int] = {}  # of each choice that has begun
        tokens = cached = 0
        async for part in self._talk.parts(pieces=True):
            if isinstance(part, Prompt):
                prompt = part
                self._fingerprint = fingerprint(prompt.version)
                continue
            if isinstance(each := part.event, Piece):
                tokens += each.tokens
            else:
                cached += each.cached
            if each.choice not in calls:
                calls[each.choice] = 0
                begun = self._chunk(
                    [chat.ChunkChoice(each.choice, chat.Delta(role="assistant", content=""))]
                )
                if self._job.ids:
                    begun.prompt_token_ids = prompt.ids
                yield event(begun)
            for choice in self._choices(part, calls[each.choice]):
                chunk = self._chunk([choice])
                if told.continuous_usage_stats:
                    chunk.usage = usage(prompt.tokens, tokens, cached)
                yield event(chunk)
            calls[each.choice] += sum(isinstance(said, Call) for said in part.said)
        if told.include_usage:
            last = self._chunk([])
            last.usage = usage(prompt.tokens, tokens, cached)
            yield event(last)
        yield DONE

    def _choices(self, part: Part, calls: int) -> list[chat.ChunkChoice]:
        """The growth of a choice by a part, after so many calls."""
        each, found = part.event, []
        for said in part.said:
            found.append(chat.ChunkChoice(each.choice, _delta(said, calls)))
            calls += isinstance(said, Call)
        if isinstance(each, End):
            last = chat.ChunkChoice(each.choice, chat.Delta(), each.reason)
            if each.stop is not None:
                last.stop_reason = each.stop
            return [*found, last]
        if (self._job.ids or self._job.logprobs) and not found:
            found.append(chat.ChunkChoice(each.choice, chat.Delta(content="")))
        if self._job.logprobs:
            found[0].logprobs = chat_logprobs(each, self._talk.words)
        if self._job.ids:
            found[0].token_ids = each.ids
        return found

    def _chunk(self, choices: list[chat.ChunkChoice]) -> chat.ChatChunk:
        chunk = chat.ChatChunk(self._id, self._created, self._talk.model, choices)
        chunk.system_fingerprint = self._fingerprint
        return chunk


def _delta(said: Said, calls: int) -> chat.Delta:
    """The growth of a message, after so many calls."""
    match said:
        case Words(text):
            return chat.Delta(content=text)
        case Thought(text):
            return chat.Delta(reasoning_content=text)
        case Call(name, arguments, key):
            function = chat.FunctionDelta(name, arguments)
            return chat.Delta(
                tool_calls=[chat.ToolCallDelta(calls, function, f"call_{key}", "function")]
            )
        case Arguments(text):
            function = chat.FunctionDelta(arguments=text)
            return chat.Delta(tool_calls=[chat.ToolCallDelta(calls - 1, function)])
