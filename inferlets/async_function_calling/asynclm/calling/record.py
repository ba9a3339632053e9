"""The record of a generation with calls: for its client."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from asynclm.tools.executor import CallRecord
from inferlet import runtime
from inferlet.raw import monotonic_now


@dataclass
class Record:
    """Numbers and events of one generation; times are seconds since it began."""

    text: str = ""  # the model's words outside of blocks, since the last interrupt or turn
    said: str = ""  # all of them
    calls: list[CallRecord] = field(default_factory=list)  # in the order of writing
    prompt_tokens: int = 0
    generated_tokens: int = 0  # written by the model, markup included
    injected_tokens: int = 0  # of interrupts and of results' turns
    recomputed_tokens: int = 0  # run again because their KV cache was given up
    interrupts: int = 0  # put in
    traps: int = 0  # waits that the model asked for
    missing_traps: int = 0  # turns that it ended too early, see `Generation`
    pauses: dict[str, int] = field(  # how often each action was taken while it waited
        default_factory=lambda: dict.fromkeys(("preserve", "swap", "discard"), 0)
    )
    waited_seconds: float = 0.0  # in traps, or between turns
    first_token: float | None = None
    last_token: float | None = None
    seconds: float = 0.0  # from the prompt to the end
    token_seconds: float = 0.0  # mean time of a token, waits not counted
    ended: str = "done"  # or what there was too little of: `max_tokens`, `context`
    warnings: list[str] = field(default_factory=list)  # of the answer, in sentences
    timeline: list[tuple[float, str, str]] = field(default_factory=list)  # event, identifier

    def to_json(self) -> dict[str, Any]:
        """All of it as JSON's values, times to the microsecond."""
        found: dict[str, Any] = _rounded({**vars(self), "calls": list(map(vars, self.calls))})
        return found


class Recorder:
    """Keeps a record while a generation runs, and tells its events to one listener."""

    def __init__(self, on_event: Callable[[dict[str, Any]], None] | None = None) -> None:
        """The clock starts now. Events are dicts with `type` and `at`."""
        self.record = Record()
        self._on_event = on_event
        self._start = monotonic_now()

    def now(self) -> float:
        """Seconds since the beginning."""
        return (monotonic_now() - self._start) / 1e9

    def since(self, monotonic_seconds: float) -> float:
        """The same of a time of the monotonic clock."""
        return monotonic_seconds - self._start / 1e9

    def event(self, kind: str, identifier: str = "", **facts: Any) -> float:
        """Notes an event; returns its time."""
        at = self.now()
        self.record.timeline.append((at, kind, identifier))
        if self._on_event is not None:
            told = {"type": kind, "at": round(at, 6), **facts}
            self._on_event({**told, "id": identifier} if identifier else told)
        return at

    def text(self, text: str) -> None:
        """Notes words of the model."""
        self.record.text += text
        self.record.said += text
        if self._on_event is not None:
            self._on_event({"type": "text", "text": text})

    def warn(self, text: str) -> None:
        """Notes what may be wrong with the answer; in the log, too."""
        self.record.warnings.append(text)
        runtime.log(text, "warning")
        if self._on_event is not None:
            self._on_event({"type": "warning", "text": text})

    def call(self, call: CallRecord) -> None:
        """Notes a call that was written."""
        call.written = self.event("call", call.identifier, name=call.name, call=call.call)
        self.record.calls.append(call)

    def tokens(self, count: int) -> None:
        """Notes generated tokens."""
        record, now = self.record, self.now()
        record.generated_tokens += count
        if record.first_token is None:
            record.first_token = now
        record.last_token = now

    def finish(self) -> Record:
        """The record, complete."""
        record = self.record
        record.seconds = self.now()
        if record.generated_tokens and record.last_token is not None:
            busy = record.last_token - record.waited_seconds
            record.token_seconds = max(0.0, busy) / record.generated_tokens
        return record


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    return value
