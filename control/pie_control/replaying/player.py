"""Gives a program the answers of a record, as long as it asks what the record's program asked."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from pie_control.api.signatures import SIGNATURES, Signature
from pie_control.errors import ApiError
from pie_control.recording import text_of, typed
from pie_control.wasm import HostFunction
from pie_py.wire.record import Call, Record

# They give a program nothing, so a changed one may make more or fewer of them.
FREE = frozenset({"runtime.log", "source.keep"})
SENT = frozenset({"session.send", "session.send-blob"})
DEBUGGER_MARK = b"\0pdb "  # begins what pdb in a program sends (pie_py.cli.stream)
DEBUGGER_FUTURE = 0xFFFF_FFFF


class Terminal(Protocol):
    """The person at a replay."""

    def called(self, number: int, call: Call) -> None:
        """A call of the record has been replayed."""

    def sent(self, message: str | bytes) -> None:
        """The program has sent its client a message."""

    def logged(self, level: str, text: str) -> None:
        """The program has printed or logged a line."""

    def ask(self) -> str:
        """pdb wants the next command: a line with its end, or nothing at the end of input."""

    def debugs(self, text: str) -> None:
        """pdb shows a text."""


@dataclass(frozen=True)
class Departure:
    """Where a program asks something else than the record's: its call number, from 1."""

    number: int
    asks: str
    recorded: str


@dataclass
class Player:
    """Host functions that answer from a record.

    Attributes:
        record: what they answer from.
        terminal: the person who watches.
        source: a Python program in place of the record's.
        departure: where the program has left the record; no answer is given afterwards.
        over: the record has ended before the program has.
    """

    record: Record
    terminal: Terminal
    source: str | None = None
    departure: Departure | None = None
    over: bool = False
    _calls: list[Call] = field(init=False)
    _next: int = 0
    _asks: bool = False  # pdb waits for a command

    def __post_init__(self) -> None:
        self._calls = [call for call in self.record.calls if call.name not in FREE]

    @property
    def replayed(self) -> int:
        """Calls of the record that the program has made, of `total`."""
        return self._next

    @property
    def total(self) -> int:
        """Calls of the record that count."""
        return len(self._calls)

    @property
    def last(self) -> Call | None:
        """The newest of the replayed calls."""
        return self._calls[self._next - 1] if self._next else None

    def functions(self) -> tuple[HostFunction, ...]:
        """All functions of the contract."""
        return tuple(
            HostFunction(
                interface,
                name,
                tuple(signature.params.values()),
                signature.result,
                signature.fallible,
                partial(self._call, f"{interface}.{name}", signature),
            )
            for interface, found in SIGNATURES.items()
            for name, signature in found.items()
        )

    def finish(self) -> None:
        """The program has ended: so should the record."""
        if self.departure is None and not self.over and self._next < len(self._calls):
            following = described(self._calls[self._next])
            self.departure = Departure(self._next + 1, "nothing more: it ends", following)

    def _call(self, name: str, signature: Signature, state: object, *args: Any) -> Any:
        if name == "runtime.log":
            self.terminal.logged(*args)
            return None
        if name in FREE:
            return None
        if self._asks or (name == "session.send-blob" and args[0].startswith(DEBUGGER_MARK)):
            return self._debug(name, args)
        call = self._matching(name, args)
        self._next += 1
        self.terminal.called(self._next, call)
        if call.fails is not None:
            code, _, message = call.fails.partition(": ")
            raise ApiError(code, message)  # type: ignore[arg-type]
        if name in SENT:
            self.terminal.sent(args[0])
        answer = typed(call.answer, signature.result)
        if name == "source.read" and self.source is not None:
            file, _, _, given = answer
            return file, self.source, "", given
        return answer

    def _matching(self, name: str, args: tuple[Any, ...]) -> Call:
        """The record's next call, if it is this one.

        Raises:
            ApiError: it is not; the program's traceback then says where.
        """
        if self.departure is None and not self.over:
            call = self._calls[self._next] if self._next < len(self._calls) else None
            if call is None or call.open:
                self.over = True
            elif call.name == name and text_of(call.args) == text_of(list(args)):
                return call
            else:
                asks = described(Call(name, list(args)))
                self.departure = Departure(self._next + 1, asks, described(call))
        raise ApiError("cancelled", "the replay has ended")

    def _debug(self, name: str, args: tuple[Any, ...]) -> Any:
        """pdb talks to the terminal: its calls are not the program's."""
        match name:
            case "session.send-blob":
                kind, _, text = args[0].removeprefix(DEBUGGER_MARK).partition(b" ")
                self._asks = kind == b"asks"
                if not self._asks:
                    self.terminal.debugs(text.decode())
                return None
            case "session.receive-blob":
                return DEBUGGER_FUTURE
            case "runtime.wait":
                return [DEBUGGER_FUTURE]
        self._asks = False
        return self.terminal.ask().encode()


def described(call: Call) -> str:
    """A call as one reads it: `runtime.wait(futures=[3]) → [3]`."""
    interface, _, name = call.name.partition(".")
    found = SIGNATURES.get(interface, {}).get(name)
    names = list(found.params) if found is not None else []
    names += [""] * (len(call.args) - len(names))
    given = [f"{one}={_short(value)}" for one, value in zip(names, call.args, strict=False)]
    text = f"{call.name}({', '.join(given)})"
    if call.fails is not None:
        return f"{text} fails: {_short(call.fails)}"
    return text if call.answer is None else f"{text} → {_short(call.answer)}"


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else text_of(value)
    text = text_of(text) if isinstance(value, str) else text
    return text if len(text) <= 160 else f"{text[:160]}… ({len(text)} characters)"
