"""An answer with one choice that grows part by part, and the events of its growth."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable
from typing import Any

from starlette.responses import Response

from pie_gateway.backend.job import End, Prompt
from pie_gateway.dialects.forms import Call
from pie_gateway.dialects.splitter import Said
from pie_gateway.dialects.written import Arguments
from pie_gateway.http.admission import Exchange
from pie_gateway.http.answers import json_response, stream_response, while_asked
from pie_gateway.openai.talk import Talk
from pie_gateway.problems import Problem


class Building(ABC):
    """Builds the answer of one API: its parts are words, thoughts and calls, one open at a time.

    Each of the methods changes `answer` and gives the server-sent events of the change.
    """

    answer: Any
    beat: bytes | None = None  # what breaks a silence of the stream

    def __init__(self, talk: Talk) -> None:
        """Takes the talk whose parts it is built from."""
        self._talk = talk
        self._kind: type[Said] | None = None  # of the open part

    async def response(
        self, exchange: Exchange, on_problem: Callable[[Problem], bytes] | None = None
    ) -> Response:
        """The events, or the answer once it is whole, as the request wants it. Raises `Problem`: it
        cannot be answered. Raises `ClientDisconnect`: the client has left.
        """
        if self._talk.job.stream:
            beat = {} if self.beat is None else {"beat": self.beat}
            return stream_response(exchange, self._stream(exchange), on_problem, **beat)

        async def whole() -> Any:
            async for _ in self._stream(exchange):
                pass  # the events build the answer
            return self.answer

        return await exchange.by_size(json_response, await while_asked(exchange, whole))

    async def _stream(self, exchange: Exchange) -> AsyncGenerator[bytes, None]:
        begin = b""  # goes with the first text: an error before it has its status
        async for part in self._talk.parts(pieces=self._talk.job.stream):
            if isinstance(part, Prompt):
                begin = await exchange.by_size(self._begin, part.tokens)
                continue
            for said in part.said:
                goes_on = type(said) is self._kind or isinstance(said, Arguments)
                if isinstance(said, Call) or not goes_on:
                    begin += self._closed() + self._open(said)
                    self._kind = type(said)
                yield begin + self._go_on(said)
                begin = b""
            if isinstance(end := part.event, End):
                closed = self._closed(end.reason == "length")
                yield begin + closed + await exchange.by_size(self._finish, end)

    def _closed(self, cut: bool = False) -> bytes:
        return b"" if self._kind is None else self._close(cut)

    @abstractmethod
    def _begin(self, prompt: int) -> bytes:
        """The prompt of so many tokens has been read."""

    @abstractmethod
    def _open(self, said: Said) -> bytes:
        """Something said begins a part, which is empty yet."""

    @abstractmethod
    def _go_on(self, said: Said) -> bytes:
        """The open part gets what is said."""

    @abstractmethod
    def _close(self, cut: bool) -> bytes:
        """The open part is whole, or as far as it has come when the text was cut."""

    @abstractmethod
    def _finish(self, end: End) -> bytes:
        """All is said."""
