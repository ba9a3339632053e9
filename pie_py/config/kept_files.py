"""Files that are kept: in the user's cache, what is made again if it lacks, and removed once no
process has used it for long, as that of past versions; and how much users' folders take.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

import platformdirs

FILES_FOLDER = "batches"  # of the data folder: files and batches of each user
RESPONSES_FILE = "responses.json"  # of it: what the gateway keeps in its memory of each user
BLOCK = 4096  # bytes of the disk that a file takes at least


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
    """A file or folder that is used now; what is like it and was not for long is removed."""
    with suppress(OSError):  # another user's, which can be read
        os.utime(path)
    oldest = time.time() - 30 * 86400
    for other in path.parent.glob(pattern):
        with suppress(OSError):
            if other.lstat().st_mtime < oldest:
                if other.is_dir() and not other.is_symlink():
                    shutil.rmtree(other, ignore_errors=True)
                else:
                    other.unlink(missing_ok=True)
    return path


def folder_of(folder: Path, user: str) -> Path:
    """A user's own in a folder for all of them."""
    return folder / f"of-{quote(user, safe='')}"


def on_disk(size: int) -> int:
    """Bytes of the disk that a file takes."""
    return -(-size // BLOCK) * BLOCK


def bytes_on_disk(folder: Path) -> int:
    """Bytes of the disk that a folder's files take, 0 of none; a microsecond or two for each."""
    total = 0
    with suppress(FileNotFoundError), os.scandir(folder) as found:
        for each in found:
            with suppress(FileNotFoundError):  # it was removed meanwhile
                total += on_disk(each.stat().st_size)
    return total


def told_bytes(path: Path, user: str) -> int:
    """Bytes that a file tells of a user; 0 if its writer, who has them in memory, does not run."""
    with suppress(FileNotFoundError):
        return int(json.loads(path.read_bytes()).get(user, 0))
    return 0
