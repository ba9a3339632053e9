"""The files of a checkpoint's folder, which a stranger may have made.

What is read lies in the folder: a name that an index gives, or a link, leads nowhere else. Only
whole files are read, and no larger ones than a checkpoint has.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

MAX_TEXT = 256 << 20  # bytes of a JSON file or a template


class BadFile(ValueError):
    """A file of a checkpoint cannot be read; the text names it."""


def checkpoint_file(folder: Path, name: str) -> Path | None:
    """A file of a folder, or None if there is no such.

    The hub's cache has links in `snapshots/REVISION` to `blobs` beside it, which may be followed.

    Raises:
        BadFile: if it is something else, or not in the folder.
    """
    path = folder / name
    try:
        found, home = path.resolve(strict=True), folder.resolve()
    except FileNotFoundError:
        if path.is_symlink():
            raise BadFile(f"{path} is a link to a file that is not there") from None
        return None
    except (OSError, RuntimeError, ValueError) as error:  # a circle of links, a name of zeros
        raise BadFile(f"{folder}: the file {name[:200]!r} cannot be read: {error}") from None
    homes = [home]
    if home.parent.name == "snapshots":
        homes.append(home.parents[1] / "blobs")
    if not any(found.is_relative_to(each) for each in homes):
        raise BadFile(f"{path} leads out of its folder, to {found}: put the file itself there")
    if not found.is_file():
        raise BadFile(f"{path} is no file")
    return path


def read_text(folder: Path, name: str) -> str | None:
    """The text of a file, or None if there is no such.

    Raises:
        BadFile: if it is no file of UTF-8 in the folder, or too large.
    """
    file = checkpoint_file(folder, name)
    if file is None:
        return None
    try:
        if file.stat().st_size > MAX_TEXT:
            raise BadFile(f"{file} has more than {MAX_TEXT} bytes")
        return file.read_text(encoding="utf-8").removeprefix("\ufeff")
    except (OSError, UnicodeDecodeError) as error:
        raise BadFile(f"{file} cannot be read: {error}") from None


def read_object(folder: Path, name: str) -> dict[str, Any] | None:
    """The JSON object of a file, or None if there is no such.

    Raises:
        BadFile: as `read_text`, or if it is no object.
    """
    text = read_text(folder, name)
    if text is None:
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadFile(f"{folder / name} cannot be read: {error}") from None
    if not isinstance(value, dict):
        raise BadFile(f"{folder / name} holds no JSON object")
    return value
