"""`async` runs and prints what it promises; its figures are for people to judge."""

from __future__ import annotations

import functools
import json
import statistics
import sys
from pathlib import Path
from random import Random
from typing import Any

import anyio
import hypothesis.strategies as st
import pytest
from hypothesis import given
from support.benchmarks import bench

from benchmarks.async_calls import bfcl, formulas, measure, tables
from benchmarks.async_calls.drawn import WORKLOADS, draw, draw_seconds
from benchmarks.async_calls.jobs import Job, PlannedCall, Verdict, judge

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


def test_jobs() -> None:
    for workload in WORKLOADS:
        jobs = [draw(workload, 1, number) for number in range(50)]
        assert jobs == [draw(workload, 1, number) for number in range(50)]
        for job in jobs:
            names = {tool["name"] for tool in job.tools}
            assert {call.name for call in job.calls} <= names
            assert len({call.identifier for call in job.calls}) == len(job.calls)
            chains = {call.identifier[0] for call in job.calls}
            assert workload == "parallel" or len(chains) == 3
            assert workload != "parallel" or not any(call.after for call in job.calls)
            assert len(job.tasks) == (3 if workload == "interrupts" else 1)
            assert sum(len(part.calls) for part in job.one_by_one()) == len(job.calls)


def test_times_of_functions() -> None:
    random = Random(1)
    times = [draw_seconds(random) for _ in range(20_000)]
    assert min(times) >= 0.03
    assert max(times) <= 0.5
    assert statistics.mean(times) == pytest.approx(0.11, abs=0.003)


COUNTER = """
class Counter:
    def __init__(self):
        self.total = 0

    def _load_scenario(self, scenario, long_context=False):
        self.total = scenario["total"]
        scenario.clear()

    def add(self, amount: int, times: int = 1):
        "Adds to the total."
        self.total += amount * times
        return {"total": self.total}

    def reset(self):
        self.total = 0
"""
BACKENDS = """
CLASS_FILE_PATH_MAPPING = {"Counter": "bfcl_eval.counter"}
STATELESS_CLASSES = []
"""


@pytest.fixture
def bfcl_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of the form of bfcl-eval, with sets of our own."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in [name for name in sys.modules if name.partition(".")[0] == "bfcl_eval"]:
        monkeypatch.delitem(sys.modules, name)
    package = tmp_path / "bfcl_eval"
    (package / "constants").mkdir(parents=True)
    (package / "constants" / "executable_backend_config.py").write_text(BACKENDS)
    (package / "counter.py").write_text(COUNTER)
    (package / "data" / "possible_answer").mkdir(parents=True)

    def write(name: str, questions: list[Any], answers: list[Any]) -> None:
        for folder, entries in (("", questions), ("possible_answer", answers)):
            lines = [json.dumps({"id": f"{n}", **entry}) for n, entry in enumerate(entries)]
            (package / "data" / folder / name).write_text("\n".join(lines))

    schema = {"type": "dict", "properties": {"x": {}, "y": {}}, "required": ["x"]}
    function = {"name": "math.f", "description": "", "parameters": schema}
    question = {"question": [[{"role": "user", "content": "Do it."}]], "function": [function]}
    truth = [{"math.f": {"x": [[1, 2], 3], "y": ["", 2]}}, {"math.f": {"x": [{"k": ["v", "w"]}]}}]
    write("BFCL_v4_parallel.json", [question], [{"ground_truth": truth}])
    turns = [[{"role": "user", "content": text}] for text in ("Add 2.", "Add 6.")]
    scenario = {"initial_config": {"Counter": {"total": 1}}, "involved_classes": ["Counter"]}
    calls = [["add(2)"], ["add(times=2, amount=3)", "reset()"]]
    several = [{"question": turns, **scenario}] * 4
    write("BFCL_v4_multi_turn_base.json", several, [{"ground_truth": calls}] * 4)
    return tmp_path


def test_sets_of_bfcl(bfcl_folder: Path) -> None:
    (parallel,) = bfcl.load("v1-parallel", bfcl_folder, 1, 9)
    texts = [call.text for call in parallel.calls]
    assert texts == ["math.f(x=[1, 2])", "math.f(x={'k': 'v'})"]
    assert [tool["name"] for tool in parallel.tools] == ["math.f"]
    with pytest.raises(RuntimeError, match="pip install"):
        bfcl.load("live-parallel", bfcl_folder, 1, 9)

    chain = bfcl.load("multi-turn-base", bfcl_folder, 1, 2)[0]
    assert chain.tasks == ("Add 2.\nAdd 6.",)
    texts = [call.text for call in chain.calls]
    assert texts == ["add(amount=2)", "add(amount=3, times=2)", "reset()"]
    assert [call.after for call in chain.calls] == [(), ("a1",), ("a2",)]
    three = bfcl.load("multi-step-parallel", bfcl_folder, 1, 3)
    assert len(three) == 3
    assert {call.text for call in three[0].calls} == {f"{c}.add(amount=2)" for c in "abc"}
    assert not any(call.after for call in three[0].calls)
    for job, totals in ((chain, [3, 9]), (three[0], [3, 3])):
        for _ in range(2):  # simulators begin anew for each run
            functions = {one.called: one for one in job.functions()}
            assert set(functions) == {call.name for call in job.calls}
            for call, total in zip(job.calls, totals, strict=False):
                function = functions[call.name]
                assert function.seconds == call.seconds >= 0.03
                described = function.specification()["function"]
                assert described["parameters"]["required"] == ["amount"]
                assert described["description"] == "Adds to the total."
                run = functools.partial(function.run, **call.arguments)
                assert anyio.run(run) == {"total": total}


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


@given(times)
def test_asynchronous_is_never_slower_by_the_formulas(both: list[tuple[float, float]]) -> None:
    """Theorem 6.1 of AsyncLM."""
    generation, execution = zip(*both, strict=True)
    ours = formulas.asynchronous(generation, execution)
    assert ours <= formulas.sync_parallel(generation, execution) + 1e-9
    assert formulas.sync_parallel(generation, execution) < formulas.sync(generation, execution)


def ran(seconds: float, right: bool = True) -> measure.Run:
    return measure.Run(seconds, [], Verdict(right=1, missing=int(not right)))


def test_what_compares_are_requests_that_both_did_right() -> None:
    own = {
        measure.Side("sync_parallel"): [ran(2.0), ran(2.0), ran(9.0, right=False)],
        measure.Side("async"): [ran(1.0), ran(4.0, right=False), ran(1.0)],
    }
    (goal,) = tables._goals(own)
    assert goal.figure == 0.5
    assert goal.met
    assert tables._goals({measure.Side("async"): [ran(1.0)]}) == []
