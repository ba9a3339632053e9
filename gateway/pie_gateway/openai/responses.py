"""`POST /v1/responses`."""

from __future__ import annotations

import time
import uuid
import zlib
from typing import Any

from starlette.responses import Response

from pie_gateway.backend.job import End
from pie_gateway.dialects.forms import Call
from pie_gateway.dialects.splitter import Said, Thought, Words
from pie_gateway.dialects.written import Arguments
from pie_gateway.http.admission import Exchange
from pie_gateway.http.answers import event, json_response, while_asked
from pie_gateway.http.reading import convert
from pie_gateway.openai.building import Building
from pie_gateway.openai.conversation import merged_up
from pie_gateway.openai.stored import items_before, keep, with_items_of_responses
from pie_gateway.openai.talk import Talk, prepare
from pie_gateway.problems import Problem, wrong
from pie_gateway.schemas import chat
from pie_gateway.schemas import messages as openai
from pie_gateway.schemas import responses as schema
from pie_gateway.schemas.chat import ChatRequest
from pie_gateway.schemas.sampling import (
    JsonObject,
    JsonSchema,
    NamedSchema,
    PromptDetails,
    ResponseFormat,
    same,
)

# Fields of a request that the answer has, and that a chat has.
_SAME = (
    *("instructions", "metadata", "temperature", "top_p"),
    *("max_output_tokens", "previous_response_id"),
)
_OF_CHAT = ("stream", "temperature", "top_p", "parallel_tool_calls", "prompt_cache_key", "user")


async def responses(exchange: Exchange) -> Response:
    """The response to some input, or an earlier response; it is kept for later ones."""
    asked = await exchange.read(schema.ResponsesRequest)
    items, wanted = await _read(exchange, asked)
    talk = await _prepared(exchange, wanted)
    answer = _Response(exchange, asked, items, talk)
    return await answer.response(exchange, answer.failed)


async def input_tokens(exchange: Exchange) -> Response:
    """The number of tokens of a conversation."""
    asked = await exchange.read(schema.ResponsesRequest)
    _, wanted = await _read(exchange, asked)
    talk = await _prepared(exchange, wanted, counts=True)
    tokens = (await while_asked(exchange, talk.prompt)).tokens
    return json_response({"object": "response.input_tokens", "input_tokens": tokens})


async def _read(
    exchange: Exchange, asked: schema.ResponsesRequest
) -> tuple[list[dict[str, Any]], ChatRequest]:
    """The conversation, its input last, and the request for what comes behind it."""

    def read() -> tuple[list[dict[str, Any]], ChatRequest]:
        before = items_before(exchange, asked.previous_response_id)
        items = [*before, *with_items_of_responses(exchange, items_of(asked))]
        return items, chat_request(asked, items)

    return await exchange.aside.run(exchange.user, read)


async def _prepared(exchange: Exchange, wanted: ChatRequest, *, counts: bool = False) -> Talk:
    return await prepare(exchange, wanted, "responses", None, clamp=True, counts=counts)


class _Response(Building):
    def __init__(
        self,
        exchange: Exchange,
        asked: schema.ResponsesRequest,
        items: list[dict[str, Any]],
        talk: Talk,
    ) -> None:
        super().__init__(talk)
        self._exchange = exchange
        self._items = items
        self.answer = schema.ResponsesAnswer(
            f"resp_{exchange.id}",
            int(time.time()),
            talk.model,
            "in_progress",
            [],
            asked.parallel_tool_calls is not False,
            asked.tool_choice or "auto",
            list(asked.tools or []),
            text=asked.text or schema.TextSettings(schema.TextFormat("text")),
            reasoning=asked.reasoning or schema.Reasoning(),
            store=asked.store is not False,
            **same(asked, *_SAME),
        )
        self._numbers = 0
        self._prompt = 0
        self._compressor = zlib.compressobj(1, zlib.DEFLATED, 12, 4)  # of 24 KiB
        self._events = bytearray()  # so far, compressed

    def _begin(self, prompt: int) -> bytes:
        self._prompt = prompt
        created = self._event("response.created", response=self.answer)
        return created + self._event("response.in_progress", response=self.answer)

    def _open(self, said: Said) -> bytes:
        item = _item(said)
        self.answer.output.append(item)
        added = self._event("response.output_item.added", output_index=self._at, item=item)
        if isinstance(item, schema.OutputMessage):
            part = schema.TextDone("")
            item.content.append(part)
            added += self._event("response.content_part.added", **self._place(item), part=part)
        return added

    def _go_on(self, said: Said) -> bytes:
        item = self.answer.output[-1]
        match said, item:
            case Words(text), schema.OutputMessage():
                item.content[0].text += text
                more = {**self._place(item), "delta": text, "logprobs": []}
                return self._event("response.output_text.delta", **more)
            case Thought(text), schema.OutputReasoning():
                item.content[0].text += text
                return self._event("response.reasoning_text.delta", **self._place(item), delta=text)
            case ((Call(_, text, _) | Arguments(text)), schema.OutputCall()):
                item.arguments += text
                place = {"output_index": self._at, "item_id": item.id}
                name = "response.function_call_arguments.delta"
                return self._event(name, **place, delta=text) if text else b""
        raise AssertionError("what is said opens an item of its kind")

    def _close(self, cut: bool) -> bytes:
        item = self.answer.output[-1]
        events = b""
        item.status = "incomplete" if cut else "completed"
        if isinstance(item, schema.OutputMessage):
            [part] = item.content
            place = self._place(item)
            events += self._event("response.output_text.done", **place, text=part.text, logprobs=[])
            events += self._event("response.content_part.done", **place, part=part)
        if isinstance(item, schema.OutputCall):
            whole = {"arguments": item.arguments, "name": item.name}
            place = {"output_index": self._at, "item_id": item.id}
            events += self._event("response.function_call_arguments.done", **place, **whole)
        return events + self._event("response.output_item.done", output_index=self._at, item=item)

    def _finish(self, end: End) -> bytes:
        answer = self.answer
        details = PromptDetails(end.cached)
        answer.usage = schema.ResponsesUsage(
            self._prompt, end.tokens, self._prompt + end.tokens, details
        )
        cut = end.reason == "length"
        answer.status = "incomplete" if cut else "completed"
        answer.incomplete_details = {"reason": "max_output_tokens"} if cut else None
        last = self._event(f"response.{answer.status}", response=answer)
        if answer.store:
            events = bytes(self._events + self._compressor.flush())
            keep(self._exchange, answer.id, answer, [*self._items, *answer.output], events)
        return last

    def failed(self, problem: Problem) -> bytes:
        """The end of a stream that cannot go on: the answer so far, and what clients raise."""
        code, message = problem.code or problem.kind, problem.message
        self.answer.status, self.answer.error = "failed", {"code": code, "message": message}
        failed = self._event("response.failed", response=self.answer)
        more = {"code": code, "message": message, "param": problem.param}
        return failed + self._event("error", **more, error=problem.body.error)

    @property
    def _at(self) -> int:
        return len(self.answer.output) - 1

    def _place(self, item: schema.Output) -> dict[str, Any]:
        return {"output_index": self._at, "content_index": 0, "item_id": item.id}

    def _event(self, kind: str, **fields: Any) -> bytes:
        number, self._numbers = self._numbers, self._numbers + 1
        told = event({"type": kind, "sequence_number": number, **fields}, kind)
        self._events += self._compressor.compress(told)
        return told


def _item(said: Said) -> schema.Output:
    """The item that something said begins, empty."""
    name = uuid.uuid4().hex[:24]
    match said:
        case Words():
            return schema.OutputMessage(f"msg_{name}", "in_progress", [])
        case Thought():
            return schema.OutputReasoning(f"rs_{name}", [schema.Reasoned("")])
        case Call(function, _, key):
            return schema.OutputCall(f"fc_{name}", f"call_{key}", function, "")
        case Arguments():
            raise AssertionError("arguments go on with their call's item")


def items_of(asked: schema.ResponsesRequest) -> list[dict[str, Any]]:
    """The input as items."""
    if isinstance(asked.input, str):
        return [{"type": "message", "role": "user", "content": asked.input}]
    return asked.input


def chat_request(asked: schema.ResponsesRequest, items: list[dict[str, Any]]) -> chat.ChatRequest:
    """The same as a chat, its input last. Raises `Problem`: 400 naming what is wrong."""
    messages: list[openai.Message] = []
    if asked.instructions:
        messages.append(openai.SystemMessage(asked.instructions))
    before = len(items) - len(items_of(asked))
    for at, given in enumerate(items):
        item = {**given, "type": given.get("type") or "message"}
        where = f"input[{at - before}]"
        found: schema.Item = convert(item, schema.Item, where)
        _add(messages, found, where)
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
        **same(asked, *_OF_CHAT),
    )


def _choice(asked: Any) -> Any:
    match asked:
        case schema.FlatChoice(name):
            return chat.NamedTool(chat.FunctionName(name))
        case schema.FlatAllowed(mode, tools):
            return chat.AllowedTools(chat.Allowed(mode, [_choice(tool) for tool in tools]))
    return asked


def _add(messages: list[openai.Message], item: schema.Item, where: str) -> None:
    last = messages[-1] if messages else None
    match item:
        case schema.FunctionOutput(call, output):
            # Templates look for images in the user's messages.
            images = [part for part in output if isinstance(part, schema.InputImage)]
            rest = output if isinstance(output, str) else [p for p in output if p not in images]
            # Results of one turn stay together.
            messages.insert(
                len(messages) - isinstance(last, openai.UserMessage),
                openai.ToolMessage(_text(rest), call),
            )
            if images:
                messages.append(openai.PlacedMessage(_parts(images), where=where))
        case schema.FunctionCall(call, name, arguments):  # calls of one turn are one message
            if not isinstance(last, openai.AssistantMessage):
                messages.append(last := openai.AssistantMessage(""))
            made = openai.GivenCall(openai.GivenFunction(name, arguments), call)
            last.tool_calls = [*(last.tool_calls or []), made]
        case schema.InputReasoning(content):
            if content:  # else it is encrypted
                thought = "".join(part.text for part in content)
                messages.append(openai.AssistantMessage("", reasoning_content=thought))
        case schema.InputMessage("assistant", content):  # what was thought before is of its turn
            if not isinstance(last, openai.AssistantMessage) or last.content or last.tool_calls:
                messages.append(last := openai.AssistantMessage(""))
            last.content = _text(content)
        case schema.InputMessage("user", content):
            messages.append(openai.PlacedMessage(_parts(content), where=where))
        case schema.InputMessage(_, content):
            messages.append(openai.SystemMessage(_text(content)))


def _parts(content: Any) -> str | list[openai.TextPart | openai.ImagePart]:
    if isinstance(content, str):
        return content
    return [
        openai.ImagePart(openai.ImageAddress(part.image_url, part.detail))
        if isinstance(part, schema.InputImage)
        else openai.TextPart(part.text)
        for part in content
    ]


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if any(isinstance(part, schema.InputImage) for part in content):
        raise wrong("input", "only the user's messages have images")
    return "\n".join(
        part.refusal if isinstance(part, openai.RefusalPart) else part.text for part in content
    )


def _format(asked: schema.TextFormat) -> ResponseFormat | None:
    if asked.type == "json_object":
        return JsonObject()
    if asked.type == "json_schema":
        return JsonSchema(NamedSchema(asked.name or "answer", asked.schema, strict=asked.strict))
    return None
