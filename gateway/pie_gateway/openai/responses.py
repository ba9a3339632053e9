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
from pie_gateway.openai.building import Building
from pie_gateway.openai.response_requests import chat_request, items_of
from pie_gateway.openai.stored import items_before, keep, with_items_of_responses
from pie_gateway.openai.talk import Talk, prepare
from pie_gateway.problems import Problem
from pie_gateway.schemas import responses as schema
from pie_gateway.schemas.chat import ChatRequest
from pie_gateway.schemas.sampling import PromptDetails


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
    """A response that grows by items."""

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
            instructions=asked.instructions,
            metadata=asked.metadata,
            temperature=asked.temperature,
            top_p=asked.top_p,
            text=asked.text or schema.TextSettings(schema.TextFormat("text")),
            max_output_tokens=asked.max_output_tokens,
            reasoning=asked.reasoning or schema.Reasoning(),
            store=asked.store is not False,
            previous_response_id=asked.previous_response_id,
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
