"""`async` runs and prints what it promises; its figures are for people to judge."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
from support.benchmarks import bench

from benchmarks.async_calls import formulas
from benchmarks.async_calls.drawn import draw
from benchmarks.async_calls.jobs import Job, PlannedCall, judge

SIDES = ["sync", "sync, stateless", "sync_parallel", "async_naive", "async"]


@pytest.mark.nightly
@pytest.mark.slow
def test_the_model_decides_and_calls_are_forced() -> None:
    small = ["--requests", "1", "--longest", "1", "--workload", "interrupts"]
    decided, _, forced, cost = bench("async", *small)["reports"]
    assert [row[0] for row in decided["rows"]] == SIDES
    expected = len(draw("interrupts", 1, 0, 1).calls)
    for row in decided["rows"]:
        right, missing = row[2], row[4]
        assert right + missing == expected
    assert "FORCED" in forced["title"]
    assert "FORCED" in forced["notes"][0]
    assert [row[0] for row in forced["rows"]] == [*SIDES[:4], "async, lpt", "async, random"]
    for row in forced["rows"]:
        assert row[1:5] == [1, expected, 0, 0]
        found = dict(zip(forced["columns"], row, strict=True))
        assert found["median"] > 400  # no side is done before the last task has come
        assert found["p10"] <= found["median"] <= found["p90"]
        assert found["× sync"] > 0
        assert found["of"] == 1
        assert found["× stateless"] > 0
    recomputed = cost["columns"].index("recomputed")
    again = {row[0]: row[recomputed] for row in cost["rows"]}
    assert again["async_naive"] > 0 == again["sync"]
    assert again["sync, stateless"] > 0


def call(identifier: str, name: str, after: tuple[str, ...] = (), **given: Any) -> PlannedCall:
    return PlannedCall(identifier, name, given, 0.1, after)


def made(text: str, written: float, delivered: float | None = None) -> dict[str, Any]:
    return {"call": text, "written": written, "delivered": delivered}


def test_what_is_right() -> None:
    job = Job(("",), (call("a1", "f", x='q"'), call("a2", "g", ("a1",), y=2), call("b1", "h")))
    right = [made(one.text, at, at + 0.5) for at, one in enumerate(job.calls)]
    assert judge(job.calls, right).all_right
    assert not judge(job.calls, right[:2]).all_right
    early = [made(job.calls[0].text, 0, 2), *right[1:]]
    verdicts = {
        "before its argument is there": early,
        "twice": [*right, right[2]],
        "wrong": [*right[:2], made("h(1)", 2)],
        "no call": [*right[:2], made("h(", 2)],
    }
    for why, calls in verdicts.items():
        verdict = judge(job.calls, calls)
        assert verdict.wrong == 1, why
        assert verdict.right + verdict.missing == 3


def test_formulas() -> None:
    generation, execution = [1.0, 2.0, 3.0], [10.0, 30.0, 20.0]
    assert formulas.sync(generation, execution) == 66
    assert formulas.sync_parallel(generation, execution) == 36
    # The longest is generated first, then that of 20, then that of 10.
    assert formulas.asynchronous(generation, execution) == max(2 + 30, 5 + 20, 6 + 10)


times = st.lists(st.tuples(st.floats(0.001, 1), st.floats(0.001, 1)), min_size=2, max_size=6)
