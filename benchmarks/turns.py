"""Measures sides in turns on the same machine."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from pie_py.bench import options
from pie_py.bench.benchmark import Progress
from pie_py.bench.programs import bench_programs

Figure = TypeVar("Figure")
Side = TypeVar("Side")


@dataclass(frozen=True, kw_only=True)
class Turns:
    """What instances do and how often it is measured: settings that benchmarks inherit."""

    languages: tuple[str, ...] = options.languages()
    at_once: tuple[int, ...] = options.at_once("1,8,32")
    rounds: int = options.rounds(5)
    prompt: int = options.prompt()
    tokens: int = options.tokens(64)

    @property
    def steps(self) -> int:
        """The number of progress reports, the server's start included."""
        return 1 + len(self.languages) * len(self.at_once) * (self.rounds + 1)

    def measure(
        self, one: Callable[[bytes, int], Figure], progress: Progress
    ) -> dict[tuple[str, int], list[Figure]]:
        """Figures of all rounds by language and count; a round before them warms up.

        Args:
            one: measures a program at a count of instances.
            progress: gets what has just been done.
        """
        programs = bench_programs(self.languages)
        found: dict[tuple[str, int], list[Figure]] = {}
        for turn in range(-1, self.rounds):
            for language, program in programs.items():
                for count in self.at_once:
                    figure = one(program, count)
                    if turn >= 0:
                        found.setdefault((language, count), []).append(figure)
                    progress(f"{language}, {count} at once")
        return found


async def pairs_in_turns(
    one: Callable[[Side], Awaitable[Figure]],
    sides: tuple[Side, Side],
    rounds: int,
    progress: Progress,
    name: str,
) -> tuple[list[Figure], list[Figure]]:
    """Figures of both sides, round by round; a round before them warms up."""
    found: tuple[list[Figure], list[Figure]] = ([], [])
    for number in range(rounds + 1):
        both = [await one(side) for side in sides]
        if number:
            for side, figure in zip(found, both, strict=True):
                side.append(figure)
        progress(f"{name}, round {number}")
    return found
