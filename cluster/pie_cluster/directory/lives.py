"""The numbers of lives that were given out, on disk: none is given twice."""

from __future__ import annotations

import os
from pathlib import Path

from pie_control.errors import Refusal


class Lives:
    """Per node the number of its last life, and how many nodes were named: a file to which each
    change is a line.
    """

    def __init__(self, path: Path) -> None:
        """Reads the file, if it is there. Raises `ValueError` if it cannot be read."""
        self._path = path
        self._last: dict[str, int] = {}
        self._named = 0
        try:
            text = path.read_text(encoding="utf-8") if path.exists() else ""
            # A line without an end was not acknowledged: the disk was full, or the machine died.
            self._whole = len(text[: text.rfind("\n") + 1].encode())
            for line in text.splitlines()[: text.count("\n")]:
                self._take(line)
        except (OSError, ValueError) as error:
            raise ValueError(
                f"{path} tells which numbers of lives were given out, and cannot be read ({error});"
                " put a copy back. Without it names of instances could be used twice"
            ) from None

    def next(self, node: str, above: int) -> int:
        """The number of a node's next life, above the highest one that has been seen otherwise; it
        is on disk when this returns. Raises `Refusal` if it cannot be written.
        """
        number = max(self._last.get(node, 0), above) + 1
        self._note(f"life {node} {number}")
        return number

    def is_over(self, node: str, incarnation: int) -> bool:
        """True if a later life was given out."""
        return incarnation < self._last.get(node, 0)

    def allot(self, count: int) -> list[str]:
        """Names for nodes, which none has had before. Raises `Refusal` as `next`."""
        first = self._named + 1
        self._note(f"named n {self._named + count}")
        return [f"n{number}" for number in range(first, first + count)]

    def _take(self, line: str) -> None:
        kind, node, number = line.split()
        match kind:
            case "life":
                self._last[node] = int(number)
            case "named":
                self._named = int(number)
            case _:
                raise ValueError(f"{line[:80]!r} is no line of it")

    def _note(self, line: str) -> None:
        data = f"{line}\n".encode()
        try:
            with self._path.open("ab") as file:
                file.truncate(self._whole)
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            text = f"{self._path} cannot be written ({error.strerror}): make room on the disk"
            raise Refusal("out-of-resources", text) from None
        self._whole += len(data)
        self._take(line)
