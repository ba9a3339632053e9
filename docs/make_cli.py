"""Writes `docs/cli.md`: the `--help` of every command.

    python docs/make_cli.py

A test compares the page with what this writes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from pie_py.cli import main as pie_py

PAGE = Path(__file__).resolve().parent / "cli.md"
HEAD = """\
<!-- Written by make_cli.py from the commands' help; do not edit. -->
# The command line

Answers go to standard output and nothing else does. Exit status: 0; 1 if an inferlet or the command
failed; 2 for wrong usage, also of an inferlet (its error begins with `usage:`); 130 after Ctrl-C.
Listings take `--json`. [Running programs and servers](running.md) says what lies behind the
options.
"""


def render() -> str:
    """The page."""
    parts = [HEAD]
    for path, text in helps(pie_py, "pie-py", None):
        parts.append(f"{'#' * len(path.split())} {path}\n```\n{text}\n```\n")
    return "\n".join(parts)


def helps(
    command: click.Command, path: str, parent: click.Context | None
) -> Iterator[tuple[str, str]]:
    """Name and help of a command and of all below it."""
    context = click.Context(command, parent, path.split()[-1], **command.context_settings)
    context.terminal_width = 100
    if parent is not None:
        yield path, "\n".join(line.rstrip() for line in command.get_help(context).splitlines())
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from helps(below, f"{path} {name}", context)


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
