"""What operators are told of a process that has ended by itself."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from pie_cluster.machines.node_keeper import how_ended, memory_kills
from pie_py.config.processes import Child


@pytest.mark.parametrize(("later", "words"), [(3, ""), (4, ", as others or it by the kernel")])
def test_the_kernels_kills_for_memory_are_named(tmp_path: Path, later: int, words: str) -> None:
    counts = tmp_path / "vmstat"
    counts.write_text("nr_free_pages 1\noom_kill 3\n")
    kills = memory_kills(counts)
    counts.write_text(f"nr_free_pages 1\noom_kill {later}\n")
    with Child("json.tool") as child:  # waits for its input
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        told = how_ended(child, kills, counts)
    assert told.startswith(f"was killed by SIGKILL{words}")
    assert ("memory" in told) is bool(words)


def test_a_status_is_told() -> None:
    with Child("json.tool") as child:
        child.ask_to_end()
        child.wait()
        assert how_ended(child, memory_kills()) == "has ended with status 1"  # of no JSON
