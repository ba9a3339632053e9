"""`POST /api/chat`, `/api/generate`, `/api/embed`, and the older `/api/embeddings`."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncGenerator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import msgspec
from starlette.responses import Response

from pie_gateway.backend.job import End, Prompt
from pie_gateway.dialects.forms import Call
from pie_gateway.dialects.splitter import Said, Thought, Words
from pie_gateway.http.admission import Exchange
from pie_gateway.http.answers import json_response, stream_response, while_asked
from pie_gateway.http.reading import convert, encode
from pie_gateway.ollama.models import FOREVER, NDJSON, problem_line
from pie_gateway.openai.embeddings import embed as vectors_of
from pie_gateway.openai.embeddings import unit
from pie_gateway.openai.infill import fill_in
from pie_gateway.openai.talk import Talk, prepare
from pie_gateway.problems import Problem, unsupported, wrong
from pie_gateway.problems import asked as asked_for
from pie_gateway.schemas import messages as schema
from pie_gateway.schemas import ollama
from pie_gateway.schemas.chat import ChatRequest, ServerTools, Tool
from pie_gateway.schemas.embeddings import MAX_TEXTS
from pie_gateway.schemas.sampling import SAMPLER, JsonObject, JsonSchema, NamedSchema, same


async def chat(exchange: Exchange) -> Response:
    """The next message of a conversation."""
    asked = await exchange.read(ollama.OllamaChatRequest)
    if not asked.messages:
        return await _loaded(exchange, asked, ollama.OllamaMessage("assistant"))
    wanted = await exchange.by_size(chat_request, asked)
    talk = await prepare(exchange, wanted, effort_field="think", clamp=True)
    await keep(exchange, asked.model, asked.keep_alive)
    return await _Answer(talk, is_chat=True).response(exchange)


async def generate(exchange: Exchange) -> Response:
    """The text that follows a prompt."""
    asked = await exchange.read(ollama.OllamaGenerateRequest)
    if not asked.prompt:
        return await _loaded(exchange, asked, None)
    system = [ollama.OllamaMessage("system", asked.system)] if asked.system else []
    wanted = _request(
        asked, [*system, ollama.OllamaMessage("user", asked.prompt, images=asked.images)], []
    )
    talk = await prepare(exchange, wanted, effort_field="think", clamp=True)
    await keep(exchange, asked.model, asked.keep_alive)
    if asked.raw or asked.suffix:
        if asked.system or asked.images or wanted.reasoning_effort not in (None, "none"):
            raise Problem(400, "`raw`, `suffix`: the prompt is taken as it is", param="raw")
        job = msgspec.structs.replace(talk.job, messages=None, template=None, text=asked.prompt)
        if asked.suffix:
            stop_tokens = (await exchange.backend.catalog.describe(job.model))["stop_tokens"]
            fill_in([job], asked.suffix, talk.model, stop_tokens, talk.words)
        talk = replace(talk, job=job, generation=await exchange.generation("completions", job))
    return await _Answer(talk, is_chat=False).response(exchange)


async def embed(exchange: Exchange) -> Response:
    """Embeddings, of length 1; the end of a text that is too long is cut off."""
    begun = time.perf_counter_ns()
    asked = await exchange.read(ollama.OllamaEmbedRequest)
    texts = [asked.input] if isinstance(asked.input, str) else asked.input
    if len(texts) > MAX_TEXTS:
        raise unsupported("input", f"{MAX_TEXTS} texts at most")
    if not any(texts):  # is how a model is loaded
        name = await exchange.backend.catalog.find(asked.model)
        await keep(exchange, asked.model, asked.keep_alive)
        return json_response(ollama.OllamaEmbeddings(name.id, [], 0, 0, 0))
    most = None if asked.truncate is False else -1
    made = await vectors_of(exchange, asked.model, texts, most, asked.dimensions or None)
    await keep(exchange, asked.model, asked.keep_alive)
    taken = time.perf_counter_ns() - begun
    said = made.name.id, unit(made.vectors).tolist(), taken, 0, made.usage.prompt_tokens
    return json_response(ollama.OllamaEmbeddings(*said, warning=made.warning))


async def embed_one(exchange: Exchange) -> Response:
    """The embedding of one text, of any length."""
    asked = await exchange.read(ollama.OllamaEmbedOneRequest)
    made = await vectors_of(exchange, asked.model, [asked.prompt], -1)
    return json_response(ollama.OllamaEmbedding(made.vectors[0].tolist(), made.warning))


async def keep(exchange: Exchange, model: str, keep_alive: str | float | None) -> None:
    """Has a model by request stay so long after its last use; of operators alone."""
    if keep_alive not in (None, "") and exchange.is_operator:
        catalog = exchange.backend.catalog
        name, seconds = await catalog.look_up(model), kept_seconds(keep_alive)
        await catalog.load(name, seconds)


async def _loaded(
    exchange: Exchange, asked: ollama.OllamaRequest, message: ollama.OllamaMessage | None
) -> Response:
    """The answer to a request that only wants the model loaded, or, kept for no time, unloaded."""
    catalog, reason = exchange.backend.catalog, "load"
    found = await catalog.look_up(asked.model)
    if asked.keep_alive not in (None, "") and kept_seconds(asked.keep_alive) == 0.0:
        reason = "unload"
        if (await catalog.describe(found.model)).get("on_demand"):
            await asked_for(exchange.client.unload_model(found.model))
    else:
        await catalog.load(found)
        await keep(exchange, asked.model, asked.keep_alive)
    chunk = ollama.OllamaChunk(model=found.id, created_at=_now(), done=True, done_reason=reason)
    chunk.message, chunk.response = message, None if message is not None else ""
    return json_response(chunk)


class _Answer:
    def __init__(self, talk: Talk, *, is_chat: bool) -> None:
        self._talk = talk
        self._is_chat = is_chat
        self._begun = time.perf_counter_ns()
        self._read = self._begun  # when the prompt was
        self._prompt = 0  # its tokens

    async def response(self, exchange: Exchange) -> Response:
        if self._talk.job.stream:
            beat = _line(self._chunk(done=False))
            answer = stream_response(exchange, self._lines(), problem_line, beat)
            answer.headers["content-type"] = NDJSON
            return answer
        return json_response(await while_asked(exchange, self._whole))

    async def _lines(self) -> AsyncGenerator[bytes, None]:
        async for part in self._parts():
            if isinstance(part, End):
                yield _line(self._last(part, []))
            else:
                yield _line(self._chunk(part, done=False))

    async def _whole(self) -> ollama.OllamaChunk:
        said: list[Said] = []
        async for part in self._parts():
            if isinstance(part, End):
                return self._last(part, said)
            said.append(part)
        raise Problem(503, "the instance was lost", code="unreachable")

    async def _parts(self) -> AsyncGenerator[Said | End, None]:
        """The words, thoughts and calls, and the end; notes when the prompt has been read."""
        async for part in self._talk.parts():
            if isinstance(part, Prompt):
                self._prompt, self._read = part.tokens, time.perf_counter_ns()
                continue
            for said in part.said:
                yield said
            if isinstance(part.event, End):
                yield part.event

    def _last(self, end: End, said: list[Said]) -> ollama.OllamaChunk:
        now = time.perf_counter_ns()
        chunk = self._chunk(*said, done=True)
        chunk.done_reason = "length" if end.reason == "length" else "stop"
        chunk.total_duration = now - self._begun
        chunk.load_duration = 0
        chunk.prompt_eval_count = self._prompt
        chunk.prompt_eval_duration = self._read - self._begun
        chunk.eval_count, chunk.eval_duration = end.tokens, now - self._read
        return chunk

    def _chunk(self, *said: Said, done: bool) -> ollama.OllamaChunk:
        chunk = ollama.OllamaChunk(model=self._talk.model, created_at=_now(), done=done)
        text = "".join(each.text for each in said if isinstance(each, Words))
        thought = "".join(each.text for each in said if isinstance(each, Thought)) or None
        if not self._is_chat:
            chunk.response, chunk.thinking = text, thought
            return chunk
        calls = [_call(each) for each in said if isinstance(each, Call)]
        chunk.message = ollama.OllamaMessage("assistant", text, thought, tool_calls=calls or None)
        return chunk


def _call(call: Call) -> ollama.OllamaCall:
    return ollama.OllamaCall(
        ollama.OllamaFunction(call.name, msgspec.json.decode(call.arguments or "{}"))
    )


def _line(value: Any) -> bytes:
    return encode(value) + b"\n"


def _now() -> str:
    return datetime.now(UTC).isoformat()


_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3}
_PNG = "iVBOR"  # how one begins in base64


def kept_seconds(asked: str | float) -> float:
    """Seconds of `keep_alive`, as `1h30m`; negative: always. Raises `Problem`: 400, it is none."""
    text = str(asked).strip()
    parts = re.findall(r"(\d+(?:\.\d+)?)(ms|h|m|s)", text[:50])
    if re.fullmatch(r"-?\d{1,20}(\.\d{1,20})?", text):
        seconds = float(text)
    elif parts and "".join(map("".join, parts)) == text.lstrip("-"):
        seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    else:
        raise wrong("keep_alive", f"{text[:50]!r} is no time such as 5m")
    return FOREVER if text.startswith("-") else min(seconds, FOREVER)


def chat_request(asked: ollama.OllamaChatRequest) -> ChatRequest:
    """A chat as OpenAI has it. Raises `Problem`: 400 naming the option that is wrong."""
    tools: list[Tool | ServerTools] = [Tool(each.function) for each in asked.tools or []]
    return _request(asked, asked.messages, tools)


def _request(
    asked: ollama.OllamaRequest,
    messages: list[ollama.OllamaMessage],
    tools: list[Tool | ServerTools],
) -> ChatRequest:
    beside = {name: getattr(asked, name) for name in (*SAMPLER, "num_predict")}
    given = {name: value for name, value in beside.items() if value is not None}
    given |= asked.options or {}
    options: ollama.OllamaOptions = convert(given, ollama.OllamaOptions, "options")
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


def _messages(given: list[ollama.OllamaMessage]) -> list[schema.Message]:
    messages: list[schema.Message] = []
    for each in given:
        match each.role:
            case "system":
                messages.append(schema.SystemMessage(each.content))
            case "user":
                images = [_image(data) for data in each.images or []]
                text = schema.TextPart(each.content)
                messages.append(schema.UserMessage([text, *images] if images else each.content))
            case "tool":
                name = each.tool_name or each.name
                messages.append(schema.ToolMessage(each.content, each.tool_call_id, name))
            case "assistant":
                message = schema.AssistantMessage(each.content, reasoning_content=each.thinking)
                message.tool_calls = [
                    schema.GivenCall(schema.GivenFunction(name, arguments), call.id)
                    for call in each.tool_calls or []
                    for name, arguments in [(call.function.name, call.function.arguments)]
                ]
                messages.append(message)
    return messages


def _image(data: str) -> schema.ImagePart:
    kind = "png" if data.startswith(_PNG) else "jpeg"
    return schema.ImagePart(schema.ImageAddress(f"data:image/{kind};base64,{data}"))
