"""Traces of requests, as launches: Mooncake's JSON lines, BurstGPT's and Azure's tables.

Mooncake's lines tell which blocks of 512 tokens prompts begin with, so caches can be simulated. A
line may have more of ours: `user`, `program`, and `turns`, what the instance does after its first
answer: [seconds that it waits, tokens it is given, tokens it generates], each. Without a program,
launches that begin with the same block count as one program's. The two tables tell when requests
came and how long they were; nothing of their prompts is shared.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Annotated, TypeAlias

import msgspec

BLOCK = 512  # tokens
MOST_LINES = 100_000
_MOST = 1 << 40
Tokens: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=_MOST)]
Seconds: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=_MOST)]
Turn: TypeAlias = tuple[Seconds, Tokens, Tokens]


class BadTrace(ValueError):
    """A trace that cannot be read: the file, the line, and what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Launch:
    """One line of a trace."""

    at: float  # seconds since the trace's first
    prompt: int  # tokens
    output: int  # tokens
    blocks: tuple[int, ...] = ()  # of the prompt's beginning
    user: str = ""
    program: str = ""
    turns: tuple[Turn, ...] = ()


class _Mooncake(msgspec.Struct):
    """A line as it is written; times are milliseconds. Other fields are not looked at."""

    timestamp: Annotated[float, msgspec.Meta(ge=-_MOST, le=_MOST)]
    input_length: Tokens
    output_length: Tokens
    hash_ids: list[Annotated[int, msgspec.Meta(ge=0, le=_MOST)]] = []
    user: str = ""
    program: str = ""
    turns: list[Turn] = []


def read_trace(path: Path, most: int = MOST_LINES) -> list[Launch]:
    """Reads the first lines of a trace; they may be in any order of time.

    Raises:
        BadTrace: if the file is of none of the three formats, a line is broken, or there is none.
        OSError: if it can't be read.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            first = file.readline()
            file.seek(0)
            if not first:
                raise BadTrace(f"{path} is no trace: it has no lines")
            rows = _json_lines(file, path) if first.lstrip().startswith("{") else _table(file, path)
            launches = sorted(islice(rows, most), key=lambda launch: launch.at)
    except UnicodeDecodeError as error:
        raise BadTrace(f"{path} is no trace: it is no text in UTF-8 ({error.reason})") from None
    if not launches:
        raise BadTrace(f"{path} is no trace: it has no lines")
    begin = launches[0].at
    return [replace(one, at=one.at - begin) for one in launches]


def _json_lines(lines: Iterator[str], path: Path) -> Iterator[Launch]:
    decoder = msgspec.json.Decoder(_Mooncake)
    for number, text in enumerate(lines, 1):
        if not text.strip():
            continue
        try:
            line = decoder.decode(text)
        except (msgspec.DecodeError, RecursionError) as error:
            raise BadTrace(f"{path}:{number}: {error}") from None
        room = -(-line.input_length // BLOCK)
        if len(line.hash_ids) > room:
            raise BadTrace(
                f"{path}:{number}: hash_ids has {len(line.hash_ids)} blocks of {BLOCK} tokens, but"
                f" input_length {line.input_length} has room for {room}"
            )
        program = line.program or (f"block {line.hash_ids[0]}" if line.hash_ids else "")
        yield Launch(
            line.timestamp / 1000,
            line.input_length,
            line.output_length,
            tuple(line.hash_ids),
            line.user,
            program,
            tuple(line.turns),
        )


def _table(lines: Iterator[str], path: Path) -> Iterator[Launch]:
    reader = csv.reader(lines, strict=True)
    try:
        header = next(reader, [])
        found = [table for table in _TABLES if set(table[0]) <= set(header)]
        if not found:
            raise ValueError(
                "neither a line of JSON (Mooncake) nor the titles of BurstGPT's or Azure's columns"
            )
        columns, seconds = found[0]
        places = [header.index(column) for column in columns]
        for row in reader:
            if row:
                yield _row([row[place] for place in places], seconds)
    except UnicodeDecodeError:
        raise
    except IndexError:
        raise BadTrace(f"{path}:{reader.line_num}: a column is missing") from None
    except (csv.Error, ValueError) as error:
        raise BadTrace(f"{path}:{max(1, reader.line_num)}: {error}") from None


def _row(cells: list[str], seconds: Callable[[str], float]) -> Launch:
    at, prompt, output = seconds(cells[0]), int(cells[1]), int(cells[2])
    if not (abs(at) <= _MOST and 0 <= prompt <= _MOST and 0 <= output <= _MOST):
        raise ValueError(f"a number is out of range: {', '.join(cells):.100}")
    return Launch(at, prompt, output)


def _date(text: str) -> float:
    """Azure writes fractions of any length, with or without an offset; none means UTC."""
    found = re.fullmatch(r"([0-9-]{10}[ T][0-9:]{8})(\.[0-9]{1,20})?([+-][0-9:]{5})?", text)
    if found is None:
        raise ValueError(f"{text!r:.60} is no time such as 2024-05-10 00:00:00.009930")
    fraction = float(found[2] or 0)
    return datetime.fromisoformat(f"{found[1]}{found[3] or '+00:00'}").timestamp() + fraction


# Each table: the columns of time, prompt and output, and how its times are read.
_TABLES: tuple[tuple[tuple[str, str, str], Callable[[str], float]], ...] = (
    (("Timestamp", "Request tokens", "Response tokens"), float),  # BurstGPT
    (("TIMESTAMP", "ContextTokens", "GeneratedTokens"), _date),  # Azure
)
