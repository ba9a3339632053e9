"""The simulator: everybody is served, memory is never overdrawn, order is kept."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from random import Random

import hypothesis.strategies as st
import pytest
from hypothesis import given
from support.machine_costs import COSTS

from benchmarks.interception.simulation import (
    WHOLE_BATCH,
    Machine,
    Outcome,
    Simulation,
)
from benchmarks.interception.traces import Request, Segment
from pie_control.interception.costs import Costs
from pie_control.interception.policy import POLICIES
from pie_control.interception.waste import Choice, Load, Paused

segments = st.lists(
    st.builds(Segment, st.integers(1, 6), st.floats(0, 5), st.integers(1, 20)), max_size=3
).map(lambda calls: (*calls, Segment(3, 0.0, 0)))
requests = st.lists(
    st.builds(Request, st.floats(0, 3), st.sampled_from("abc"), st.integers(1, 100), segments),
    min_size=1,
    max_size=8,
)


@given(requests, st.sampled_from(sorted(POLICIES)), st.booleans(), st.integers(0, 400))
def test_everybody_is_served_and_memory_holds(
    load: list[Request], name: str, tail: bool, host: int
) -> None:
    machine = Machine(COSTS, memory=260, host=host, tail=tail, within_budget=name != "swap")
    run = Simulation(load, machine, POLICIES[name])
    while not run.done:
        run.arrive()
        before = len(run.ready)
        went = run.step()
        jobs = (*run.ready, *run.paused)
        assert sum(job.held for job in jobs) <= machine.memory
        assert sum(job.away for job in jobs) <= machine.host
        assert all(job.held + job.away <= job.context for job in jobs)
        assert run.ready == sorted(run.ready)
        assert len(run.ready) <= before
        if not went:
            run.skip()
    out = run.out
    assert len(out.finished) == len(load)
    assert all(one["latency"] >= 0 for one in out.finished)
    if name == "min-waste":
        assert out.over_budget == 0
    if name in ("preserve", "discard"):
        assert out.swapped == 0


def test_one_request_takes_what_its_steps_take() -> None:
    request = Request(1.0, "x", 100, (Segment(2, 5.0, 10), Segment(3, 0.0, 0)))
    out = Simulation([request], Machine(COSTS, 1000, 0), POLICIES["preserve"]).run()
    prompt = COSTS.step_time(0, 100) + COSTS.quadratic * 100**2
    answer = COSTS.step_time(0, 10) + COSTS.quadratic * (112**2 - 102**2)
    assert out.finished[0]["end"] == pytest.approx(1 + prompt + 2 * 0.01 + 5 + answer + 3 * 0.01)
    assert out.preserved == pytest.approx(102 * 5)


def test_a_request_that_never_fits_is_an_error() -> None:
    request = Request(0.0, "x", 100, (Segment(1, 0.0, 0),))
    with pytest.raises(RuntimeError, match="more memory"):
        Simulation([request], Machine(COSTS, 50, 0), POLICIES["preserve"]).run()


def reference(load: list[Request], tail: bool) -> dict[str, float]:
    """When each request ends that discards, with memory for all: whole contexts first, then
    decoding.
    """
    now, ends = 0.0, dict[str, float]()
    coming = {number: one.arrival for number, one in enumerate(load)}  # who, from when on
    rank = {number: (one.arrival, number) for number, one in enumerate(load)}
    part = dict.fromkeys(coming, 0)
    made = dict.fromkeys(coming, 0)
    held = dict.fromkeys(coming, 0)
    context = {number: one.prompt for number, one in enumerate(load)}
    ready: set[int] = set()
    while coming or ready:
        for number in [n for n, at in coming.items() if at <= now]:
            del coming[number]
            ready.add(number)
            if part[number] and tail:
                rank[number] = (now, number)
        computing, left = dict[int, int](), WHOLE_BATCH
        for number in sorted(ready, key=lambda n: rank[n]):
            tokens = min(left, context[number] - held[number])
            if tokens:
                computing[number] = tokens
                left -= tokens
        if computing:
            squares = sum((held[n] + more) ** 2 - held[n] ** 2 for n, more in computing.items())
            now += COSTS.step_time(0, sum(computing.values())) + COSTS.quadratic * squares
            for number, more in computing.items():
                held[number] += more
            continue
        if not ready:
            now = max(now, min(coming.values()))
            continue
        now += COSTS.step_time(len(ready))
        for number in list(ready):
            held[number] += 1
            context[number] += 1
            made[number] += 1
            segment = load[number].segments[part[number]]
            if made[number] < segment.tokens:
                continue
            ready.remove(number)
            if part[number] + 1 == len(load[number].segments):
                ends[load[number].kind] = now
                continue
            part[number] += 1
            made[number] = 0
            if segment.seconds:
                held[number] = 0
            context[number] += segment.answer
            coming[number] = now + segment.seconds
    return ends


@given(requests, st.booleans())
def test_a_simple_reference_ends_at_the_same_times(load: list[Request], tail: bool) -> None:
    named = []
    for at, one in enumerate(sorted(load, key=lambda one: one.arrival)):
        # In milliseconds: what happens at almost the same time may come in either order.
        parts = tuple(Segment(s.tokens, round(s.seconds, 3), s.answer) for s in one.segments)
        named.append(Request(round(one.arrival, 3), str(at), one.prompt, parts))
    machine = Machine(COSTS, memory=1 << 20, host=0, tail=tail, chunked=False)
    found = Simulation(named, machine, POLICIES["discard"]).run()
    ends = {one["kind"]: one["end"] for one in found.finished}
    assert ends == pytest.approx(reference(named, tail), abs=1e-6)


def waste_of(out: Outcome) -> float:
    return float(out.preserved + out.recomputed + out.stalled)


@pytest.mark.parametrize("host", [0, 400, 20_000])
@pytest.mark.parametrize("seed", range(4))
def test_least_waste_is_near_the_best_of_all_assignments(seed: int, host: int) -> None:
    """Every way to preserve, discard or swap each of four requests is tried."""
    random = Random(seed)
    # Calls of a few steps are not worth a move, which delays their request, whatever they waste.
    seconds = {kind: random.choice([0.2, 0.3, 1.0, 3.0, 8.0]) for kind in "ab"}
    load = []
    for number in range(4):
        kind, prompt = random.choice("ab"), random.randint(50, 400)
        calls = (Segment(5, seconds[kind], 10),) * 3
        load.append(Request(0.2 * number, kind, prompt, (*calls, Segment(5, 0.0, 0))))
    machine = Machine(COSTS, 900, host)
    wastes = []
    for assigned in itertools.product(Choice, repeat=len(load)):

        def assignment(
            paused: Sequence[Paused],
            load: Load,
            costs: Costs,
            assigned: tuple[Choice, ...] = assigned,
        ) -> list[Choice]:
            return [assigned[one.arrival - 1] for one in paused]

        wastes.append(waste_of(Simulation(load, machine, assignment).run()))
    ours = waste_of(Simulation(load, machine, POLICIES["min-waste"]).run())
    assert ours <= min(wastes) + 0.2 * max(wastes)
    assert sum(other < ours for other in wastes) <= len(wastes) / 4
