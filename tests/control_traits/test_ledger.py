"""The ledger: what was used, in rows that no user can make many."""

from __future__ import annotations

import time
from pathlib import Path

import trio
from support.scheduler_fixtures import Server

from pie_control.instances.ledger import MOST_ROWS, OTHER, Ledger


def test_tags_beyond_a_day_s_rows_are_counted_together(tmp_path: Path) -> None:
    server = Server()
    instance = server.launch("ann")
    ledger = Ledger(
        tmp_path / "usage.sqlite3",
        {},
        time.time_ns,
        tuple,
        lambda instance: 0.0,
        lambda instance, state, text: None,
    )
    for number in range(MOST_ROWS + 20):
        instance.tag = f"tag {number}"
        ledger.waited(instance, 1.0)
    rows = trio.run(ledger.usage, "ann", 2)
    assert len(rows) == MOST_ROWS + 1
    assert sum(row["tool_seconds"] for row in rows) == MOST_ROWS + 20
    assert sum(row["tool_seconds"] for row in rows if row["program"] == OTHER) == 20
