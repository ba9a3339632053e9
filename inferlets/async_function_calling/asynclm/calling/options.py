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
    """How a generation runs.

    Attributes:
        mode: see `Mode`.
        style: of the prompt; None for what suits the model.
        sampler: how tokens are chosen.
        policy: of the server, what becomes of the KV cache in a wait: one of `traps.POLICIES`.
        max_tokens: most tokens to generate.
        most_value_tokens: of a result; longer ones are cut.
        limit: calls that run at once.
        timeout: seconds for a call.
        call_first: whether an answer begins with a call, whatever the model would say.
        adapter: LoRA adapter of the model that all goes through.
        script: what is written in place of the model's own choice, see `Script`.
    """

    mode: Mode = Mode.ASYNC
    style: Style | None = None
    sampler: Sampler = GREEDY
    policy: str = "cheapest"
    max_tokens: int = 1024
    most_value_tokens: int = 256
    limit: int = 16
    timeout: float = 30.0
    call_first: bool = False
    adapter: str | None = None
    script: Script | None = None


class Inbox:
    """Messages from outside while the model writes: tasks of the user, words of other agents.

    Attributes:
        open: whether more may come, so that the generation waits for it at its end.
    """

    def __init__(self, *, open: bool = False) -> None:  # noqa: A002 - the attribute's name
        """Starts empty; keeps messages until a generation takes them."""
        self.open = open
        self._messages: list[tuple[str, str]] = []
        self._sink: Callable[[str, str], None] | None = None
        self._closed: Callable[[], None] | None = None

    def put(self, text: str, sender: str = USER) -> None:
        """Adds a message."""
        if self._sink is None:
            self._messages.append((sender, text))
        else:
            self._sink(sender, text)

    def close(self) -> None:
        """Tells that no more comes."""
        self.open = False
        if self._closed is not None:
            self._closed()

    def connect(self, sink: Callable[[str, str], None], closed: Callable[[], None]) -> None:
        """Hands each message from now on to `sink`, and calls `closed` when no more comes."""
        self._sink, self._closed = sink, closed

    def disconnect(self) -> None:
        """Ends `connect`."""
        self._sink = self._closed = None

    def earlier(self) -> list[tuple[str, str]]:
        """Senders and texts of the messages that came before `connect`."""
        return self._messages
