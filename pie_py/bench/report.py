"""Reports of benchmarks: figures in a table, with goals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table

WIDE = 200  # columns of text where there is no terminal


@dataclass(frozen=True)
class Goal:
    """A figure beside what it should be."""

    what: str
    figure: float
    limit: float
    at_most: bool = True  # else the limit is the least that it should be

    @property
    def met(self) -> bool:
        """True if it is as good as it should be."""
        return self.figure <= self.limit if self.at_most else self.figure >= self.limit

    def __str__(self) -> str:
        sign = "≤" if self.at_most else "≥"
        word = "met" if self.met else "MISSED"
        return f"{word}: {self.what}: {cell(self.figure)} (goal {sign} {self.limit:g})"


@dataclass
class Report:
    """Rows of figures under named columns, with what one must know to read them."""

    title: str
    columns: list[str]
    rows: list[list[Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    goals: list[Goal] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """All of it as JSON's values."""
        goals = [{**asdict(goal), "met": goal.met} for goal in self.goals]
        return {**asdict(self), "goals": goals}

    def show(self) -> None:
        """Prints the report as a table on standard output."""
        table = Table(title=self.title, title_justify="left")
        for i, column in enumerate(self.columns):
            table.add_column(column, justify="right" if i else "left", no_wrap=not i)
        for row in self.rows:
            table.add_row(*(cell(value) for value in row))
        console = Console()
        if not console.is_terminal:  # a file: as wide as the table is
            console.width = WIDE
        console.print(table)
        for note in [*self.notes, *map(str, self.goals)]:
            console.print(note, highlight=False)


def cell(value: Any) -> str:
    """A value as tables show it: three digits."""
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"
    return str(value)


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which this share (0 to 1) of the values lies (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
