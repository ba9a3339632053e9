"""pdb in an inferlet, over the session: `pie-py run` sends this module with the program.

What pdb writes goes to the client in bytes that begin with a mark, and so does the question for the
next command, whose answer comes back as bytes. All of the inferlet waits meanwhile.
"""

from __future__ import annotations

import io
import pdb
from types import FrameType

from inferlet import raw, session

MARK = b"\0pdb "


class _Terminal(io.TextIOBase):
    """The client's terminal."""

    encoding = "utf-8"

    def write(self, text: str, /) -> int:
        session.send_blob(MARK + b"shows " + text.encode(errors="replace"))
        return len(text)

    def readline(self, size: int | None = -1, /) -> str:  # type: ignore[override]
        """The user's next line; nothing at its end."""
        session.send_blob(MARK + b"asks")
        future = raw.receive_blob()
        raw.wait([future])
        return raw.take_blob(future).decode(errors="replace")


class _Debugger(pdb.Pdb):
    def canonic(self, filename: str) -> str:
        """Names of files are those of the program: there is no folder for them to be in."""
        return filename


_debugger: list[_Debugger] = []  # one for all breakpoints, which it remembers


def set_trace(frame: FrameType) -> None:
    """Stops at the next line of a frame."""
    if not _debugger:
        terminal = _Terminal()
        made = _Debugger(stdin=terminal, stdout=terminal, nosigint=True, readrc=False)  # type: ignore[arg-type]
        made.use_rawinput = False
        made.prompt = "(pdb) "
        _debugger.append(made)
    _debugger[0].set_trace(frame)
