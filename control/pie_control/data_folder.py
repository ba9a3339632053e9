"""The version of what is in a data folder, for servers of other versions of pie_py."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

FORMAT = 1
NAME = "format"


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
            _write(path, f"{FORMAT}\n")
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


def _write(path: Path, text: str) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(name, path)
