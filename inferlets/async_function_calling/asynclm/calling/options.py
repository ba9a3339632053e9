"""How a generation with function calls runs, and what reaches it from outside meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from asynclm.cml.dialect import Dialect
from inferlet.sample import Sampler

GREEDY = Sampler(temperature=0.0)
USER = "user"
POLICIES = ("cheapest", "min-waste", "preserve", "swap", "discard")


class Mode(StrEnum):
    """How calls are made: asynchronously, or the ways it is compared with (AsyncLM, section 6)."""

    SYNC = "sync"  # one call, its result, the next call
    SYNC_PARALLEL = "sync_parallel"  # all calls that are ready in one turn, run concurrently
    ASYNC = "async"  # calls run while the model writes on, interrupts in mid-generation


class Style(StrEnum):
    """The form of the prompt."""

    COMPACT = "compact"
    JSON = "json"


class Script(Protocol):
    """Forced tokens: the model runs and chooses at every step, then the script's token takes the
    place of its choice.
    """

    def next(self, dialect: Dialect, end: int) -> int:
        """The next token; `end` is the one that ends a turn."""

    def arrived(self, identifier: str) -> None:
        """Notes that a call's result is in the context."""

    def task_arrived(self) -> None:
        """Notes a further task of the user."""


@dataclass(frozen=True, slots=True)
class Options:
    """How a generation runs."""

    mode: Mode = Mode.ASYNC
    style: Style | None = None  # of the prompt; None for what suits the model
    sampler: Sampler = GREEDY
    policy: str = "cheapest"  # of the server, for the KV cache in a wait: one of `POLICIES`
    max_tokens: int = 1024  # to generate
    most_value_tokens: int = 256  # of a result; longer ones are cut
    limit: int = 16  # calls that run at once
    timeout: float = 30.0  # seconds for a call
    call_first: bool = False  # whether an answer begins with a call, whatever the model would say
    adapter: str | None = None  # LoRA of the model that all goes through
    script: Script | None = None  # what is written in place of the model's own choice


class Inbox:
    """Messages from outside while the model writes: tasks of the user, words of other agents.

    While it is `open` more may come, so that the generation waits for it at its end.
    """

    def __init__(self, *, open: bool = False) -> None:  # noqa: A002 - the attribute's name
        """Starts empty; keeps messages until a generation takes them."""
        self.open = open
        self._messages: list[tuple[str, str]] = []
        self._sink: Callable[[str, str], None] = lambda *message: self._messages.append(message)
        self._closed: Callable[[], None] = lambda: None

    def put(self, text: str, sender: str = USER) -> None:
        """Adds a message."""
        self._sink(sender, text)

    def close(self) -> None:
        """Tells that no more comes."""
        self.open = False
        self._closed()

    def connect(self, sink: Callable[[str, str], None], closed: Callable[[], None]) -> None:
        """Hands each message, sender and text, to `sink`, and calls `closed` when none comes."""
        self._sink, self._closed = sink, closed
        for message in self._messages:
            sink(*message)
