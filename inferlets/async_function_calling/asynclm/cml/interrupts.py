"""The interrupt manager: queues what the model is to be told and makes it into tokens.

AsyncLM, section 5.3. Whatever a result looks like, it can't become a call, an interrupt or a turn:
markers and special tokens in it are escaped, and none is left among its tokens.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from asynclm.cml.dialect import Dialect, Marker

CHARACTERS_PER_TOKEN = 8  # of a value that is tokenized before it is cut: more than any text has
NOTE_TOKENS = 48  # room for the note that a value is cut


class NoRoom(ValueError):
    """There is no room for an interrupt in the model's context."""


@dataclass(frozen=True, slots=True)
class Interrupt:
    """Something the model is told."""

    identifier: str  # of the call that it answers, or `user`, or `agent`
    value: str
    length: int = 0  # characters of the value before something cut it already; 0 if nothing has
    refuses: bool = False  # it says why a call was not made; another may have its identifier


class InterruptManager:
    """Holds interrupts until they may be put in; hands each out once, in order of arrival."""

    def __init__(self, dialect: Dialect, *, most_tokens: int = 512) -> None:
        """Starts empty; values of more than `most_tokens` are cut, with a note."""
        self._dialect = dialect
        self._most_tokens = most_tokens
        self._queue: deque[Interrupt] = deque()
        self._news: asyncio.Event | None = None  # while a task waits

    @property
    def pending(self) -> int:
        """Interrupts that wait to be put in."""
        return len(self._queue)

    def push(self, interrupt: Interrupt) -> None:
        """Adds one."""
        self._queue.append(interrupt)
        if self._news is not None:
            self._news.set()

    def wake(self) -> None:
        """Ends a `wait`, if there is one, though nothing is pending: nothing will come."""
        if self._news is not None:
            self._news.set()

    async def wait(self) -> None:
        """Returns when at least one is pending, or at `wake`."""
        if self._queue:
            return
        self._news = asyncio.Event()
        try:
            await self._news.wait()
        finally:
            self._news = None

    def take(self) -> list[Interrupt]:
        """Hands out all that are pending."""
        taken = list(self._queue)
        self._queue.clear()
        return taken

    def tokens(self, interrupts: Sequence[Interrupt], *, room: int | None = None) -> list[int]:
        """The blocks of interrupts, one after the other, their values cut so that all have `room`.

        Raises `NoRoom` if not even their beginnings have.
        """
        tokens: list[int] = []
        for number, interrupt in enumerate(interrupts):
            head = self._dialect.encode_block((Marker.INTR, interrupt.identifier, Marker.HEAD))
            tail = self._dialect.encode_block((Marker.END,))
            most = self._most_tokens
            if room is not None:
                share = (room - len(tokens)) // (len(interrupts) - number)
                most = min(most, share - len(head) - len(tail))
            if most < 1:
                raise NoRoom(f"{room} tokens are left of the model's context for what it is told")
            tokens += head + self.value_tokens(interrupt, most) + tail
        return tokens

    def value_tokens(self, interrupt: Interrupt, most: int) -> list[int]:
        """At most `most` tokens of an interrupt's value, none of them special; cut with a note."""
        value = interrupt.value
        length = interrupt.length or len(value)
        short = value[: most * CHARACTERS_PER_TOKEN]
        tokens = self._dialect.encode_text(short)
        if len(tokens) <= most and len(short) == length:
            return tokens
        keep = max(0, most - NOTE_TOKENS)
        kept = self._dialect.codec.decode(tokens[:keep]).rstrip("\N{REPLACEMENT CHARACTER}")
        note = f"... (cut: {len(kept)} of {length} characters)"
        if kept.startswith('"'):  # so that the text ends before the note
            note = '"' + note
        # Decoded text of escapes reads as escapes, so nothing in it has become a marker again.
        return self._dialect.encode_text(kept + note)[:most]
