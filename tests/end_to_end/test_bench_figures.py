"""What the benchmarks make of times and counts, on numbers of which the figures are known."""

from __future__ import annotations

import pytest

from benchmarks.hot_path import OURSELVES, Count, calls_a_token
from pie_py.bench.decoding import Decoded
from pie_py.bench.report import percentile

MS = 1_000_000


def test_figures_of_a_window() -> None:
    early = [number * MS for number in range(20)]
    late = [(1 + 2 * number) * MS for number in range(12)]
    found = Decoded([early, late])
    assert found.window == (9 * MS, 19 * MS)
    assert found.tokens == 10 + 5
    assert found.seconds == pytest.approx(0.010)
    assert found.ms_a_token == pytest.approx(10 * 2 / 15)
    assert sorted(set(found.gaps_ms)) == [1.0, 2.0]
    assert found.gaps_ms.count(1.0) == 10
    assert found.gaps_ms.count(2.0) == 5


def test_those_that_hardly_overlap_tell_nothing() -> None:
    first = [number * MS for number in range(9)]
    with pytest.raises(RuntimeError, match="ask for more --tokens"):
        _ = Decoded([first, [time + 6 * MS for time in first]]).window


def test_calls_of_a_token() -> None:
    counts = [
        Count(1, 10, 4, {"a.py:f": 100}),
        Count(2, 20, 8, {"a.py:f": 140, "b.py:g": 4, f"{OURSELVES[0]}:note": 50}),
        Count(3, 30, 12, {"a.py:f": 180, "b.py:g": 8, f"{OURSELVES[0]}:note": 90}),
        Count(4, 99, 16, {"a.py:f": 900}),
    ]
    assert calls_a_token(counts, (10, 30)) == {"a.py:f": 10.0, "b.py:g": 1.0}
    assert calls_a_token(counts, (20, 30)) == {"a.py:f": 10.0, "b.py:g": 1.0}
    with pytest.raises(RuntimeError, match="ask for more --tokens"):
        calls_a_token(counts, (20, 20))


def test_percentiles_are_times_that_were_measured() -> None:
    times = [float(number) for number in range(1, 101)]
    assert [percentile(times, share) for share in (0.5, 0.99, 1.0)] == [50.0, 99.0, 100.0]
    assert percentile([7.0], 0.99) == 7.0
