"""Errors that the server answers with, and that of wrong arguments."""

from __future__ import annotations


class PieError(RuntimeError):
    """An error that the server answered, `code: message`.

    `code` is one of the contract's stable codes (`out-of-resources`, `not-found`, ...), so that a
    program can tell them apart; `message` says what was wrong and how to mend it.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        code, separator, message = text.partition(": ")
        self.code: str = code if separator else "internal"
        self.message: str = message if separator else text


class NotInServerError(RuntimeError):
    """A call that only works inside a pie_py server was made outside one."""

    def __init__(self) -> None:
        super().__init__(
            "this is a call of the pie_py server, made outside of one; run the program with"
            " `pie-py run FILE.py`"
        )
