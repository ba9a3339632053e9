"""The numbers of lives that were given out, on disk: none is given twice, nor one to a node that
is drained.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from pie_control.errors import Refusal

NAMED = ""  # stands for how many nodes were named


class Lives:
    """Per node the number of its last life, in a file of SQLite; below 0 if none is to follow."""

    def __init__(self, path: Path) -> None:
        """Reads the file, if it is there. Raises `ValueError` if it cannot be read."""
        self._path = path
        table = "CREATE TABLE IF NOT EXISTS lives (node TEXT PRIMARY KEY, number INTEGER) STRICT"
        try:
            with closing(sqlite3.connect(self._path)) as file:
                file.execute(table)
                self._last: dict[str, int] = dict(file.execute("SELECT node, number FROM lives"))
        except sqlite3.Error as error:
            raise ValueError(
                f"{path} tells which numbers of lives were given out, and cannot be read ({error});"
                " put a copy back. Without it names of instances could be used twice"
            ) from None

    def next(self, node: str, above: int) -> int:
        """The number of a node's next life, above the highest one that has been seen otherwise; it
        is on disk when this returns. Raises `Refusal` if it cannot be written; `drained` if the
        node has no other life.
        """
        last = self._last.get(node, 0)
        if last < 0:
            raise Refusal("drained", f"{node} is drained and has no other life")
        return self._note(node, max(last, above) + 1)

    def drain(self, node: str, last: int, *, again: bool) -> None:
        """True if a life is to follow a node's last one, which drains. Raises `Refusal` as
        `next`.
        """
        number = max(last, abs(self._last.get(node, 0)))
        self._note(node, number if again else -number)

    def is_over(self, node: str, incarnation: int) -> bool:
        """True if a later life was given out."""
        return incarnation < abs(self._last.get(node, 0))

    def allot(self, count: int) -> list[str]:
        """Names for nodes, which none has had before. Raises `Refusal` as `next`."""
        last = self._note(NAMED, self._last.get(NAMED, 0) + count)
        return [f"n{number}" for number in range(last - count + 1, last + 1)]

    def _note(self, node: str, number: int) -> int:
        try:
            with closing(sqlite3.connect(self._path)) as file, file:
                file.execute("INSERT OR REPLACE INTO lives VALUES (?, ?)", (node, number))
        except sqlite3.Error as error:
            text = f"{self._path} cannot be written ({error}): make room on the disk"
            raise Refusal("out-of-resources", text) from None
        self._last[node] = number
        return number
