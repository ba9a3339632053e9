"""A strict parser of CML, the markup in which the model writes calls: text in, blocks out.

It is a machine of four states, fed with text as it comes; the first violation ends it with a named
error. Nothing is repaired and nothing is skipped.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from keyword import iskeyword

from examples.pie_tiny.corpus.sample import CALL, CLOSE, HEAD, INTR, SPECIAL_TOKENS, TRAP


class Violation(StrEnum):
    """The faults of CML that a model wrote."""

    INTERRUPT = "an interrupt written by the model"
    CHAT = "a chat token within a turn"
    STRAY = "a marker outside of its block"
    IDENTIFIER = "an identifier that is none"
    REPEATED = "an identifier used before"
    CALL = "not a call with literal arguments"
    TRAP = "a trap with something in it"
    UNCLOSED = "a block without an end"


class CmlError(Exception):
    """Text that is not CML; `violation` says why."""

    def __init__(self, violation: Violation, text: str) -> None:
        super().__init__(f"{violation}: {text!r}")
        self.violation = violation


@dataclass(frozen=True)
class ParsedCall:
    """A call's name and arguments, as its syntax tree has them."""

    name: str
    arguments: Mapping[str, object]

    def same(self, other: ParsedCall) -> bool:
        """True if names and arguments are equal; their order does not count, their types do."""
        return self.name == other.name and _typed(self.arguments) == _typed(other.arguments)


@dataclass(frozen=True)
class CallBlock:
    """`[CALL]identifier[HEAD]call[END]`; without `[HEAD]` the identifier is empty."""

    identifier: str
    call: ParsedCall


@dataclass(frozen=True)
class TrapBlock:
    """`[TRAP][END]`."""


@dataclass(frozen=True)
class TextBlock:
    """The text between blocks."""

    text: str


Block = CallBlock | TrapBlock | TextBlock


class Parser:
    """Takes text piece by piece and gives the blocks that it completes.

    A piece may end anywhere but inside a marker. Identifiers stay unique over the parser's whole
    life.
    """

    def __init__(self) -> None:
        self._identifiers: set[str] = set()
        self._identifier = ""
        self._text = ""
        self._state: Callable[[str], Block | None] = self._between

    @property
    def open(self) -> bool:
        """True if a block is being written."""
        return self._state != self._between

    def feed(self, text: str) -> list[Block]:
        """Reads on.

        Returns:
            The blocks that are complete now. Text counts as one block until a marker follows it.

        Raises:
            CmlError: the text breaks a rule; the parser must not be fed again.
        """
        blocks: list[Block] = []
        for part in _MARKERS.split(text):
            if part not in SPECIAL_TOKENS:
                self._text += part
                continue
            if not self.open and self._text:
                blocks.append(TextBlock(self._text))
                self._text = ""
            block = self._state(part)
            if block:
                blocks.append(block)
        return blocks

    def finish(self) -> list[Block]:
        """Ends the turn; further turns may follow.

        Raises:
            CmlError: a block is still open.
        """
        if self.open:
            raise CmlError(Violation.UNCLOSED, self._text)
        text, self._text = self._text, ""
        return [TextBlock(text)] if text else []

    def _between(self, marker: str) -> None:
        if marker == CALL:
            self._state = self._in_identifier
        elif marker == TRAP:
            self._state = self._in_trap
        else:
            raise CmlError(_misplaced(marker), marker)

    def _in_identifier(self, marker: str) -> CallBlock | None:
        if marker == CLOSE:
            self._identifier = ""
            return self._in_call(marker)
        if marker != HEAD:
            raise CmlError(_misplaced(marker), self._text + marker)
        self._identifier, self._text = self._text, ""
        if not self._identifier.isidentifier() or iskeyword(self._identifier):
            raise CmlError(Violation.IDENTIFIER, self._identifier)
        if self._identifier in self._identifiers:
            raise CmlError(Violation.REPEATED, self._identifier)
        self._identifiers.add(self._identifier)
        self._state = self._in_call
        return None

    def _in_call(self, marker: str) -> CallBlock:
        if marker != CLOSE:
            raise CmlError(_misplaced(marker), self._text + marker)
        call = parse_call(self._text)
        self._text, self._state = "", self._between
        return CallBlock(self._identifier, call)

    def _in_trap(self, marker: str) -> TrapBlock:
        if marker != CLOSE:
            raise CmlError(_misplaced(marker), self._text + marker)
        if self._text:
            raise CmlError(Violation.TRAP, self._text)
        self._state = self._between
        return TrapBlock()


def parse(text: str) -> list[Block]:
    """All blocks of a text.

    Raises:
        CmlError: it is not CML.
    """
    parser = Parser()
    return parser.feed(text) + parser.finish()


def parse_call(text: str) -> ParsedCall:
    """Reads a call in Python's syntax with keyword arguments that are literals.

    Raises:
        CmlError: it is something else.
    """
    error = CmlError(Violation.CALL, text)
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise error from None
    if not isinstance(tree, ast.Call) or not isinstance(tree.func, ast.Name) or tree.args:
        raise error
    arguments: dict[str, object] = {}
    for keyword in tree.keywords:
        if keyword.arg is None or keyword.arg in arguments:
            raise error
        try:
            arguments[keyword.arg] = ast.literal_eval(keyword.value)
        except (ValueError, TypeError, MemoryError, RecursionError):
            raise error from None
    return ParsedCall(tree.func.id, arguments)


_MARKERS = re.compile("(" + "|".join(map(re.escape, SPECIAL_TOKENS)) + ")")


def _misplaced(marker: str) -> Violation:
    if marker == INTR:
        return Violation.INTERRUPT
    return Violation.STRAY if marker.startswith("[") else Violation.CHAT


def _typed(arguments: Mapping[str, object]) -> dict[str, str]:
    """With values as Python writes them, so that `1`, `1.0` and `True` differ."""
    return {name: repr(value) for name, value in arguments.items()}
