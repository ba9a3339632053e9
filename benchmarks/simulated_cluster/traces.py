"""Traces of requests, as launches: Mooncake's JSON lines, or a sample made here.

They tell which blocks of 512 tokens prompts begin with, so caches can be simulated. A line may have
more of ours: `user`, `program`, and `turns`, what the instance does after its first answer:
[seconds that it waits, tokens it is given, tokens it generates], each. Without a program, launches
that begin with the same block count as one program's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from random import Random
from typing import Annotated, TypeAlias

import msgspec

BLOCK = 512  # tokens
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
    hash_ids: tuple[Tokens, ...] = ()
    user: str = ""
    program: str = ""
    turns: tuple[Turn, ...] = ()

    def launch(self) -> Launch:
        room = -(-self.input_length // BLOCK)
        if len(self.hash_ids) > room:
            raise ValueError(
                f"hash_ids has {len(self.hash_ids)} blocks of {BLOCK} tokens, but input_length"
                f" {self.input_length} has room for {room}"
            )
        program = self.program or (f"block {self.hash_ids[0]}" if self.hash_ids else "")
        times = self.timestamp / 1000, self.input_length, self.output_length
        return Launch(*times, self.hash_ids, self.user, program, self.turns)


def read_trace(lines: Iterable[str], name: str, most: int) -> list[Launch]:
    """Reads the first lines of a trace; they may be in any order of time.

    Raises:
        BadTrace: if a line is broken, or there is none.
    """
    launches: list[Launch] = []
    for number, text in enumerate(lines, 1):
        if len(launches) == most:
            break
        try:
            if text.strip():
                launches.append(msgspec.json.decode(text, type=_Mooncake).launch())
        except (ValueError, RecursionError) as error:
            raise BadTrace(f"{name}:{number}: {error}") from None
    if not launches:
        raise BadTrace(f"{name} is no trace: it has no lines")
    begin = min(one.at for one in launches)
    return sorted((replace(one, at=one.at - begin) for one in launches), key=lambda one: one.at)


def sample(seed: int = 1) -> list[Launch]:
    """A trace made by us, of which no part was observed: about what one node serves in two minutes.

    20 users, some far more active than others, have one to three programs each whose prompts begin
    alike, and instances that call tools and go on.
    """
    random = Random(seed)
    numbers = iter(range(1 << 30))
    programs: list[tuple[str, str, tuple[int, ...]]] = []
    weights: list[float] = []
    for user in range(20):
        count = random.randint(1, 3)
        for program in range(count):
            shared = tuple(next(numbers) for _ in range(random.randint(2, 16)))  # blocks
            programs.append((f"user-{user}", f"program-{program}", shared))
            weights.append(1 / (user + 1) / count)  # Zipf
    at, launches = 0.0, []
    for _ in range(300):
        at += random.expovariate(2.4)
        name, run, shared = random.choices(programs, weights)[0]
        own = random.randint(20, 900)  # tokens
        blocks = (*shared, *(next(numbers) for _ in range(-(-own // BLOCK))))
        output = random.randint(20, 200)
        turns = tuple(
            (round(random.expovariate(1), 2), random.randint(20, 300), random.randint(20, 150))
            for _ in range(random.randint(0, 4))
        )
        launches.append(Launch(at, len(shared) * BLOCK + own, output, blocks, name, run, turns))
    return launches
