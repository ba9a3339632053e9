"""Standard output and error as the instance's log, and no standard input."""

from __future__ import annotations

import io
from typing import NoReturn

from inferlet import raw
from inferlet._guest.compiling import UNOPENABLE
from inferlet.raw import LogLevel

MOST_OF_A_LINE = 1 << 16  # characters: a log keeps fewer, and what no text may have is a trap


class LogStream(io.TextIOBase):
    """A text stream that logs every line when it is complete."""

    encoding = "utf-8"
    errors = "replace"
    line_buffering = True
    mode = "w"

    def __init__(self, name: str, level: LogLevel) -> None:
        self.name = name
        self._level: LogLevel = level
        self._line = ""

    def writable(self) -> bool:
        """Yes."""
        return True

    def write(self, text: str, /) -> int:
        """Logs the lines that the text completes; keeps the rest."""
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        *lines, line = (self._line + _encodable(text)).split("\n")
        self._line = line[:MOST_OF_A_LINE]
        for line in lines:
            raw.log(self._level, line[:MOST_OF_A_LINE])
        return len(text)

    def flush(self) -> None:
        """Does nothing: an unfinished line waits for its end, or the program's."""

    def finish(self) -> None:
        """Logs the unfinished line."""
        if self._line:
            raw.log(self._level, self._line)
            self._line = ""

    @property
    def buffer(self) -> io.BufferedIOBase:
        """The stream for bytes, which are decoded as UTF-8."""
        return _LogBytes(self)


def _encodable(text: str) -> str:
    """The text with what UTF-8 can't express shown as an escape."""
    if text.isascii():
        return text
    return text.replace(UNOPENABLE, "").encode("utf-8", "backslashreplace").decode()


class _LogBytes(io.BufferedIOBase):
    def __init__(self, text: LogStream) -> None:
        self._text = text

    def writable(self) -> bool:
        return True

    def write(self, data: object, /) -> int:
        view = bytes(memoryview(data))  # type: ignore[arg-type]
        self._text.write(view.decode("utf-8", "replace"))
        return len(view)


class NoInput(io.TextIOBase):
    """Standard input: there is none."""

    encoding = "utf-8"
    name = "<stdin>"
    mode = "r"

    def readable(self) -> bool:
        """Yes, but every read explains itself."""
        return True

    def read(self, size: int | None = -1, /) -> NoReturn:
        """Raises."""
        _refuse()

    def readline(self, size: int = -1, /) -> NoReturn:  # type: ignore[override]
        """Raises."""
        _refuse()

    def __next__(self) -> NoReturn:
        _refuse()


def _refuse() -> NoReturn:
    raise RuntimeError(
        "an inferlet has no standard input: `await session.receive()` gets the client's next text"
    )


def no_input(prompt: object = "", /) -> NoReturn:
    """Stands for `input`."""
    _refuse()
