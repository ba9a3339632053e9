"""gpt-oss writes everything into channels (OpenAI's harmony format)."""

from __future__ import annotations

import re
from dataclasses import replace

from pie_gateway.dialects import Dialect
from pie_gateway.dialects.families import CALLS
from pie_gateway.dialects.forms import read_calls
from pie_gateway.dialects.leads import opened
from pie_gateway.dialects.splitter import Said, Splitter, Thought, Words
from pie_gateway.dialects.written import Written, begins, without_start

_ENDS = ("<|end|>", "<|call|>", "<|start|>")
_FUNCTION = re.compile(r"to=functions\.([\w.-]+)")


class ChannelSplitter:
    """Parts one text: `analysis` is thought, `final` is said, `to=functions.f` is a call."""

    def __init__(self, dialect: Dialect, *, pieces: bool = False) -> None:
        """Takes how the model writes, and whether calls come in pieces."""
        self._pieces = pieces
        self._written: Written | None = None  # the call of the open message
        self._functions = dialect.functions
        self._message = dialect.marked("<|message|>")
        self._ends = [dialect.marked(end) for end in _ENDS]
        self._held = ""
        self._header: str | None = None  # of the open message

    def feed(self, text: str) -> list[Said]:
        """The parts that are certain, with this text added."""
        self._held += text
        found: list[Said] = []
        while self._step(found):
            pass
        return found

    def finish(self, cut: bool = False) -> list[Said]:
        """The rest."""
        rest, self._held = self._held, ""
        if self._written is not None:
            return [*self._written.feed(rest), *self._written.finish(cut=cut)[0]]
        if self._header is None:  # a text without channels
            plain = "<|" not in rest and rest
            return [Words(rest)] if plain else []
        return self._whole(rest, cut=cut)

    def _step(self, found: list[Said]) -> bool:
        """Takes the next part from what is held; whether there may be another one."""
        if self._header is None:
            header, begun, rest = self._held.partition(self._message)
            if begun:
                self._header, self._held = header, rest
            return bool(begun)
        ends = [(self._held.find(end), end) for end in self._ends if end in self._held]
        if self._pieces and (called := _FUNCTION.search(self._header)) and self._written is None:
            name = f"{called[1]}\n"
            if begins(name + self._held, self._functions):
                self._written = Written(self._functions)
                found += self._written.feed(name)
        if ends:
            at, end = min(ends)
            if self._written is None:
                found += self._whole(self._held[:at])
            else:
                found += self._written.feed(self._held[:at])
                found += self._written.finish(cut=False)[0]
                self._written = None
            self._held, self._header = self._held[at + len(end) :], None
            return True
        if self._written is not None or not _FUNCTION.search(self._header):
            certain = without_start(self._held, self._ends)
            written = self._written
            found += self._whole(certain) if written is None else written.feed(certain)
            self._held = self._held[len(certain) :]
        return False

    def _whole(self, text: str, cut: bool = False) -> list[Said]:
        """The parts of a text of the open message."""
        header = self._header or ""
        if called := _FUNCTION.search(header):
            given = f"{called[1]}\n{text.strip() or '{}'}"
            return [*read_calls(given, self._functions, cut=cut)] or [Words(text)]
        if not text:
            return []
        return [Thought(text) if "analysis" in header else Words(text)]


class FormSplitter:
    """Parts a text that is held to a form: thoughts, and then the form."""

    def __init__(self, thoughts: Splitter | ChannelSplitter, form: Splitter) -> None:
        """Takes what finds the thoughts, and what parts the rest."""
        self._thoughts = thoughts
        self._form = form

    def feed(self, text: str) -> list[Said]:
        """The parts that are certain, with this text added."""
        return self._passed(self._thoughts.feed(text))

    def finish(self, cut: bool = False) -> list[Said]:
        """The rest."""
        return [*self._passed(self._thoughts.finish(cut)), *self._form.finish(cut)]

    def _passed(self, found: list[Said]) -> list[Said]:
        parts = [
            self._form.feed(each.text) if isinstance(each, Words) else [each] for each in found
        ]
        return [said for part in parts for said in part]


def splitter_of(
    dialect: Dialect,
    tail: str,
    continued: str | None = None,
    *,
    must_call: bool = False,
    pieces: bool = False,
) -> Splitter | ChannelSplitter | FormSplitter:
    """The splitter of a text, whose first part may begin in the tail of the prompt, or in the
    message that it continues; `must_call` tells whether it is held to calls, `pieces` whether calls
    come without arguments, which follow as they are written.
    """
    free = replace(dialect, functions={}) if dialect.held else dialect
    found: Splitter | ChannelSplitter = Splitter(
        free, opened(dialect, tail, continued), pieces=pieces
    )
    if dialect.family.channels and dialect.marks and continued is None:
        found = ChannelSplitter(free, pieces=pieces)
    if not dialect.held:
        return found
    form = Splitter(
        Dialect(functions=dialect.functions), CALLS if must_call else None, pieces=pieces
    )
    return FormSplitter(found, form)
