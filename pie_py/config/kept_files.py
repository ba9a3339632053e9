"""Files that are kept in the user's cache: what is made again if it lacks, and removed once no
process has used it for long, as that of past versions.
"""

from __future__ import annotations

import os
import shutil
import time
from contextlib import suppress
from pathlib import Path

import platformdirs


def cache_folder() -> Path:
    """The user's, for pie_py."""
    return Path(platformdirs.user_cache_dir("pie_py"))


def own_folder(name: str) -> Path:
    """A folder of it, made if need be, for what is run or trusted. Raises `OSError` if there can be
    none, or another user can put something into it.
    """
    folder = cache_folder() / name
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    facts = folder.stat()
    if facts.st_uid != os.getuid() or facts.st_mode & 0o022:
        raise PermissionError(f"{folder} is not this user's alone: remove it")
    return folder


def used(path: Path, pattern: str) -> Path:
    """A file or folder that is used now. Its like beside it, of the pattern, that have not been
    used for long are removed.
    """
    with suppress(OSError):  # another user's, which can be read
        os.utime(path)
    oldest = time.time() - 30 * 86400
    for other in path.parent.glob(pattern):
        with suppress(OSError):
            if other.lstat().st_mtime < oldest:
                _remove(other)
    return path


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
