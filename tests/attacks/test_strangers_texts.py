"""What strangers say, in tables, exceptions and logs of others."""

from __future__ import annotations

import json
import traceback
from pathlib import Path

from pie_py.cli.console import lines_of
from pie_py.client.remote.raised import MOST_FRAMES, rebuilt
from pie_py.config.processes import Child


def test_no_argument_forges_a_row() -> None:
    forged = "x\nmallory-000  running  root1 \x1b[2J"
    for arguments in ([forged], forged):
        lines = list(lines_of([{"id": "a", "args": arguments}], {"id": "ID", "args": "ARGS"}))
        assert lines[1:] == ["a   x mallory-000 running root1 \\u001b[2J"]
    [_, row] = lines_of([{"args": ["y" * 10_000] * 3}], {"args": "ARGS"})
    assert len(row) == 81


def test_exceptions_are_bounded_together_and_say_nothing_to_terminals() -> None:
    said = {"$": "error", "t": "builtins:ValueError", "v": ["\x1b[2J\u202e", ["\x9b31m"]]}
    report = None
    for _ in range(300):
        report = {
            "value": json.dumps({**said, "state": {"__notes__": ["\x1b]0;x\x07"]}}),
            "text": "",
            "frames": [["a.py", 1, "f"]] * 2000,
            "is_cause": True,
            "inner": report,
        }
    assert report is not None
    error = rebuilt(report, {}, str)
    assert error.args == ("\\u001b[2J\\u202e", ["\\u009b31m"])
    frames, behind = 0, error
    while behind is not None:
        frames += len(traceback.extract_tb(behind.__traceback__))
        behind = behind.__cause__  # type: ignore[assignment]
    assert frames <= MOST_FRAMES
    assert "\x1b" not in "".join(traceback.format_exception(error))


def test_logs_are_their_owners(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with Child("this", log=log, reports=False):
        assert log.stat().st_mode & 0o777 == 0o600
