"""The numbers of lives that were given out, on disk: none is given twice."""

from __future__ import annotations

import json
from pathlib import Path

from pie_py.config.whole_files import write_whole


class LivesUnusable(Exception):
    """The file cannot be read or written; the text says what to do."""


class Lives:
    """Per node the number of its last life, and how many nodes were named, in one small file."""

    def __init__(self, path: Path) -> None:
        """Reads the file, if it is there. Raises `LivesUnusable` if it cannot be read."""
        self._path = path
        self._last: dict[str, int] = {}
        self._named = 0
        self._drained: list[str] = []
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            self._named = int(found["named"])
            self._last = {str(node): int(number) for node, number in found["lives"].items()}
            self._drained = [str(node) for node in found.get("drained", [])]
        except FileNotFoundError:
            pass
        except (OSError, ValueError, TypeError, AttributeError, KeyError) as error:
            raise LivesUnusable(
                f"{path} tells which numbers of lives were given out, and cannot be read ({error});"
                " put a copy back. Without it names of instances could be used twice"
            ) from None

    def next(self, node: str, above: int) -> int:
        """The number of a node's next life, above the highest one that has been seen otherwise; it
        is on disk when this returns. Raises `LivesUnusable` if it cannot be written.
        """
        number = max(self._last.get(node, 0), above) + 1
        self._write(self._named, {**self._last, node: number}, self._drained)
        return number

    def end(self, node: str) -> None:
        """A node is drained: it has no other life. On disk when this returns. Raises
        `LivesUnusable` as `next`.
        """
        if node not in self._drained:
            self._write(self._named, self._last, [*self._drained, node])

    def is_drained(self, node: str) -> bool:
        """Whether `end` was called for it."""
        return node in self._drained

    def is_over(self, node: str, incarnation: int) -> bool:
        """Whether a life is none any more: a later one was given out, or its node is drained."""
        return incarnation < self._last.get(node, 0) or self.is_drained(node)

    def allot(self, count: int) -> list[str]:
        """Names for nodes, which none has had before. Raises `LivesUnusable` as `next`."""
        first = self._named + 1
        self._write(self._named + count, self._last, self._drained)
        return [f"n{number}" for number in range(first, first + count)]

    def _write(self, named: int, last: dict[str, int], drained: list[str]) -> None:
        text = json.dumps({"named": named, "lives": last, "drained": drained})
        try:
            write_whole(self._path, text.encode(), durable=True)
        except OSError as error:
            raise LivesUnusable(
                f"{self._path} cannot be written ({error.strerror}): make room on the disk"
            ) from None
        self._named, self._last, self._drained = named, last, drained
