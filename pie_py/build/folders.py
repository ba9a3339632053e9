"""Files that several processes make: one of them makes a file, and it appears whole."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


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
