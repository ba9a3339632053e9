"""What clients have set up while a server runs, so that the next one on its data folder has it too.

A file each, which appears and goes in one step: servers that share a folder do not overwrite each
other's. Some hold secrets, so that only the server's user may read them.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import structlog

from pie_control.errors import ApiError

log = structlog.get_logger("pie.kept")


class Kept:
    """Entries of one kind, each a JSON object under a key of several texts."""

    def __init__(self, folder: Path | None, *fields: str) -> None:
        """Takes where the files are, None to keep nothing; and the names of an entry's fields."""
        self._folder = folder
        self._fields = set(fields)

    def put(self, *key: str, **fields: Any) -> None:
        """Keeps an entry, or another one in its place.

        Raises:
            ApiError: `out-of-resources` if the disk does not take it.
        """
        path = self._path(key)
        if path is None:
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=path.parent, prefix=".new-")  # its owner's alone
            try:
                with os.fdopen(handle, "w", encoding="utf-8") as file:
                    json.dump(fields, file)
                os.replace(name, path)
            except OSError:
                os.unlink(name)
                raise
        except OSError as error:
            raise ApiError("out-of-resources", f"it cannot be kept: {error.strerror}") from None

    def remove(self, *key: str) -> None:
        """Forgets an entry; one that is not there is no error."""
        path = self._path(key)
        if path is not None:
            with suppress(OSError):
                path.unlink()

    def get(self, *key: str) -> dict[str, Any] | None:
        """An entry, None if there is none. A damaged file is told."""
        path = self._path(key)
        return None if path is None or not path.is_file() else self._read(path)

    def all(self) -> Iterator[dict[str, Any]]:
        """The entries that there are. A damaged file is told and skipped."""
        if self._folder is None or not self._folder.is_dir():
            return
        for path in sorted(self._folder.glob("*.json")):
            if (fields := self._read(path)) is not None:
                yield fields

    def _read(self, path: Path) -> dict[str, Any] | None:
        try:
            fields = json.loads(path.read_text(encoding="utf-8"))
            if not isinstance(fields, dict) or fields.keys() != self._fields:
                raise ValueError("another thing")
        except (OSError, ValueError):
            log.warning("a file of what is kept cannot be read", path=str(path))
            return None
        return fields

    def _path(self, key: tuple[str, ...]) -> Path | None:
        if self._folder is None:
            return None
        return self._folder / f"{hashlib.sha256(json.dumps(key).encode()).hexdigest()[:32]}.json"
