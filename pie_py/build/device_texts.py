"""Checks the device programs of a Rust or JavaScript program as it is built.

Their texts are literals of `device::program("…")`, `device.attend(…)` and the like, constants that
these name, or files of `include_str!`. What a text names and is given is known where it is sent,
not here: it is read with several guesses. It is wrong if each of them fails and they agree on the
fault, or the fault is a name that the language does not have.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pie_py.build import BuildError
from pie_py.device_programs.language import HEADS, TOKENS, VOCABULARY, Kind, Type
from pie_py.device_programs.library import library
from pie_py.device_programs.program import ProgramFault
from pie_py.device_programs.reader import check_text, read_texts
from pie_py.device_programs.scope import Text, parsed

# What a name of a text may stand for, and what its state may be.
_GUESSES: tuple[tuple[Any, Type], ...] = (
    (1.0, Type(Kind.FLOAT)),
    (1, Type(Kind.INT)),
    (True, Type(Kind.BOOL)),
    ([1.0], Type(Kind.FLOAT, (VOCABULARY,))),
    ([1], Type(Kind.INT, (1,))),
    ([1.0], Type(Kind.FLOAT, (TOKENS,))),
    ([1.0], Type(Kind.FLOAT, (HEADS, TOKENS))),
)
# Faults that no other guess would mend.
_OWN = re.compile(r"(a tensor|device|samplers|attention|math) has no `|is no part of the language")
_ESCAPE = re.compile(r"\\(?:\r?\n\s*|(.))", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "0": "\0"}


class _Language(NamedTuple):
    """Patterns of a language for a literal, a call and a constant. The group `text` or, where no
    backslash is an escape, `inner` is a text; `name` and `file` stand for it.
    """

    literal: str
    call: str
    constant: str


_RUST = _Language(
    r'(?:include_str!\s*\(\s*"(?P<file>[^"]*)"\s*\)|r(?P<marks>\#*)"(?P<inner>.*?)"(?P=marks)'
    r'|"(?P<text>(?:[^"\\]|\\.)*)")',
    r"\bdevice::(?P<stage>program|attend)\s*\(\s*(?:{literal}|(?P<name>\w+))\s*,?\s*\)",
    r"^\s*(?:pub\S*\s+)?(?:const|static)\s+{name}\s*:\s*&\s*(?:'static\s+)?str\s*=\s*{literal}",
)
_JAVASCRIPT = _Language(
    r"(?P<quote>[`\"'])(?P<text>(?:\\.|(?!(?P=quote)).)*)(?P=quote)",
    r"\bdevice\s*\.\s*(?P<stage>program|attend)\s*\(\s*(?:{literal}|(?P<name>\w+))\s*[,)]",
    r"^(?:export\s+)?const\s+{name}\s*(?::\s*string\s*)?=\s*{literal}",
)


def check_rust(files: Iterable[Path]) -> None:
    """Checks the texts in Rust sources.

    Raises:
        BuildError: with file, line and column.
    """
    for file in files:
        _check(file, file.read_bytes(), _RUST)


def check_javascript(modules: Mapping[str, bytes]) -> None:
    """Checks the texts in JavaScript modules, by their paths. Raises as `check_rust`."""
    for path, source in modules.items():
        _check(Path(path), source, _JAVASCRIPT)


def _check(file: Path, source: bytes, language: _Language) -> None:
    for text, attends in _texts(file, source.decode("utf-8", "replace"), language):
        try:
            check_text(text)
            _read(text, attends=attends)
        except ProgramFault as error:
            raise BuildError(f"device program: {error}") from None


def _texts(file: Path, source: str, language: _Language) -> Iterator[tuple[Text, bool]]:
    """The texts of device programs in a source, and whether they are of the stage `attend`."""
    call = re.compile(language.call.format(literal=language.literal), re.DOTALL)
    for found in call.finditer(source):
        if "//" in source[source.rfind("\n", 0, found.start()) + 1 : found.start()]:
            continue  # a comment tells of it
        said: re.Match[str] | None = found
        if name := found["name"]:
            constant = language.constant.format(name=re.escape(name), literal=language.literal)
            said = re.search(constant, source, re.DOTALL | re.MULTILINE)
        if said is not None and (text := _text(file, source, said)) is not None:
            yield text, found["stage"] == "attend"


def _text(file: Path, source: str, found: re.Match[str]) -> Text | None:
    """A literal's text at its place; None if it can't be known."""
    groups = found.groupdict()
    if groups.get("file") is not None:
        other = file.parent / groups["file"]
        return Text(str(other), 1, other.read_text(encoding="utf-8")) if other.is_file() else None
    kind = "text" if groups.get("inner") is None else "inner"
    text, start = groups[kind], found.start(kind)
    if groups.get("quote") == "`" and "${" in text:
        return None
    if kind == "text":
        text = _ESCAPE.sub(lambda one: _ESCAPED.get(one[1], one[1] or ""), text)
    if "\n" not in text.strip():  # its column is that of the file
        text = " " * (start - source.rfind("\n", 0, start) - 1) + text
    return Text(str(file), source.count("\n", 0, start) + 1, text)


def _read(text: Text, *, attends: bool) -> None:
    """Reads a text with each guess.

    Raises:
        ProgramFault: all of them fail, for the same reason.
    """
    nodes = list(ast.walk(parsed(text)))
    called = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
    named = {node.id for node in nodes if isinstance(node, ast.Name) and id(node) not in called}
    constants = named - library().known()
    states = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    faults = set()
    for value, kind in _GUESSES:
        given = dict.fromkeys(states, kind)
        try:
            read_texts([text], dict.fromkeys(constants, value), given, attends=attends)
        except ProgramFault as error:
            faults.add(str(error))
        else:
            return
    own = sorted(fault for fault in faults if _OWN.search(fault)) or list(faults)
    if len(own) == 1:
        raise ProgramFault(own[0])
