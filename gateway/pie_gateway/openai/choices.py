"""The choices of an answer that is sent as a whole, put together from events."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from pie_gateway.backend.events import End, Event, Piece, TokenLogprobs


@dataclass
class Whole:
    """One choice."""

    text: str = ""
    tokens: int = 0
    ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    cached: int = 0
    reason: str = "stop"
    stop: str | None = None

    def add(self, event: Piece | End) -> None:
        """Adds what an event tells of it."""
        match event:
            case Piece(_, text, tokens, ids, logprobs):
                self.text += text
                self.tokens += tokens
                self.ids += ids
                self.logprobs += logprobs
            case End(_, reason, stop, cached=cached):
                self.reason, self.stop, self.cached = reason, stop, cached

    @property
    def piece(self) -> Piece:
        """All of it."""
        return Piece(0, self.text, self.tokens, self.ids, self.logprobs)

    @property
    def mean_logprob(self) -> float:
        """Of its tokens, by which the best of several is chosen."""
        return sum(own for own, _ in self.logprobs) / max(1, len(self.logprobs))


async def gather(events: AsyncIterator[Event], count: int) -> list[Whole]:
    """Reads the choices of one generation to their ends."""
    choices = [Whole() for _ in range(count)]
    async for event in events:
        if isinstance(event, Piece | End):
            choices[event.choice].add(event)
    return choices
