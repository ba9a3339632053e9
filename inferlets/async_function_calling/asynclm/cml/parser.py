"""Reads CML as it is generated: a machine of four states, fed token by token.

Between blocks text passes; `[CALL]` opens a call, which `[HEAD]` divides into identifier and call
and `[END]` closes; `[TRAP]` wants `[END]` at once. Everything else is a violation. (AsyncLM,
section 5.1)
"""

from __future__ import annotations

from enum import Enum, auto
from keyword import iskeyword
from typing import TypeAlias

from asynclm.cml.dialect import Dialect, Marker
from asynclm.values import Value
from inferlet import TextDecoder


class State(Enum):
    """Where the machine is."""

    BETWEEN = auto()  # text, outside of blocks
    IDENTIFIER = auto()  # after [CALL]
    CALL = auto()  # after [HEAD]
    TRAP = auto()  # after [TRAP]


class CmlError(Exception):
    """Generated text that is not CML."""


class TextPart(Value):
    """Text between blocks, as it comes."""

    text: str


class CallBlock(Value):
    """`[CALL]identifier[HEAD]text[END]`; without `[HEAD]` the identifier is empty.

    Attributes:
        problem: why no call may have this identifier; empty if this one may.
    """

    identifier: str
    text: str
    problem: str = ""


class TrapBlock(Value):
    """`[TRAP][END]`."""


Block: TypeAlias = TextPart | CallBlock | TrapBlock


class Parser:
    """Takes markers and the text between them, and gives the blocks that they complete.

    It knows nothing of tokens; `TokenParser` and `TextParser` feed it. Identifiers are Python names
    and unique over the parser's whole life, over several turns too. A block with another one is a
    block all the same, which says so: nothing keeps a model from writing it.

    Attributes:
        state: where it is.
        identifiers: those used so far, reserved ones included.
    """

    def __init__(self, reserved: frozenset[str] = frozenset()) -> None:
        """Takes identifiers that no call may have."""
        self.state = State.BETWEEN
        self.identifiers = set(reserved)
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


class TokenParser:
    """Feeds a parser from a model that has CML's markers as special tokens.

    Attributes:
        machine: the parser.
    """

    def __init__(self, dialect: Dialect, reserved: frozenset[str] = frozenset()) -> None:
        self.machine = Parser(reserved)
        self._dialect = dialect
        self._block: list[int] = []  # tokens of the open part of a block
        self._decoder = TextDecoder(dialect.codec.decode)
        self._held = False  # a character between blocks is incomplete

    @property
    def critical(self) -> bool:
        """True if nothing may be put in here: within a block, or within a character."""
        return self.machine.state is not State.BETWEEN or self._held

    def feed(self, token: int) -> list[Block]:
        """Reads a token; the blocks, or the text, that it completes.

        Raises:
            CmlError: the token violates CML.
        """
        marker = self._dialect.by_token.get(token)
        if marker is None:
            if self.machine.state is not State.BETWEEN:
                self._block.append(token)
                return self.machine.text("x") if self.machine.state is State.TRAP else []
            text = self._decoder.feed(token)
            self._held = not text or self._decoder.waiting
            return self.machine.text(text)
        blocks = self.finish_text()
        if self._block:
            blocks += self.machine.text(self._dialect.codec.decode(self._block))
            self._block.clear()
        return blocks + self.machine.marker(marker)

    def finish_text(self) -> list[Block]:
        """Text that waited for the rest of a character; the next token begins a new one."""
        rest = self._decoder.finish()
        self._decoder = TextDecoder(self._dialect.codec.decode)
        self._held = False
        return self.machine.text(rest) if rest and self.machine.state is State.BETWEEN else []


class TextParser:
    """Feeds a parser from a model that writes CML's markers as plain text.

    A marker may be spread over tokens and share its first token with what precedes it.

    Attributes:
        machine: the parser.
    """

    def __init__(self, dialect: Dialect, reserved: frozenset[str] = frozenset()) -> None:
        self.machine = Parser(reserved)
        self._dialect = dialect
        self._decoder = TextDecoder(dialect.codec.decode)
        self._tail = ""  # text that may be the beginning of a marker
        self._held = False

    @property
    def critical(self) -> bool:
        """True if nothing may be put in here: within a block, a marker or a character."""
        return self.machine.state is not State.BETWEEN or bool(self._tail) or self._held

    def preview(self, token: int) -> tuple[Marker | None, str]:
        """The marker that a token would complete, and the text that would follow it."""
        text = self._tail + self._dialect.codec.decode([token])
        _, marker, rest = _split(text)
        return marker, rest

    def feed(self, token: int) -> list[Block]:
        """Reads a token; the blocks, or the text, that it completes.

        Raises:
            CmlError: the token violates CML.
        """
        new = self._decoder.feed(token)
        self._held = not new or self._decoder.waiting
        return self._read(new)

    def finish_text(self) -> list[Block]:
        """Text that waited: at the end of a turn, or before something is put in."""
        text = self._tail + self._decoder.finish()
        self._tail = ""
        self._decoder = TextDecoder(self._dialect.codec.decode)
        self._held = False
        return self.machine.text(text) if self.machine.state is State.BETWEEN else []

    def _read(self, new: str) -> list[Block]:
        text = self._tail + new
        blocks: list[Block] = []
        before, marker, text = _split(text)
        while marker is not None:
            blocks += self.machine.text(before) + self.machine.marker(marker)
            before, marker, text = _split(text)
        keep = max(_overlap(text, marker) for marker in Marker)
        self._tail = text[len(text) - keep :]
        return blocks + self.machine.text(text[: len(text) - keep])


def _split(text: str) -> tuple[str, Marker | None, str]:
    """A text at its first marker: what is before it, and behind it, or all where there is none."""
    places = [(text.find(marker), marker) for marker in Marker if marker in text]
    if not places:
        return "", None, text
    place, marker = min(places)
    return text[:place], marker, text[place + len(marker) :]


def _overlap(text: str, marker: str) -> int:
    """Length of the longest end of the text that begins the marker."""
    most = min(len(text), len(marker) - 1)
    return next((n for n in range(most, 0, -1) if text.endswith(marker[:n])), 0)


def parser_for(
    dialect: Dialect, reserved: frozenset[str] = frozenset()
) -> TokenParser | TextParser:
    """The parser that reads a model's dialect."""
    return TextParser(dialect, reserved) if dialect.is_text else TokenParser(dialect, reserved)
