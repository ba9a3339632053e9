"""Snapshots of API calls: what a program asked of the server, in a file beside its test."""

from __future__ import annotations

import difflib
import json
import re
from pathlib import Path

from pie_py.wire.record import Call, read_record

# What differs from run to run, or says nothing of what a program does: clocks, chance, names, how
# often it slept, its own source.
LEFT_OUT = frozenset(
    {
        "runtime.now",
        "runtime.monotonic-now",
        "runtime.random-bytes",
        "runtime.instance-id",
        "runtime.wait",
        "runtime.log",
        "source.is-early",
        "source.read",
        "source.keep",
    }
)


def calls_of(record: Path) -> list[str]:
    """The calls of a record as a snapshot has them: `session.send("Paris.")`."""
    return [_shown(call) for call in read_record(record).calls if call.name not in LEFT_OUT]


def _shown(call: Call) -> str:
    args = ", ".join(json.dumps(one, ensure_ascii=False) for one in call.args)
    failed = "" if call.fails is None else f" fails: {call.fails.partition(':')[0]}"
    return f"{call.name}({args}){failed}"


def snapshot_path(test_file: Path, test: str, name: str) -> Path:
    """Where the snapshot of a test is kept: `snapshots/test_capital.calls` beside its file."""
    plain = re.sub(r"[^\w.-]+", "-", f"{test}-{name}" if name else test).strip("-")
    return test_file.parent / "snapshots" / f"{plain}.calls"


def difference(path: Path, calls: list[str], *, update: bool) -> str:
    """The difference between the calls of a program now and their snapshot, for its author; nothing
    if they are equal. With `update` they are written instead.
    """
    text = "".join(f"{call}\n" for call in calls)
    if update:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return ""
    mend = "`pytest --update-calls` writes it"
    if not path.is_file():
        return f"there is no snapshot {path} yet: {mend}"
    accepted = path.read_text(encoding="utf-8")
    if accepted == text:
        return ""
    lines = difflib.unified_diff(
        accepted.splitlines(), text.splitlines(), "snapshot", "now", lineterm="", n=2
    )
    shown = "\n".join(lines)
    return f"the program's API calls are not those of {path}:\n{shown}\nif they are right: {mend}"
