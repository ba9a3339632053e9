"""The commands' output: answers to standard output, all else to standard error."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle
from typing import Any

import click

from pie_py.config.printable import printable

LOOK_SECONDS = 0.3  # between two looks at what is followed


def say(text: str) -> None:
    """Tells the user something, on standard error."""
    print_text(text, err=True)


def print_text(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Prints what strangers may have written: a terminal acts on no character of it."""
    click.echo(printable(text, None, lines=True), err=err, nl=nl)


@contextmanager
def progress(text: str) -> Iterator[Callable[[str], object]]:
    """Tells what takes time on standard error, with `alive`; gives what tells its parts."""
    say(text)
    with alive():
        yield say


@contextmanager
def alive(doing: str = "") -> Iterator[None]:
    """Within it, a terminal shows the seconds from the first one on: at the begin of a line, where
    what is printed meanwhile stands over it, also by other processes.
    """
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield
        return
    ended = threading.Event()

    def draw() -> None:
        begun = time.monotonic()
        signs = cycle("⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏")
        while not ended.wait(LOOK_SECONDS):
            if (seconds := int(time.monotonic() - begun)) > 0:
                click.echo(f"\r{next(signs)} {seconds} s {doing}\x1b[K\r", err=True, nl=False)

    drawing = threading.Thread(target=draw, daemon=True)
    drawing.start()
    try:
        yield
    finally:
        ended.set()
        drawing.join()
        click.echo("\r\x1b[K", err=True, nl=False)


def run_to_end(command: Sequence[str]) -> int:
    """Runs a command in this terminal and returns its status; Ctrl-C is its to handle."""
    with subprocess.Popen(command) as process:
        while True:
            try:
                return process.wait()
            except KeyboardInterrupt:  # the terminal has sent it to the child, too
                continue


def columns(text: str) -> dict[str, str]:
    """Columns of a table, key to title: of `key=TITLE`, or a key alone, in capitals."""
    pairs = (word.partition("=")[::2] for word in text.split())
    return {key: (title or key.upper()).replace("_", " ") for key, title in pairs}


def table(rows: Sequence[dict[str, Any]], columns: dict[str, str], as_json: bool) -> None:
    """Prints rows: as JSON with all they hold, or the columns (key to title) as text."""
    if as_json:
        print_text(json.dumps(rows, indent=1, ensure_ascii=False))
        return
    for line in lines_of(rows, columns):
        print_text(line)


def lines_of(rows: Sequence[dict[str, Any]], columns: dict[str, str]) -> Iterator[str]:
    """The lines of a table, its head first."""
    cells = [list(columns.values())]
    cells += [[_cell(key, row.get(key)) for key in columns] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for line in cells:
        padded = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        yield "  ".join(padded).rstrip()


def _cell(key: str, value: Any) -> str:
    match key, value:
        case _, None:
            return "-"
        case "hash", str():
            return printable(value, 12).removesuffix("…")
        case (("created_ns" | "ended_ns" | "uploaded_ns" | "used_ns"), int()):
            seconds = max(0, time.time_ns() - value) // 1_000_000_000
            for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
                if seconds >= 2 * length:
                    return f"{seconds // length} {unit} ago"
            return f"{seconds} s ago"
        case "size", int():
            if value < 1000:
                return f"{value} B"
            if value < 1_000_000:
                return f"{value / 1e3:.1f} kB"
            return f"{value / 1e6:.1f} MB"
        case _, bool():
            return "yes" if value else "no"
        case _, float():
            return f"{value:.1f}"
        case _, list():
            value = " ".join(map(str, value))
    return printable(" ".join(str(value).split()), 80)


def in_binary(size: int) -> str:
    """Bytes in the unit that limits are set in."""
    powers = {"GiB": 30, "MiB": 20, "KiB": 10}
    unit = next((unit for unit, power in powers.items() if size >> power), None)
    return f"{size} B" if unit is None else f"{size / (1 << powers[unit]):.1f} {unit}"
