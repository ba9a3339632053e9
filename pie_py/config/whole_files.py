"""Files of which a reader finds all or nothing, and of which one process at a time makes one."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def write_whole(
    path: Path,
    data: bytes | bytearray,
    mode: int = 0o600,
    *,
    replace: bool = True,
    durable: bool = False,
) -> None:
    """Writes a file in one step, and its folder if need be; `durable` if it is to be on the disk
    when this returns. Raises `FileExistsError` if it is there and `replace` is false. Raises
    `OSError` if it cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # mkstemp makes the file readable by its owner alone from the start.
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            os.fchmod(handle, mode)
            if durable:
                file.flush()
                os.fsync(handle)
        if replace:
            os.replace(name, path)
        else:
            os.link(name, path)
    finally:
        Path(name).unlink(missing_ok=True)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keeps other threads and processes that lock the folder waiting."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def put_in_place(made: Path, target: Path) -> None:
    """Copies a file to its place, where it appears whole, in one step."""
    # Beside the target, so that the last step is a rename within one file system; a name of its
    # own, as another process or thread may build the same.
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as beside:
        Path(shutil.copyfile(made, Path(beside, target.name))).replace(target)
