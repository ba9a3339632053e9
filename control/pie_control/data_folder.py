"""The data folder: its version, and settings of clients, which the next server on it has, too."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import structlog

from pie_control.errors import ApiError
from pie_py.config.kept_files import on_disk
from pie_py.config.whole_files import write_whole

FORMAT = 1
NAME = "format"
BUSY_SECONDS = 10.0  # of a database in it: another server on the same folder may write

log = structlog.get_logger("pie.kept")


class DataFolderUnusable(Exception):
    """A newer pie_py has written it, or it cannot be read; the text says what to do."""


def open_data_folder(folder: Path) -> None:
    """Makes the folder, or takes it over: one without a version is from before there was one.

    Servers that share a folder may do so at once.

    Raises:
        DataFolderUnusable: nothing in it has been touched then.
    """
    path = folder / NAME
    try:
        folder.mkdir(parents=True, exist_ok=True)
        text = path.read_text(encoding="utf-8").strip() if path.exists() else ""
        if text == "":
            write_whole(path, f"{FORMAT}\n".encode())
            return
    except (OSError, UnicodeDecodeError) as error:
        raise DataFolderUnusable(f"the data folder {folder} cannot be used: {error}") from None
    if not text.isdecimal():
        raise DataFolderUnusable(
            f"{path} says {text[:40]!r}, which is no version: is {folder} a data folder of pie_py?"
        )
    if int(text) > FORMAT:
        raise DataFolderUnusable(
            f"the data folder {folder} has format {text}; this pie_py knows {FORMAT}: use a newer"
            " one, or another `data_folder`"
        )


class SettingsFolder:
    """Entries of one kind, each a JSON object under a key of several texts.

    A file each, which appears and goes in one step: servers that share a folder do not overwrite
    each other's. Some hold secrets, so that only the server's user may read them.
    """

    def __init__(self, folder: Path | None, *fields: str, **later: Any) -> None:
        """Takes the files' folder, None to write nothing; the names of an entry's fields, and
        those that entries got `later`, with what they are of older ones.
        """
        self._folder = folder
        self._fields = {*fields, *later}
        self._later = later

    def put(self, *key: str, **fields: Any) -> None:
        """Writes an entry, or another one in its place.

        Raises:
            ApiError: `out-of-resources` if the disk does not take it.
        """
        path = self._path(key)
        if path is None:
            return
        try:
            write_whole(path, json.dumps(fields).encode())
        except OSError as error:
            raise ApiError("out-of-resources", f"it cannot be kept: {error.strerror}") from None

    def remove(self, *key: str) -> None:
        """Forgets an entry; one that is not there is no error."""
        path = self._path(key)
        if path is not None:
            with suppress(OSError):
                path.unlink()

    def get(self, *key: str) -> dict[str, Any] | None:
        """An entry, None if there is none. A damaged file is logged."""
        path = self._path(key)
        return None if path is None or not path.is_file() else self._read(path)

    def bytes_of(self, *key: str) -> int:
        """Bytes of the disk that an entry takes."""
        path = self._path(key)
        return 0 if path is None or not path.is_file() else on_disk(path.stat().st_size)

    def all(self) -> Iterator[dict[str, Any]]:
        """The entries that there are. A damaged file is logged and skipped."""
        if self._folder is None or not self._folder.is_dir():
            return
        for path in sorted(self._folder.glob("*.json")):
            if (fields := self._read(path)) is not None:
                yield fields

    def _read(self, path: Path) -> dict[str, Any] | None:
        try:
            fields = json.loads(path.read_text(encoding="utf-8"))
            if isinstance(fields, dict):
                fields = self._later | fields
            if not isinstance(fields, dict) or fields.keys() != self._fields:
                raise ValueError("another thing")
        except (OSError, ValueError):
            log.warning("a file of settings cannot be read", path=str(path))
            return None
        return fields

    def _path(self, key: tuple[str, ...]) -> Path | None:
        if self._folder is None:
            return None
        return self._folder / f"{hashlib.sha256(json.dumps(key).encode()).hexdigest()[:32]}.json"
