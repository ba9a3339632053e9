"""Files of which a reader finds all or nothing."""

from __future__ import annotations

import os
import tempfile
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
    when this returns.

    Raises:
        FileExistsError: if it is there and `replace` is false.
        OSError: if it cannot be written.
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
