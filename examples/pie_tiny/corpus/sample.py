"""The samples of every generator of the corpus: text in pieces, each to be learnt or only to be
read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random

BEGIN, END = "<|begin|>", "<|end|>"
ROLES = ("system", "user", "assistant", "tool")
CALL, HEAD, CLOSE, INTR, TRAP = "[CALL]", "[HEAD]", "[END]", "[INTR]", "[TRAP]"
SPECIAL_TOKENS = (BEGIN, END, *(f"<|{role}|>" for role in ROLES), CALL, HEAD, CLOSE, INTR, TRAP)


@dataclass(frozen=True)
class Piece:
    """A stretch of a sample's text.

    `learned` says whether the model has to write it (its loss counts) or it is given: a prompt, the
    result of a call, an interrupt. Pieces are tokenized one by one, so one must begin where a token
    does: at a special token, a space or a line.
    """

    text: str
    learned: bool


@dataclass(frozen=True)
class Sample:
    """One training or test document.

    Attributes:
        kind: the generator's name, `json`, `cml` and so on.
        pieces: the whole document, in order.
        request: of calls, the `tasks.Request` that they answer.
    """

    kind: str
    pieces: tuple[Piece, ...]
    request: object = None

    @property
    def text(self) -> str:
        """The whole document as one string."""
        return "".join(piece.text for piece in self.pieces)

    @property
    def prompt(self) -> str:
        """The text before the first piece that the model has to write."""
        given = []
        for piece in self.pieces:
            if piece.learned:
                break
            given.append(piece.text)
        return "".join(given)


@dataclass(frozen=True)
class Split:
    """Which names a generator may draw: those of training, or also those kept back from it."""

    held_out: bool = False


Generator = Callable[[Random, Split], Sample]


def turn(role: str, content: str) -> str:
    """One message as the chat template writes it."""
    return f"<|{role}|>\n{content}{END}\n"


def chat(kind: str, system: str, user: str, reply: str) -> Sample:
    """A conversation of one question and one reply; an empty `system` is left out."""
    prompt = (
        BEGIN + (turn("system", system) if system else "") + turn("user", user) + "<|assistant|>\n"
    )
    return Sample(kind, (Piece(prompt, False), Piece(reply + END, True)))


def plain(kind: str, text: str) -> Sample:
    """A document without roles, all of it to be learnt."""
    return Sample(kind, (Piece(BEGIN, False), Piece(text + END, True)))


def prose(names: Iterable[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    listed = list(names)
    return listed[0] if len(listed) == 1 else ", ".join(listed[:-1]) + " and " + listed[-1]
