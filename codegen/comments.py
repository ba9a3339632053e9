"""Comments of the contract: futures that they describe, and themselves in another language."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import NamedTuple

from codegen.source import REPOSITORY, GenerateError, imported, ok_type, snake
from pie_py.build.wit import Function, Interface, Type

_QUOTED = re.compile(r"`(?:([a-z-]+)\.)?([a-z][a-z0-9-]*)`")
_FORMS = {
    "Gives": re.compile(r"^Gives: .+, by `(?:[a-z-]+\.)?([a-z-]+)`\.\n?", re.MULTILINE),
    "Room": re.compile(r"^Room: after `would-block`, by `([a-z-]+)`\.\n?", re.MULTILINE),
    "Fields": re.compile(r"^Fields of `([a-z-]+)`: (.+)\.$", re.MULTILINE),
}


class Named(NamedTuple):
    """A function that a comment names, and its interface."""

    interface: str
    name: str
    function: Function


def taker(function: Function) -> Named | None:
    """The function that consumes the future which one returns; None if it returns none.

    Raises:
        GenerateError: if the line `Gives:` is not of its form, or names no function; so of `room`.
    """
    return _named("Gives", function)


def room(function: Function) -> Named | None:
    """The function whose future is ready when one that would block can be called again."""
    return _named("Room", function)


def awaitable() -> Iterator[tuple[str, Function, Interface]]:
    """The functions that have a form which waits, for room or for a future's value."""
    for members in imported().values():
        for name, function in members.functions.items():
            if taker(function) or room(function):
                yield name, function, members


def awaited_steps(
    name: str, function: Function, spelled: Callable[[str], str], let: str = ""
) -> tuple[list[str], str]:
    """The body of such a form, in Python or JavaScript: its statements, and the one that waits for
    room, or nothing.
    """

    def call(name: str, params: Iterable[tuple[str, Type]]) -> str:
        return f"{spelled(name)}({', '.join(spelled(key) for key, _ in params)})"

    steps = [f"return raw.{call(name, function.params)}"]
    if take := taker(function):
        begin = f"{let}future = raw.{call(name, function.params)}"
        steps = [begin, "await ready(future)", f"return raw.{spelled(take.name)}(future)"]
    if wait := room(function):
        shared = [param for param in wait.function.params if param in function.params]
        return steps, f"await {call(wait.name, shared)}"
    return steps, ""


def awaited_type(function: Function) -> Type | None:
    """The type of what such a form returns."""
    take = taker(function)
    return ok_type((take.function if take else function).result)[0]


def fields(function: Function) -> tuple[str, list[str]] | None:
    """The name that a tuple taken from a future has as a record, and those of its fields."""
    found = _FORMS["Fields"].search(function.doc)
    return found and (found[1], re.findall("[a-z-]+", found[2]))


def awaited_doc(function: Function) -> str:
    """The comment of such a form."""
    doc = _FORMS["Room"].sub("", _FORMS["Gives"].sub("", function.doc)).rstrip()
    return doc.replace("`would-block`, ", "") if room(function) else doc


def _named(form: str, function: Function) -> Named | None:
    if f"{form}:" not in function.doc:
        return None
    if found := _FORMS[form].search(function.doc):
        for interface, members in imported().items():
            if found[1] in members.functions:
                return Named(interface, found[1], members.functions[found[1]])
    raise GenerateError(f"`{form}:` names no function, or not in its form: {function.doc}")


def spell(doc: str, separator: str | None = None, write: Callable[[str], str] = snake) -> str:
    """A comment with the names that functions and parameters have in another language.

    `store.store-get` becomes `store_get`; with a separator, such as `::`, `store::store_get`.
    `write` writes a name of the contract; by default as Python and Rust do.
    """

    def name(found: re.Match[str]) -> str:
        interface, quoted = found.groups()
        if quoted not in names():
            return found.group()
        owner = f"{write(interface)}{separator}" if interface and separator else ""
        return f"`{owner}{write(quoted)}`"

    return _QUOTED.sub(name, doc)


@cache
def names() -> frozenset[str]:
    """All functions, parameters and fields of the contract."""
    names: set[str] = set()
    for interface in imported().values():
        for name, function in interface.functions.items():
            names |= {name, *(key for key, _ in function.params)}
            names.update((fields(function) or ("", ()))[1])
    return frozenset(names)


def error_codes() -> list[tuple[str, str, str]]:
    """The contract's error codes, twice, and their meaning, as its head lists them."""
    text = (REPOSITORY / "sdk" / "wit" / "inferlet.wit").read_text(encoding="utf-8")
    listed = re.findall(r"^/// - `([a-z-]+)`: (.+)$", text, re.MULTILINE)
    return [(code, code, f"{doc[0].upper()}{doc[1:]}.") for code, doc in listed]
