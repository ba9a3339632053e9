"""Files and batches of users, below the data folder: of each its facts in JSON, `ID.json`, and of a
file its bytes, `ID`. What a user has there is what the folder takes of the disk.

Functions that look through a folder, or write, take as long as users have much: call them aside.
"""

from __future__ import annotations

import fcntl
import re
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from pie_gateway.problems import Problem
from pie_py.config.kept_files import BLOCK, bytes_on_disk, folder_of, on_disk

MOST_KEPT = 4096  # files and batches of a user
MOST_NAME = 255  # characters of a file's name


class StoredFile(msgspec.Struct):
    """The facts of a file."""

    id: str
    created_at: int
    filename: str
    purpose: str
    bytes: int = 0
    object: Literal["file"] = "file"
    status: Literal["processed"] = "processed"


class Batch(msgspec.Struct):
    """A batch; times are seconds since 1970."""

    id: str
    endpoint: str
    input_file_id: str
    completion_window: str
    created_at: int
    expires_at: int
    status: str = "validating"
    request_counts: dict[str, int] = msgspec.field(
        default_factory=lambda: {"total": 0, "completed": 0, "failed": 0}
    )
    errors: dict[str, Any] | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    metadata: dict[str, str] | None = None
    object: Literal["batch"] = "batch"

    def become(self, status: str, *errors: dict[str, Any]) -> None:
        """Sets the status, and since when it has it; and what was wrong."""
        self.status = status
        setattr(self, f"{status}_at", int(time.time()))
        if errors:
            self.errors = {"object": "list", "data": list(errors)}

    @property
    def has_ended(self) -> bool:
        """True if it does not change any more."""
        return self.status in ("completed", "failed", "expired", "cancelled")


Kept = TypeVar("Kept", StoredFile, Batch)
_PREFIX: dict[type, str] = {StoredFile: "file-", Batch: "batch_"}


class Store:
    """Files and batches on disk."""

    def __init__(self, folder: Path, most: int, seconds: float) -> None:
        """Takes the folder, which need not exist; the bytes of the disk that one user may have of
        it; and how long what is not written any more is kept.
        """
        self._folder, self._most, self._seconds = folder, most, seconds

    def path(self, user: str, name: str) -> Path:
        """Where the bytes of a file are, in the folder of its user."""
        return folder_of(self._folder, user) / name

    def save(self, user: str, kept: StoredFile | Batch) -> None:
        """Writes the facts, all or nothing."""
        path = self.path(user, f"{kept.id}.json")
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        written = path.with_suffix(".new")
        written.write_bytes(msgspec.json.encode(kept))
        written.replace(path)

    def find(self, user: str, name: str, kind: type[Kept], param: str | None = None) -> Kept:
        """The facts of a file or a batch. Raises `Problem`: 404, naming `param` of the request."""
        try:
            if not re.fullmatch(_PREFIX[kind] + r"[0-9a-f]{1,99}", name):
                raise FileNotFoundError
            found = msgspec.json.decode(self.path(user, f"{name}.json").read_bytes(), type=kind)
            if isinstance(found, StoredFile):
                found.bytes = self.path(user, name).stat().st_size
            return found
        except (FileNotFoundError, msgspec.DecodeError):  # written as the machine went down
            what = "file" if kind is StoredFile else "batch"
            raise Problem(404, f"no {what} is called {name[:100]!r}", param=param) from None

    def all(
        self, user: str, kind: type[Kept], after: str | None = None, *, newest: bool = True
    ) -> Iterator[Kept]:
        """Those of a user, the newest (or oldest) first, or those that come after one."""
        for name in sorted((path.stem for path in self._facts(user, kind)), reverse=newest):
            if not after or (name < after if newest else name > after):
                with suppress(Problem):  # it was removed meanwhile
                    yield self.find(user, name, kind)

    def _facts(self, user: str, kind: type[StoredFile] | type[Batch]) -> Iterator[Path]:
        return self.path(user, "").glob(f"{_PREFIX[kind]}*.json")

    def check_room(self, user: str, size: int, more: int = 1) -> None:
        """Refuses so many bytes, of `more` files or batches beside those that there are. Raises
        `Problem`: 413 beyond what one user may have.
        """
        if bytes_on_disk(self.path(user, "")) + on_disk(size) + more * BLOCK > self._most:
            text = f"a user's files and batches have {self._most >> 20} MiB at most: delete some"
            raise Problem(413, text, code="files_too_large")
        kept = sum(1 for kind in _PREFIX for _ in self._facts(user, kind))
        if kept + more > MOST_KEPT:
            text = f"a user has {MOST_KEPT} files and batches at most: delete some"
            raise Problem(413, text, code="too_many_files")

    def add(self, user: str, filename: str, purpose: str, content: bytes = b"") -> StoredFile:
        """A new file. Raises `Problem` as `check_room`, and 400 if its name is too long."""
        if len(filename) > MOST_NAME:
            text = f"`file`: its name has {len(filename)} characters, {MOST_NAME} at most"
            raise Problem(400, text, param="file")
        self.check_room(user, len(content))
        found = StoredFile(new_id("file-"), int(time.time()), filename, purpose, len(content))
        self.save(user, found)
        try:
            self.path(user, found.id).write_bytes(content)
        except OSError:
            self.remove(user, found.id)
            raise
        return found

    def forget_old(self, now: float) -> None:
        """Removes what was written so long ago, of all users."""
        for folder in self._folder.glob("of-*"):
            for path in folder.iterdir():
                with suppress(FileNotFoundError):
                    if path.stat().st_mtime < now - self._seconds:
                        path.unlink()

    def remove(self, user: str, name: str) -> None:
        """Removes a file of this name."""
        for path in (self.path(user, f"{name}.json"), self.path(user, name)):
            path.unlink(missing_ok=True)

    @contextmanager
    def running(self, user: str, batch: str) -> Iterator[bool]:
        """Marks a batch as running for as long as this process runs it; False if it is marked."""
        with self.path(user, f"{batch}.lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                yield True
            except BlockingIOError:
                yield False


def new_id(prefix: str) -> str:
    """A name whose order is that of time."""
    return f"{prefix}{time.time_ns():x}{uuid.uuid4().hex[:8]}"
