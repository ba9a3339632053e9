"""Parts a model's text, as it comes, into words, thoughts and calls.

No text is given out that may turn out to be the start of a call or a thought.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from pie_gateway.backend.job import MARK
from pie_gateway.dialects import Dialect
from pie_gateway.dialects.families import CALLS, Section
from pie_gateway.dialects.forms import Call, read_calls, within_string
from pie_gateway.dialects.written import Arguments, Written, begins, without_start


@dataclass(frozen=True)
class Words:
    """Said to the user."""

    text: str


@dataclass(frozen=True)
class Thought:
    """Thought on the way."""

    text: str


Said: TypeAlias = Words | Thought | Call | Arguments


class Splitter:
    """Parts one text. What is no call after all is words."""

    def __init__(
        self, dialect: Dialect, inside: Section | None = None, *, pieces: bool = False
    ) -> None:
        """Takes how the model writes, the section that its text begins in, and whether calls come
        in `pieces`: without arguments, which follow as they are written.
        """
        self._dialect = dialect
        self._pieces = pieces
        self._written: Written | None = None  # the calls of the open section
        self._sections = dialect.sections  # that may still come
        self._inside = inside
        self._held = ""
        self._begun = inside is not None
        self._bare = False  # no marker says that there are calls
        self._called = False
        self._after_thought = False  # line breaks after a thought are no words

    def feed(self, text: str) -> list[Said]:
        """The parts that are certain, with this text added."""
        self._held += text
        found: list[Said] = []
        if not self._begun:
            is_call = self._begins_call(self._held.lstrip())
            if is_call is None:
                return []
            self._inside, self._bare = (CALLS, True) if is_call else (None, False)
            self._begun = True
        while self._step(found):
            pass
        return found

    def finish(self, cut: bool = False) -> list[Said]:
        """The rest. If the text was cut off after a call, the start of another one is left out."""
        rest, inside = self._held, self._inside
        self._held, self._inside = "", None
        if self._written is not None:
            found = self._written.feed(rest.replace(MARK, ""))
            last, words = self._written.finish(cut=cut)
            return [*found, *last, *([Words(words)] if words else [])]
        if not rest:
            return []
        if inside is not None and not inside.is_call:
            return [Thought(rest)]
        calls = self._calls(rest, cut) if inside is not None else []
        if calls or (cut and self._called):
            return [*calls]
        return [Words((inside.begin if inside is not None else "") + rest)]

    def _step(self, found: list[Said]) -> bool:
        """Takes the next part from what is held; whether there may be another one."""
        if self._inside is None:
            return self._leave_words(found)
        section = self._inside
        if section.is_call and self._pieces and self._written is None:
            text = self._held.replace(MARK, "")
            if begins(text, self._dialect.functions):
                self._written = Written(self._dialect.functions, bare=self._bare)
        if self._written is not None:
            return self._as_written(self._written, section, found)
        said = self._end_of_calls(section) if section.is_call else self._end_of_thought(section)
        if said is None:
            return False
        found += said
        return self._inside is None

    def _end_of_thought(self, section: Section) -> list[Said]:
        """The certain part of a thought."""
        text, end, rest = self._held.partition(section.end)
        if end:
            self._held, self._inside, self._after_thought = rest, None, True
            self._sections = () if self._dialect.held else self._sections
            return [Thought(text)] if text.strip() else []
        certain = without_start(self._held, [section.end])
        self._held = self._held[len(certain) :]
        return [Thought(certain)] if certain else []

    def _as_written(self, written: Written, section: Section, found: list[Said]) -> bool:
        """The certain part of calls that come in pieces."""
        at = self._held.find(section.end) if section.end else -1
        certain = without_start(self._held, [section.end]) if at < 0 else self._held[:at]
        found += written.feed(certain.replace(MARK, ""))
        self._held = self._held[len(certain) :]
        if at < 0:
            return False
        self._held = self._held[len(section.end) :]
        if written.within:
            found += written.feed(section.end.replace(MARK, ""))
            return True
        last, words = written.finish(cut=False)
        found += [*last, *([Words(words)] if words else [])]
        self._inside, self._written, self._called = None, None, True
        return True

    def _end_of_calls(self, section: Section) -> list[Said] | None:
        """The calls of a section, once its end has come; a marker within a string is none."""
        at = self._held.find(section.end) if section.end else -1
        while at >= 0:
            text = self._held[:at]
            calls = self._calls(text)
            if calls or not within_string(text):
                self._held, self._inside = self._held[at + len(section.end) :], None
                self._called = self._called or bool(calls)
                return [*calls] or [Words(section.begin + text + section.end)]
            at = self._held.find(section.end, at + 1)
        return None

    def _calls(self, text: str, cut: bool = False) -> list[Call]:
        functions = self._dialect.functions
        return read_calls(text.replace(MARK, ""), functions, cut=cut, bare=self._bare)

    def _begins_call(self, start: str) -> bool | None:
        """True if a text that begins so is a call without a marker; None if that shows later."""
        bare, names = self._dialect.family.bare, self._dialect.functions
        if not bare or not names:
            return False
        if bare != "name":
            return start[0] in bare if start else None
        if any(start.startswith(f"{name}\n") for name in names):
            return True
        return None if any(f"{name}\n".startswith(start) for name in names) else False

    def _leave_words(self, found: list[Said]) -> bool:
        if self._after_thought:
            self._held = self._held.lstrip("\n")
            self._after_thought = not self._held
        if self._dialect.held and not any(
            self._held.startswith(each.begin[: len(self._held)]) for each in self._sections
        ):
            self._sections = ()  # the form has begun
        begins = [(self._held.find(each.begin), each) for each in self._sections]
        begins = [(at, each) for at, each in begins if at >= 0]
        if begins:
            at, section = min(begins, key=lambda pair: pair[0])
            if words := self._held[:at]:
                found.append(Words(words))
            self._held = self._held[at + len(section.begin) :]
            self._inside = section
            return True
        certain = without_start(self._held, [each.begin for each in self._sections])
        if certain:
            found.append(Words(certain))
            self._held = self._held[len(certain) :]
        return False
