"""Parts a model's text, as it comes, into words, thoughts and calls.

No text is given out that may turn out to be the start of a call or a thought.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from pie_gateway.dialects.dialect import CALLS, Dialect, Section


@dataclass(frozen=True)
class Words:
    """Said to the user."""

    text: str


@dataclass(frozen=True)
class Thought:
    """Thought on the way."""

    text: str


@dataclass(frozen=True)
class Call:
    """A function is to be called."""

    name: str
    arguments: str  # JSON


Said: TypeAlias = Words | Thought | Call


class Splitter:
    """Parts one text. What is no call after all is words."""

    def __init__(self, dialect: Dialect, inside: Section | None = None) -> None:
        """Takes how the model writes, and the section that its text begins in."""
        self._dialect = dialect
        self._inside = inside
        self._held = ""
        self._begun = inside is not None
        self._called = False
        self._after_thought = False  # line breaks after a thought are no words

    def feed(self, text: str) -> list[Said]:
        """What is certain, with this text added."""
        self._held += text
        found: list[Said] = []
        if not self._begun and self._dialect.bare_calls:
            start = self._held.lstrip()
            if not start:
                return []
            if start[0] == "{":
                self._inside = CALLS
        self._begun = self._begun or bool(self._held.strip())
        while self._step(found):
            pass
        return found

    def finish(self, cut: bool = False) -> list[Said]:
        """The rest. If the text was cut off after a call, the start of another one is left out."""
        rest, inside = self._held, self._inside
        self._held, self._inside = "", None
        if not rest:
            return []
        if inside is not None and not inside.is_call:
            return [Thought(rest)]
        calls = calls_of(rest, cut) if inside is not None else []
        if calls or (cut and self._called):
            return calls
        return [Words((inside.begin if inside is not None else "") + rest)]

    def _step(self, found: list[Said]) -> bool:
        """Takes the next part from what is held; whether there may be another one."""
        if self._inside is None:
            return self._leave_words(found)
        section = self._inside
        text, end, rest = self._held.partition(section.end) if section.end else (self._held, "", "")
        if end:
            self._held, self._inside = rest, None
            self._after_thought = not section.is_call
            if not section.is_call:
                found += [Thought(text)] if text.strip() else []
            else:
                calls = calls_of(text)
                self._called = self._called or bool(calls)
                found += calls or [Words(section.begin + text + section.end)]
            return True
        if not section.is_call and (certain := _without_start(self._held, [section.end])):
            found.append(Thought(certain))
            self._held = self._held[len(certain) :]
        return False

    def _leave_words(self, found: list[Said]) -> bool:
        if self._after_thought:
            self._held = self._held.lstrip("\n")
            self._after_thought = not self._held
        begins = [(self._held.find(each.begin), each) for each in self._dialect.sections]
        begins = [(at, each) for at, each in begins if at >= 0]
        if begins:
            at, section = min(begins, key=lambda pair: pair[0])
            if words := self._held[:at]:
                found.append(Words(words))
            self._held = self._held[at + len(section.begin) :]
            self._inside = section
            return True
        certain = _without_start(self._held, [each.begin for each in self._dialect.sections])
        if certain:
            found.append(Words(certain))
            self._held = self._held[len(certain) :]
        return False


def calls_of(text: str, cut: bool = False) -> list[Said]:
    """Calls written as JSON: objects in a row, or in a list.

    An empty list if it is something else.

    Args:
        text: what a model has written.
        cut: whether it may end within a call, which then is left out.
    """
    decoder = json.JSONDecoder()
    found: list[Said] = []
    at = 0
    while at < len(text):
        if text[at] in " \t\r\n;,[]":
            at += 1
            continue
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            return found if cut and text[at] == "{" else []
        call = _call(value)
        if call is None:
            return []
        found.append(call)
    return found


def _call(written: object) -> Call | None:
    """A call as a model has written it; None if it is none, or none that others can read."""
    if not isinstance(written, dict) or not isinstance(written.get("name"), str):
        return None
    name, arguments = written["name"], written.get("arguments", written.get("parameters", {}))
    try:
        name.encode()  # half of a surrogate pair has no bytes
        if isinstance(arguments, str):
            msgspec.json.decode(arguments or "{}")
        else:
            arguments = msgspec.json.encode(arguments).decode()
    except (ValueError, RecursionError):
        return None
    return Call(name, arguments)


def _without_start(text: str, markers: list[str]) -> str:
    """The text without what may be the start of a marker at its end."""
    most = max((len(marker) - 1 for marker in markers), default=0)
    for length in range(min(most, len(text)), 0, -1):
        if any(marker.startswith(text[-length:]) for marker in markers):
            return text[:-length]
    return text
