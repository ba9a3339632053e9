"""What a benchmark prints: one table for people, or JSON for machines."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table


@dataclass
class Report:
    """Rows of figures under named columns, with what one must know to read them."""

    title: str
    columns: list[str]
    rows: list[list[Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def show(self, as_json: bool) -> None:
        """Prints the report on standard output."""
        if as_json:
            print(json.dumps(asdict(self)))
            return
        table = Table(title=self.title, title_justify="left")
        for i, column in enumerate(self.columns):
            table.add_column(column, justify="left" if i == 0 else "right")
        for row in self.rows:
            table.add_row(*(_cell(value) for value in row))
        console = Console()
        console.print(table)
        for note in self.notes:
            console.print(note, highlight=False)


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"
    return str(value)


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which this share (0 to 1) of the values lies (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
