"""Reads CML as it is generated: a machine of four states.

Between blocks text passes; `[CALL]` opens a call, which `[HEAD]` divides into identifier and call
and `[END]` closes; `[TRAP]` wants `[END]` at once. Everything else is a violation. (AsyncLM,
section 5.1)
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from keyword import iskeyword
from typing import TypeAlias

from asynclm.cml.dialect import Marker


class State(Enum):
    """Where the machine is."""

    BETWEEN = auto()  # text, outside of blocks
    IDENTIFIER = auto()  # after [CALL]
    CALL = auto()  # after [HEAD]
    TRAP = auto()  # after [TRAP]


class CmlError(Exception):
    """Generated text that is not CML."""


@dataclass(frozen=True, slots=True)
class TextPart:
    """Text between blocks, as it comes."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBlock:
    """`[CALL]identifier[HEAD]text[END]`; without `[HEAD]` the identifier is empty."""

    identifier: str
    text: str
    problem: str = ""  # why no call may have this identifier


@dataclass(frozen=True, slots=True)
class TrapBlock:
    """`[TRAP][END]`."""


Block: TypeAlias = TextPart | CallBlock | TrapBlock


class Parser:
    """Takes markers and the text between them, and gives the blocks that they complete.

    Identifiers are Python names and unique over the parser's whole life, over several turns too. A
    block with another one is a block all the same, which says so: nothing keeps a model from
    writing it.
    """

    def __init__(self, reserved: frozenset[str] = frozenset()) -> None:
        """Takes identifiers that no call may have."""
        self.state = State.BETWEEN
        self.identifiers = set(reserved)  # that are used
        self._identifier = ""
        self._problem = ""
        self._text = ""

    def text(self, text: str) -> list[Block]:
        """Reads text. Raises CmlError within a trap."""
        if self.state is State.BETWEEN:
            return [TextPart(text)] if text else []
        if self.state is State.TRAP and text:
            raise CmlError(f"a trap with something in it: {text!r}")
        self._text += text
        return []

    def marker(self, marker: Marker) -> list[Block]:
        """Reads a marker. Raises CmlError if it is out of place."""
        match self.state, marker:
            case State.BETWEEN, Marker.CALL:
                self.state = State.IDENTIFIER
            case State.BETWEEN, Marker.TRAP:
                self.state = State.TRAP
            case State.IDENTIFIER, Marker.HEAD:
                self._identifier, self._text = self._text.strip(), ""
                self._problem = self._identifier_problem()
                self.identifiers.add(self._identifier)
                self.state = State.CALL
            case ((State.IDENTIFIER | State.CALL), Marker.END):
                block = CallBlock(self._identifier, self._text.strip(), self._problem)
                self._reset()
                return [block]
            case State.TRAP, Marker.END:
                self._reset()
                return [TrapBlock()]
            case _:
                raise CmlError(f"{marker} {_PLACES[self.state]}")
        return []

    def _identifier_problem(self) -> str:
        name = self._identifier
        if not name.isidentifier() or iskeyword(name):
            return f"{name} is not an identifier: write a name"
        if name in self.identifiers:
            return f"the identifier {name} is taken: write the call again with another"
        return ""

    def _reset(self) -> None:
        self.state = State.BETWEEN
        self._identifier = self._problem = self._text = ""


_PLACES = {
    State.BETWEEN: "outside of a block",
    State.IDENTIFIER: "in an identifier",
    State.CALL: "in a call",
    State.TRAP: "in a trap",
}
