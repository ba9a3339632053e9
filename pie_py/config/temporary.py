"""Folders for the time of a process, in the system's folder for temporary files."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

_PREFIX = "pie-"
_LOCK = ".in-use"  # held by the process whose folder it is, as long as that lives
_MOST = 50  # bytes, so that paths of sockets below, also in kept servers' folders, have at most 100


def temporary_place() -> Path:
    """The system's folder for temporary files, or /tmp: the path of a socket has to be short."""
    found = tempfile.gettempdir()
    return Path(found if len(os.fsencode(found)) <= _MOST else "/tmp")


class TemporaryFolder:
    """A folder of this process, which goes with its context.

    One whose process was killed goes when the next process makes one.
    """

    def __init__(self) -> None:
        """Makes it. Raises `OSError` if there is no room."""
        for lock in temporary_place().glob(f"{_PREFIX}*/{_LOCK}"):
            with suppress(OSError):  # another user's, or gone meanwhile
                facts = lock.parent.lstat()
                if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.getuid():
                    continue
                opened = os.open(lock, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
                try:
                    fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(lock.parent)
                finally:
                    os.close(opened)
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=temporary_place()))
        made = self.path / f"{_LOCK}.new"  # of another name until it is locked
        self._lock = -1
        try:
            self._lock = os.open(made, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            made.rename(self.path / _LOCK)
        except OSError:  # no more files may be open, or the file system has no locks
            self.close()
            raise

    def close(self) -> None:
        """Removes it; does nothing the second time."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def __enter__(self) -> Path:
        """Its path."""
        return self.path

    def __exit__(self, *_: object) -> None:
        """As `close`."""
        self.close()
