"""The forms that calls are written in, whatever the family: each is read if it fits.

A call has the name of a function that was given, and an object of arguments; anything else is none.
"""

from __future__ import annotations

import ast
import json
import re
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from pie_gateway.dialects.argument_types import MOST_STEPS, typed

Functions: TypeAlias = Mapping[str, Mapping[str, Any]]  # JSON schemas of the arguments, by name


@dataclass(frozen=True)
class Call:
    """A function is to be called."""

    name: str
    arguments: str  # JSON
    id: str = field(default_factory=lambda: uuid.uuid4().hex[:24], compare=False)


class NoCall(Exception):
    """The text is not of this form."""


_DECODER = json.JSONDecoder()
_SPACE = " \t\r\n;,"
# A name and then an object: Mistral's newer models, DeepSeek, GLM 4; what stands around is noise.
_NOISE = (
    r"(?:\[TOOL_CALLS\]|<｜tool▁call▁begin｜>|<｜tool▁call▁end｜>|function<｜tool▁sep｜>|```|\s)*"
)
NAMED = re.compile(
    _NOISE + r"([\w.-]+)\s*(?:\[CALL_ID\]\w*|\[ARGS\]|<｜tool▁sep｜>|```json|\s)*(?=\{)"
)
REST = re.compile(_NOISE)
_TAGGED = re.compile(r"\s*<function=([^>\s]+)>(.*?)</function>\s*", re.DOTALL)
_PARAMETER = re.compile(r"\s*<parameter=([^>\s]+)>\n?(.*?)\n?</parameter>\s*", re.DOTALL)
_KEYED = re.compile(r"\s*([\w.-]+)\s*((?:<arg_key>.*)?)", re.DOTALL)
_PAIR = re.compile(r"\s*<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>\s*", re.DOTALL)


def read_calls(
    text: str, functions: Functions, *, cut: bool = False, bare: bool = False
) -> list[Call]:
    """The calls of a text that a model has written, of the functions that it was given; none if it
    is something else. If `cut`, it may end within a call, which then is left out; if `bare`, no
    marker says that these are calls.
    """
    for form in (_objects, _named, _tagged, _keyed, _python):
        with suppress(Exception):  # whatever a reader ends with, a text stays a text
            return form(text, functions, cut, bare)
    return []


def _objects(text: str, functions: Functions, cut: bool, bare: bool) -> list[Call]:
    """Objects in JSON, in a row or in a list: `{"name": ..., "arguments": {...}}`."""
    found: list[Call] = []
    at = 0
    while at < len(text):
        if text[at] in _SPACE + "[]":
            at += 1
            continue
        try:
            value, at = _DECODER.raw_decode(text, at)
        except ValueError:
            if cut and text[at] == "{":
                break
            raise
        if not isinstance(value, dict):
            raise NoCall
        name = value.get("name", value.get("tool_name"))
        arguments = value.get("arguments", value.get("parameters"))
        if arguments is None and not bare:
            arguments = {}  # of a function that wants none
        found.append(_call(name, arguments, functions))
    return _some(found, cut)


def _named(text: str, functions: Functions, cut: bool, bare: bool) -> list[Call]:
    """A name and an object behind it, perhaps several times."""
    found: list[Call] = []
    at = 0
    while match := NAMED.match(text, at):
        try:
            arguments, at = _DECODER.raw_decode(text, match.end())
        except ValueError:
            if cut:
                return _some(found, cut)
            raise
        found.append(_call(match[1], arguments, functions))
    if REST.sub("", text[at:]) and not cut:
        raise NoCall
    return _some(found, cut)


def _tagged(text: str, functions: Functions, cut: bool, bare: bool) -> list[Call]:
    """Qwen 3 Coder's: `<function=f><parameter=a>1</parameter></function>`."""
    found: list[Call] = []
    at = 0
    while match := _TAGGED.match(text, at):
        at = match.end()
        pairs = _PARAMETER.findall(match[2])
        if _PARAMETER.sub("", match[2]).strip():
            raise NoCall
        found.append(_of_texts(match[1], pairs, functions))
    if at < len(text) and not cut:
        raise NoCall
    return _some(found, cut)


def _keyed(text: str, functions: Functions, cut: bool, bare: bool) -> list[Call]:
    """GLM 4.5's: a name, and pairs of `<arg_key>` and `<arg_value>`."""
    match = _KEYED.fullmatch(text)
    if match is None or bare or _PAIR.sub("", match[2]).strip():
        raise NoCall
    return [_of_texts(match[1], _PAIR.findall(match[2]), functions)]


def _python(text: str, functions: Functions, cut: bool, bare: bool) -> list[Call]:
    """Llama 3.2's list of calls in Python: `[f(a=1), g()]`."""
    body = ast.parse(text.strip(), mode="eval").body
    calls = body.elts if isinstance(body, ast.List) else [body]
    found = []
    for each in calls:
        if not isinstance(each, ast.Call) or each.args:
            raise NoCall
        arguments = {word.arg or "": ast.literal_eval(word.value) for word in each.keywords}
        found.append(_call(ast.unparse(each.func), arguments, functions))
    return _some(found, cut)


def _some(found: list[Call], cut: bool) -> list[Call]:
    if not found and not cut:
        raise NoCall
    return found


def _of_texts(name: str, pairs: list[tuple[str, str]], functions: Functions) -> Call:
    """A call whose arguments are texts; the schema says what each one is."""
    if name not in functions:
        raise NoCall
    steps = iter(range(MOST_STEPS))
    texts = {key.strip(): text for key, text in pairs}
    arguments = {key: typed(key, text, functions[name], steps) for key, text in texts.items()}
    return _call(name, arguments, functions)


def _call(name: Any, arguments: Any, functions: Functions) -> Call:
    """A call that others can read: its name is known, and its arguments are an object."""
    if not isinstance(name, str) or name not in functions:
        raise NoCall
    if isinstance(arguments, str):  # some models write JSON within JSON
        arguments = json.loads(arguments or "{}")
    if not isinstance(arguments, dict):
        raise NoCall
    text = json.dumps(arguments, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    if json.loads(text.encode()) != arguments:  # half a surrogate pair is refused here, too
        raise NoCall
    return Call(name, text)


def within_string(text: str) -> bool:
    """True if a text in JSON ends within a string."""
    try:
        _DECODER.raw_decode(text.lstrip())
    except ValueError as error:  # also of a number with thousands of digits
        return str(error).startswith("Unterminated string")
    except RecursionError:
        pass
    return False
