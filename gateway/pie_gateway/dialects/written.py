"""Calls as they are written: a call once its name is known, then its arguments piece by piece.

A form allows it if the name precedes the arguments and these are an object, or texts between tags.
Calls in Python, JSON within JSON and arguments before the name come whole. What has begun as a call
stays one: a client that reads pieces learns from its broken JSON what a whole answer shows as text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from pie_gateway.dialects.argument_types import MOST_STEPS, only_text, typed
from pie_gateway.dialects.forms import NAMED, REST, Call, Functions, read_calls

HEAD = 400  # characters in which a name and the beginning of its arguments have to stand
_STRING = r'"(?:[^"\\]|\\.)*"'
_OBJECT = re.compile(
    r"[\s;,\[\]]*\{\s*"
    rf"((?:{_STRING}\s*:\s*(?:{_STRING}|[\w.+-]+)\s*,\s*)*)"
    r'"(?:arguments|parameters)"\s*:\s*(?=\{)'
)
_OUTSIDE, _INSIDE = re.compile(r'["{}\[\]]'), re.compile(r'["\\]')  # of strings


@dataclass(frozen=True)
class Arguments:
    """The arguments of the last call go on: a piece of JSON."""

    text: str


class _Tags(NamedTuple):
    """How a form writes arguments that are texts, up to `close`; `end` before it is left out."""

    head: re.Pattern[str]
    begin: re.Pattern[str]
    close: str
    end: str
    last: str  # what closes the call; the end of the section if empty


_TAGS = (
    _Tags(
        re.compile(r"\s*<function=([^>\s]+)>"),
        re.compile(r"\s*<parameter=([^>\s]+)>(?:\n|(?=[^\n]))"),
        "</parameter>",
        "\n",
        "</function>",
    ),
    _Tags(
        re.compile(r"\s*([\w.-]+)\s*(?=<arg_key>)"),
        re.compile(r"\s*<arg_key>(.*?)</arg_key>\s*<arg_value>", re.DOTALL),
        "</arg_value>",
        "",
        "",
    ),
)


class _Head(NamedTuple):
    """A call has begun: its name, where its arguments begin, and in which form."""

    name: str
    at: int
    tags: _Tags | None = None
    inner: bool = False  # the arguments stand in an object of their own


def _head(text: str, functions: Functions) -> _Head | None:
    start = text[:HEAD]
    if match := _OBJECT.match(start):
        fields = json.loads("{" + match[1].rstrip()[:-1] + "}", strict=False) if match[1] else {}
        name = fields.get("name", fields.get("tool_name"))
        if not isinstance(name, str):
            return None
        found = _Head(name, match.end(), inner=True)
    elif match := NAMED.match(start):
        found = _Head(match[1], match.end())
    else:
        matches = ((tags.head.match(start), tags) for tags in _TAGS)
        heads = [_Head(match[1], match.end(), tags) for match, tags in matches if match]
        if not heads:
            return None
        [found] = heads
    return found if found.name in functions else None


def begins(text: str, functions: Functions) -> bool:
    """True if a call of one of the functions begins the text, in a form that allows pieces."""
    try:
        return _head(text, functions) is not None
    except ValueError:  # fields that are no JSON
        return False


class Written:
    """The calls of a text which a call `begins`."""

    def __init__(self, functions: Functions, *, bare: bool = False) -> None:
        """Takes the functions that may be called, and whether no marker says that they are."""
        self._functions = functions
        self._bare = bare
        self._held = ""
        self._step: Callable[[list[Call | Arguments]], bool] = self._between
        self._depth = 0  # of brackets in JSON
        self._escaped = False
        self.within = False  # a string of JSON, where no marker counts

    def feed(self, text: str) -> list[Call | Arguments]:
        """The calls and pieces that are certain, with this text added."""
        self._held += text
        found: list[Call | Arguments] = []
        while self._step(found):
            pass
        return [each for each in found if isinstance(each, Call) or each.text]

    def finish(self, *, cut: bool) -> tuple[list[Call | Arguments], str]:
        """The parts that the text's end makes certain, and a rest that is no call. If `cut`, the
        text may end within a call, which stays without its end.
        """
        rest, self._held = self._held, ""
        if self._step == self._text:
            return [Arguments(_escaped(rest))], ""
        if cut or self._step in (self._json, self._value):
            calls = read_calls(rest, self._functions, cut=True) if self._is_between else []
            return [*calls], ""
        if self._step == self._parameter and not self._tags.last and not rest.strip():
            return [Arguments("}")], ""
        if not REST.sub("", rest).strip(" \t\r\n;,[]"):
            return [], ""
        calls = read_calls(rest, self._functions, bare=self._bare) if self._is_between else []
        return [*calls], "" if calls else rest

    @property
    def _is_between(self) -> bool:
        return self._step == self._between

    def _between(self, found: list[Call | Arguments]) -> bool:
        """Waits for the next call."""
        if not begins(self._held, self._functions):
            return False
        head = _head(self._held, self._functions)
        assert head is not None
        found.append(Call(head.name, ""))
        self._held = self._held[head.at :]
        self._inner, self._depth = head.inner, 0
        self._step = self._json
        if head.tags is not None:
            self._tags, self._step = head.tags, self._parameter
            self._schema, self._next = self._functions[head.name], "{"
            self._steps = iter(range(MOST_STEPS))
        return True

    def _json(self, found: list[Call | Arguments]) -> bool:
        """An object goes on as it stands."""
        at = self._end_of_object()
        found.append(Arguments(self._held[:at]))
        self._held = self._held[len(self._held) if at is None else at :]
        if at is None:
            return False
        self._step, self._depth = (self._outer, 1) if self._inner else (self._between, 0)
        return True

    def _outer(self, found: list[Call | Arguments]) -> bool:
        """The rest of the object in which arguments stand is nothing that clients get."""
        at = self._end_of_object()
        self._held = "" if at is None else self._held[at:]
        self._step = self._outer if at is None else self._between
        return at is not None

    def _end_of_object(self) -> int | None:
        """Where the open object ends in what is held, all of which is read otherwise."""
        at, held = 0, self._held
        while at < len(held):
            if self._escaped:
                self._escaped, at = False, at + 1
                continue
            found = (_INSIDE if self.within else _OUTSIDE).search(held, at)
            if found is None:
                return None
            at = found.end()
            if found[0] == "\\":
                self._escaped = True
            elif found[0] == '"':
                self.within = not self.within
            else:
                self._depth += 1 if found[0] in "{[" else -1
                if not self._depth:
                    return at
        return None

    def _parameter(self, found: list[Call | Arguments]) -> bool:
        """Waits for the next argument, or the end of the call."""
        if begun := self._tags.begin.match(self._held):
            self._key = begun[1].strip()
            is_text = only_text(self._key, self._schema)
            opened = f"{self._next}{json.dumps(self._key, ensure_ascii=False)}:"
            found.append(Arguments(opened + '"' if is_text else opened))
            self._held, self._next = self._held[begun.end() :], ","
            self._step = self._text if is_text else self._value
            return True
        if self._tags.last and self._held.lstrip().startswith(self._tags.last):
            found.append(Arguments("{}" if self._next == "{" else "}"))
            self._held = self._held.lstrip()[len(self._tags.last) :]
            self._step = self._between
            return True
        return False

    def _text(self, found: list[Call | Arguments]) -> bool:
        """An argument that can only be a text goes on."""
        if self._closed(found, lambda text: _escaped(text) + '"'):
            return True
        close = self._tags.close
        certain = without_start(self._held, [self._tags.end + close, close])
        found.append(Arguments(_escaped(certain)))
        self._held = self._held[len(certain) :]
        return False

    def _value(self, found: list[Call | Arguments]) -> bool:
        """An argument whose type its whole text tells."""
        schema, steps = self._schema, self._steps
        return self._closed(found, lambda text: json.dumps(typed(self._key, text, schema, steps)))

    def _closed(self, found: list[Call | Arguments], written: Callable[[str], str]) -> bool:
        text, close, rest = self._held.partition(self._tags.close)
        if not close:
            return False
        found.append(Arguments(written(text.removesuffix(self._tags.end))))
        self._held, self._step = rest, self._parameter
        return True


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def without_start(text: str, markers: list[str]) -> str:
    """The text without what may be the start of a marker at its end."""
    most = max((len(marker) - 1 for marker in markers), default=0)
    for length in range(min(most, len(text)), 0, -1):
        if any(marker.startswith(text[-length:]) for marker in markers):
            return text[:-length]
    return text
