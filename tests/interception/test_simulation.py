"""The simulator: everybody is served, memory is never overdrawn, order is kept."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from test_policies_of_interception import COSTS

from pie_control.interception import simulation
from pie_control.interception.policy import POLICIES
from pie_control.interception.simulation import Machine, Request, Segment, simulate, wasted

segments = st.lists(
    st.builds(Segment, st.integers(1, 6), st.floats(0, 5), st.integers(1, 20)), max_size=3
).map(lambda calls: (*calls, Segment(3, 0.0, 0)))
requests = st.lists(
    st.builds(Request, st.floats(0, 3), st.sampled_from("abc"), st.integers(1, 100), segments),
    min_size=1,
    max_size=8,
)


@settings(deadline=None)
@given(requests, st.sampled_from(sorted(POLICIES)), st.booleans(), st.integers(0, 400))
def test_everybody_is_served_and_memory_holds(
    load: list[Request], name: str, tail: bool, host: int
) -> None:
    machine = Machine(COSTS, memory=260, host=host, tail=tail, within_budget=name != "swap")
    run = simulation._Run(load, machine, POLICIES[name])
    step = run._step

    def checked() -> bool:
        before = len(run._ready)
        went = step()
        jobs = (*run._ready, *run._paused)
        assert sum(job.held for job in jobs) <= machine.memory
        assert sum(job.away for job in jobs) <= machine.host
        assert all(job.held + job.away <= job.context for job in jobs)
        assert run._ready == sorted(run._ready)
        assert len(run._ready) <= before
        return went

    run._step = checked  # type: ignore[method-assign]
    out = run.run()
    assert len(out.finished) == len(load)
    assert all(one["latency"] >= 0 for one in out.finished)
    if name == "min-waste":
        assert out.over_budget == 0
    if name in ("preserve", "discard"):
        assert out.swapped == 0


def test_one_request_takes_what_its_steps_take() -> None:
    request = Request(1.0, "x", 100, (Segment(2, 5.0, 10), Segment(3, 0.0, 0)))
    out = simulate([request], Machine(COSTS, 1000, 0), POLICIES["preserve"])
    prompt = COSTS.step_time(0, 100) + COSTS.quadratic * 100**2
    answer = COSTS.step_time(0, 10) + COSTS.quadratic * (112**2 - 102**2)
    assert out.finished[0]["end"] == pytest.approx(1 + prompt + 2 * 0.01 + 5 + answer + 3 * 0.01)
    assert out.preserved == pytest.approx(102 * 5)
    assert wasted(out, Machine(COSTS, 1000, 0)) == pytest.approx(510 / 1000 / out.seconds)


def test_a_request_that_never_fits_is_an_error() -> None:
    request = Request(0.0, "x", 100, (Segment(1, 0.0, 0),))
    with pytest.raises(RuntimeError, match="more memory"):
        simulate([request], Machine(COSTS, 50, 0), POLICIES["preserve"])


def test_least_waste_serves_scarce_memory_best() -> None:
    calls = (Segment(4, 2.0, 5), Segment(4, 2.0, 5), Segment(4, 0.0, 0))
    load = [Request(0.05 * n, "x", 200, calls) for n in range(40)]
    machine = Machine(COSTS, 1500, 20_000)

    def mean(name: str, machine: Machine) -> float:
        finished = simulate(load, machine, POLICIES[name]).finished
        return sum(one["latency"] for one in finished) / len(finished)

    best = mean("min-waste", machine)
    assert best < mean("preserve", machine)
    assert best < mean("discard", Machine(COSTS, 1500, 20_000, tail=True))
