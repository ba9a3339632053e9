"""The thinking in a generated text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from inferlet import chat
from inferlet._stream import StopStrings, TextDecoder
from inferlet.model import Model

# How families of models write thoughts: what opens them, and what closes them.
_MARKS = {
    "<think>": "</think>",
    "[THINK]": "[/THINK]",
    "<|channel|>analysis<|message|>": "<|end|>",
}


class Event:
    """What a batch of generated tokens means for thoughts. Match it with `match`."""

    @dataclass(frozen=True, slots=True)
    class Idle:
        """Nothing."""

    @dataclass(frozen=True, slots=True)
    class Start:
        """Thinking begins."""

    @dataclass(frozen=True, slots=True)
    class Delta:
        """New text of thoughts, never empty."""

        text: str

    @dataclass(frozen=True, slots=True)
    class End:
        """Thinking has ended; `text` is all of it."""

        text: str


AnyEvent: TypeAlias = Event.Idle | Event.Start | Event.Delta | Event.End


class Decoder:
    """Turns generated tokens into events. Feed every batch in order.

    Where the model's chat template opens the thoughts itself, they begin with the first token.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        cue = model.tokenizer.decode(chat.cue(model)) if model.has_chat_template else ""
        self._seen = ""  # the last characters outside of thoughts
        self._opened = next((m for m in _MARKS if cue.rstrip().endswith(m)), None)
        self.reset()

    @property
    def inside(self) -> bool:
        """Whether the last tokens were thinking, or a mark of it."""
        return self._open is not None

    def feed(self, tokens: Sequence[int]) -> AnyEvent:
        """The event that these tokens make; the last one where there are several."""
        event: AnyEvent = Event.Idle()
        new = ""
        for character in "".join(map(self._decoder.feed, tokens)):
            text, found = self._marks.feed(character)
            if self._open is None:
                self._seen = (self._seen + character)[-max(map(len, _MARKS)) :]
                if found:
                    self._enter(next(mark for mark in _MARKS if self._seen.endswith(mark)))
                    event = Event.Start()
                continue
            new += text
            if found:
                event = Event.End(self._text + new)
                self._leave()
                new = ""
        self._text += new
        return Event.Delta(new) if new else event

    def reset(self) -> None:
        """Forgets all that was fed."""
        self._decoder = TextDecoder(self._model.tokenizer.decode)
        self._leave()
        if self._opened is not None:
            self._enter(self._opened)

    def _enter(self, mark: str) -> None:
        self._open: str | None = mark
        self._text = ""
        self._marks = StopStrings([_MARKS[mark]])

    def _leave(self) -> None:
        self._open = None
        self._text = self._seen = ""
        self._marks = StopStrings(list(_MARKS))
