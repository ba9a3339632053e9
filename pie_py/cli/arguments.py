"""Arguments of inferlets, as they are written on the command line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click


def with_files(args: Sequence[str]) -> list[str]:
    """The arguments, with `@PATH` replaced by the text of that file, if there is one; `@@` is `@`.

    Raises:
        click.UsageError: a file is not UTF-8 text, or can't be read.
    """
    return [_expanded(arg) if arg.startswith("@") else arg for arg in args]


def _expanded(arg: str) -> str:
    if arg.startswith("@@"):
        return arg[1:]
    path = Path(arg[1:])
    try:
        if not path.is_file():
            return arg
    except (OSError, ValueError):  # nothing that a file could be called
        return arg
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise click.UsageError(f"{path} is not a text in UTF-8") from None
    except OSError as error:
        raise click.UsageError(f"{path}: {error.strerror}") from None
