"""`POST /v1/responses`."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator
from typing import Any

from starlette.responses import Response

from pie_gateway.backend.events import End, Prompt
from pie_gateway.dialects.splitter import Call, Said, Thought, Words
from pie_gateway.http.answers import event, json_response
from pie_gateway.http.door import Exchange
from pie_gateway.http.streams import stream_response, while_asked
from pie_gateway.openai.response_requests import chat_request
from pie_gateway.openai.talk import Talk, prepare
from pie_gateway.schemas.responses import (
    Output,
    OutputCall,
    OutputMessage,
    OutputReasoning,
    Reasoned,
    ResponsesAnswer,
    ResponsesRequest,
    ResponsesUsage,
    TextDone,
)
from pie_gateway.schemas.usage import PromptDetails


async def responses(exchange: Exchange) -> Response:
    """What follows some input. Nothing is stored."""
    asked = await exchange.read(ResponsesRequest)
    talk = await prepare(exchange, chat_request(asked), "responses")
    building = _Building(exchange.id, asked, talk)
    if asked.stream:
        return await stream_response(exchange, building.stream())

    async def whole() -> ResponsesAnswer:
        async for _ in building.stream():
            pass  # the events build the answer
        return building.answer

    return json_response(await while_asked(exchange, whole))


class _Building:
    """An answer that grows, and the events that tell of it."""

    def __init__(self, name: str, asked: ResponsesRequest, talk: Talk) -> None:
        self.answer = ResponsesAnswer(
            f"resp_{name}",
            int(time.time()),
            asked.model,
            "in_progress",
            [],
            asked.parallel_tool_calls is not False,
            asked.tool_choice or "auto",
            list(asked.tools or []),
            instructions=asked.instructions,
            metadata=asked.metadata,
            temperature=asked.temperature,
            top_p=asked.top_p,
        )
        self._talk = talk
        self._numbers = 0
        self._prompt = 0

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """Server-sent events; the answer is whole at their end."""
        begin = b""
        async for told in self._talk.told():
            match told:
                case Prompt(tokens):
                    self._prompt = tokens
                    begin = self._event("response.created", response=self.answer)
                    begin += self._event("response.in_progress", response=self.answer)
                case End():
                    yield begin + self._close() + self._finish(told)
                case said:
                    yield begin + self._add(said)
                    begin = b""

    def _add(self, said: Said) -> bytes:
        last = self.answer.output[-1] if self.answer.output else None
        match said, last:
            case Words(text), OutputMessage():
                return self._say(last, text)
            case Thought(text), OutputReasoning():
                last.content[0].text += text
                return self._event("response.reasoning_text.delta", **self._place(last), delta=text)
        events = self._close()
        item = _item(said)
        self.answer.output.append(item)
        at = len(self.answer.output) - 1
        events += self._event("response.output_item.added", output_index=at, item=item)
        match said, item:
            case Words(text), OutputMessage():
                part = TextDone("")
                item.content.append(part)
                events += self._event("response.content_part.added", **self._place(item), part=part)
                return events + self._say(item, text)
            case Thought(text), OutputReasoning():
                item.content[0].text = text
                place = self._place(item)
                return events + self._event("response.reasoning_text.delta", **place, delta=text)
            case Call(_, arguments), OutputCall():
                place = {"output_index": at, "item_id": item.id}
                name = "response.function_call_arguments"
                events += self._event(f"{name}.delta", **place, delta=arguments)
                item.arguments = arguments
                events += self._event(f"{name}.done", **place, arguments=arguments, name=item.name)
        return events

    def _say(self, item: OutputMessage, text: str) -> bytes:
        item.content[0].text += text
        place = self._place(item)
        return self._event("response.output_text.delta", **place, delta=text, logprobs=[])

    def _close(self) -> bytes:
        """Events that end the last item."""
        if not self.answer.output:
            return b""
        item = self.answer.output[-1]
        events = b""
        if isinstance(item, OutputMessage):
            item.status = "completed"
            [part] = item.content
            place = self._place(item)
            events += self._event("response.output_text.done", **place, text=part.text, logprobs=[])
            events += self._event("response.content_part.done", **place, part=part)
        at = len(self.answer.output) - 1
        return events + self._event("response.output_item.done", output_index=at, item=item)

    def _finish(self, end: End) -> bytes:
        answer = self.answer
        details = PromptDetails(end.cached)
        answer.usage = ResponsesUsage(self._prompt, end.tokens, self._prompt + end.tokens, details)
        cut = end.reason == "length"
        answer.status = "incomplete" if cut else "completed"
        answer.incomplete_details = {"reason": "max_output_tokens"} if cut else None
        return self._event(f"response.{answer.status}", response=answer)

    def _place(self, item: Output) -> dict[str, Any]:
        at = len(self.answer.output) - 1
        return {"output_index": at, "content_index": 0, "item_id": item.id}

    def _event(self, kind: str, **fields: Any) -> bytes:
        number, self._numbers = self._numbers, self._numbers + 1
        return event({"type": kind, "sequence_number": number, **fields}, kind)


def _item(said: Said) -> Output:
    """The item that something said begins, empty."""
    name = uuid.uuid4().hex[:24]
    match said:
        case Words():
            return OutputMessage(f"msg_{name}", "in_progress", [])
        case Thought():
            return OutputReasoning(f"rs_{name}", [Reasoned("")])
        case Call(function, _):
            return OutputCall(f"fc_{name}", f"call_{name}", function, "")
