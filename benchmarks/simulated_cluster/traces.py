"""Traces of requests, as launches: Mooncake's JSON lines.

They tell which blocks of 512 tokens prompts begin with, so caches can be simulated. A line may have
more of ours: `user`, `program`, and `turns`, what the instance does after its first answer:
[seconds that it waits, tokens it is given, tokens it generates], each. Without a program, launches
that begin with the same block count as one program's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
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


def read_trace(lines: Iterable[str], name: str, most: int = MOST_LINES) -> list[Launch]:
    """Reads the first lines of a trace; they may be in any order of time.

    Raises:
        BadTrace: if a line is broken, or there is none.
    """
    launches = sorted(islice(_read(lines, name), most), key=lambda launch: launch.at)
    if not launches:
        raise BadTrace(f"{name} is no trace: it has no lines")
    begin = launches[0].at
    return [replace(one, at=one.at - begin) for one in launches]


def _read(lines: Iterable[str], name: str) -> Iterator[Launch]:
    decoder = msgspec.json.Decoder(_Mooncake)
    for number, text in enumerate(lines, 1):
        if not text.strip():
            continue
        try:
            line = decoder.decode(text)
        except (msgspec.DecodeError, RecursionError) as error:
            raise BadTrace(f"{name}:{number}: {error}") from None
        room = -(-line.input_length // BLOCK)
        if len(line.hash_ids) > room:
            raise BadTrace(
                f"{name}:{number}: hash_ids has {len(line.hash_ids)} blocks of {BLOCK} tokens, but"
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
