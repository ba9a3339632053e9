"""The record of a generation with calls: for its client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from inferlet import runtime
from inferlet.raw import monotonic_now


class CallRecord:
    """One call; times are seconds since the generation began.

    Attributes:
        identifier, name, call: as the model wrote them; the first is empty if it expects no answer.
        result: the value as text, None if it never came.
        failed: whether that is an error.
        written: when its block was closed.
        started: when it began to run.
        ended: when its result was there.
        delivered: when that was put into the context.
    """

    def __init__(self, identifier: str, name: str, call: str, written: float) -> None:
        """A call that has been written and has not begun to run."""
        self.identifier = identifier
        self.name = name
        self.call = call
        self.written = written
        self.result: str | None = None
        self.failed = False
        self.started: float | None = None
        self.ended: float | None = None
        self.delivered: float | None = None


class Record:
    """Numbers and events of one generation.

    Attributes:
        text: the model's words outside of blocks, since the last interrupt or turn.
        said: all of them.
        calls: in the order of writing.
        prompt_tokens: of the prompt.
        generated_tokens: written by the model, markup included.
        injected_tokens: of interrupts and of results' turns.
        recomputed_tokens: run again because their KV cache was given up.
        interrupts: put in.
        traps, missing_traps: waits that the model asked for; turns that it ended too early, see
            `Generation`.
        pauses: how often each action was taken while it waited.
        waited_seconds: in traps, or between turns.
        first_token, last_token: seconds since the beginning.
        seconds: from the prompt to the end.
        token_seconds: mean time of a token, waits not counted.
        ended: `done`, or what there was too little of: `max_tokens`, `context`.
        warnings: what may be wrong with the answer, in sentences.
        timeline: `[seconds, event, identifier]`, in order.
    """

    def __init__(self) -> None:
        """A generation that has not begun."""
        self.text = ""
        self.said = ""
        self.calls: list[CallRecord] = []
        self.prompt_tokens = 0
        self.generated_tokens = 0
        self.injected_tokens = 0
        self.recomputed_tokens = 0
        self.interrupts = 0
        self.traps = 0
        self.missing_traps = 0
        self.pauses: dict[str, int] = {}
        self.waited_seconds = 0.0
        self.first_token: float | None = None
        self.last_token: float | None = None
        self.seconds = 0.0
        self.token_seconds = 0.0
        self.ended = "done"
        self.warnings: list[str] = []
        self.timeline: list[tuple[float, str, str]] = []

    def to_json(self) -> dict[str, Any]:
        """All of it as JSON's values, times to the microsecond."""
        found: dict[str, Any] = _rounded({**vars(self), "calls": list(map(vars, self.calls))})
        return found


class Recorder:
    """Keeps a record while a generation runs, and tells its events to one listener.

    Attributes:
        record: so far.
    """

    def __init__(self, on_event: Callable[[dict[str, Any]], None] | None = None) -> None:
        """The clock starts now. Events are dicts with `type` and `at`."""
        self.record = Record()
        self._on_event = on_event
        self._start = monotonic_now()
        self._by_identifier: dict[str, CallRecord] = {}

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

    def call(self, identifier: str, name: str, text: str) -> CallRecord:
        """Notes a call that was written."""
        at = self.event("call", identifier, name=name, call=text)
        call = CallRecord(identifier, name, text, at)
        self.record.calls.append(call)
        if identifier:
            self._by_identifier[identifier] = call
        return call

    def found(self, identifier: str) -> CallRecord | None:
        """The call of an identifier."""
        return self._by_identifier.get(identifier)

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
