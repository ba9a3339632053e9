"""`POST /v1/chat/completions`."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator

from msgspec import UNSET
from starlette.responses import Response

from pie_gateway.backend.events import End, Event, Piece, Prompt
from pie_gateway.backend.generation import Generation
from pie_gateway.backend.job import Job
from pie_gateway.backend.vocabulary import Vocabulary
from pie_gateway.http.answers import event, json_response
from pie_gateway.http.door import Exchange
from pie_gateway.http.streams import DONE, stream_response, while_asked
from pie_gateway.openai import logprobs
from pie_gateway.openai.choices import Whole, gather
from pie_gateway.openai.conversation import render
from pie_gateway.openai.sampling import check_stream_options, fill_ends, grammar, sampling
from pie_gateway.problems import Problem, unsupported
from pie_gateway.schemas.chat import (
    AnswerMessage,
    ChatAnswer,
    ChatChoice,
    ChatChunk,
    ChatRequest,
    ChunkChoice,
    Delta,
)
from pie_gateway.schemas.usage import usage


async def chat_completions(exchange: Exchange) -> Response:
    """The next message of a conversation."""
    asked = await exchange.read(ChatRequest)
    with_usage = check_stream_options(asked)
    answer = await _prepare(exchange, asked)
    if asked.stream:
        return await stream_response(exchange, answer.stream(with_usage))
    return json_response(await while_asked(exchange, answer.whole))


async def _prepare(exchange: Exchange, asked: ChatRequest) -> _Answer:
    """Checks a request.

    Raises:
        Problem: 400 or 404, naming what is wrong.
    """
    backend = exchange.backend
    name = await backend.catalog.find(asked.model)
    model = await backend.catalog.describe(name.model)
    words = await backend.vocabulary(name.model)
    if asked.top_logprobs and not asked.logprobs:
        raise unsupported("top_logprobs", "it goes with `logprobs: true`")
    if asked.tools is not None:
        raise unsupported("tools", "not supported yet")
    messages, images = render(asked.messages)
    if images and model["image_rule"] is None:
        raise Problem(400, f"`messages`: {name.model} reads no images", param="messages")
    job = Job(
        model=name.model,
        adapter=name.adapter,
        sampler=sampling(asked, asked.top_logprobs or 0),
        messages=messages,
        cue=asked.add_generation_prompt is not False,
        images=len(images),
        choices=asked.n or 1,
        max_tokens=asked.max_completion_tokens or asked.max_tokens,
        logprobs=bool(asked.logprobs),
        ids=bool(asked.return_token_ids),
        stream=bool(asked.stream),
        grammar=grammar(asked),
    )
    fill_ends(job, asked, model["stop_tokens"], words)
    generation = await exchange.generation("chat", job, images)
    return _Answer(f"chatcmpl-{exchange.id}", asked, job, generation, words)


class _Answer:
    """The answer to one request."""

    def __init__(
        self, name: str, asked: ChatRequest, job: Job, generation: Generation, words: Vocabulary
    ) -> None:
        self._id = name
        self._asked = asked
        self._job = job
        self._generation = generation
        self._words = words
        self._created = int(time.time())

    async def whole(self) -> ChatAnswer:
        """All of it at once."""
        async with self._generation as generation:
            prompt = await generation.prompt()
            wholes = await gather(generation.events(), self._job.choices)
        return ChatAnswer(
            self._id,
            self._created,
            self._asked.model,
            [self._choice(at, whole) for at, whole in enumerate(wholes)],
            usage(prompt.tokens, sum(whole.tokens for whole in wholes)),
            prompt_token_ids=prompt.ids if self._job.ids else UNSET,
        )

    def _choice(self, at: int, whole: Whole) -> ChatChoice:
        told = logprobs.of_chat(whole.piece, self._words) if self._job.logprobs else None
        return ChatChoice(
            at,
            AnswerMessage(whole.text),
            whole.reason,
            told,
            whole.stop,
            whole.ids if self._job.ids else UNSET,
        )

    async def stream(self, with_usage: bool) -> AsyncGenerator[bytes, None]:
        """Its parts as server-sent events; the first one only once text comes."""
        async with self._generation as generation:
            prompt = await generation.prompt()
            begun: set[int] = set()
            tokens = 0
            async for each in generation.events():
                if isinstance(each, Piece):
                    tokens += each.tokens
                for choice in self._parts(each, begun):
                    yield event(self._chunk([choice], prompt))
            if with_usage:
                last = self._chunk([])
                last.usage = usage(prompt.tokens, tokens)
                yield event(last)
            yield DONE

    def _parts(self, each: Event, begun: set[int]) -> list[ChunkChoice]:
        """What an event adds to its choice."""
        parts: list[ChunkChoice] = []
        if not isinstance(each, Prompt) and each.choice not in begun:
            begun.add(each.choice)
            parts.append(ChunkChoice(each.choice, Delta(role="assistant", content="")))
        match each:
            case Piece(at, text, _, ids):
                told = logprobs.of_chat(each, self._words) if self._job.logprobs else None
                part = ChunkChoice(at, Delta(content=text), logprobs=told)
                if self._job.ids:
                    part.token_ids = ids
                parts.append(part)
            case End(at, reason, stop):
                part = ChunkChoice(at, Delta(), reason)
                if stop is not None:
                    part.stop_reason = stop
                parts.append(part)
        return parts

    def _chunk(self, choices: list[ChunkChoice], prompt: Prompt | None = None) -> ChatChunk:
        chunk = ChatChunk(self._id, self._created, self._asked.model, choices)
        first = choices and choices[0].delta.role is not UNSET
        if prompt is not None and first and self._job.ids:
            chunk.prompt_token_ids = prompt.ids
        return chunk
