"""Costs follow what is measured: past a bad start, past outliers, and within bounds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from support.machine_costs import COSTS, FACTS
from support.scheduler_fixtures import Guest, Server

from pie_control.interception.costs import AGAIN, BOUND, Costs, LearnedCosts
from pie_control.scheduler.in_flight import PlanBatch
from pie_py.wire.plan import BatchResult, SwapIn, SwapOut

STEP = COSTS.step_time(8)


class Served:
    """What a model costs, by a clock that the test sets."""

    def __init__(self, **facts: Any) -> None:
        self.seconds = 100.0
        self.learned = LearnedCosts({**FACTS, **facts}, lambda: self.seconds)

    @property
    def now(self) -> Costs:
        return self.learned.now

    def swap(self, kind: type[SwapIn | SwapOut], pages: int, seconds: float) -> None:
        """Pages are moved, and time passes until the next ones are."""
        numbers = np.arange(pages, dtype=np.int32)
        result = BatchResult(nanoseconds=int(1e9 * seconds))
        self.learned.took([PlanBatch(kind.kind, ready=kind(numbers, numbers))], [result])
        self.seconds += 0.1

    def move(self, slower: float, times: int = 20) -> None:
        """Pages go out, few and many, that take so many times as long as the machine's do."""
        assert COSTS.swap_out is not None
        for pages in (1, 64) * (times // 2):
            self.swap(SwapOut, pages, slower * COSTS.swap_out.time(pages))

    def out(self, pages: int) -> float:
        """How many times as long as on this machine it is expected to take."""
        assert self.now.swap_out is not None
        assert COSTS.swap_out is not None
        return self.now.swap_out.time(pages) / COSTS.swap_out.time(pages)


def slow(factor: float) -> dict[str, Any]:
    """What a start measures beside other work."""
    out = FACTS["swap_out"]
    assert isinstance(out, dict)
    rate = out["bytes_per_second"] / factor
    return {"seconds": out["seconds"] * factor, "bytes_per_second": rate}


def hidden_pages(costs: Costs) -> int:
    """Pages that are swapped out in a quarter of a step."""
    assert costs.swap_out is not None
    return costs.swap_out.pages_within(STEP / 4)


def test_a_busy_second_at_the_start_is_corrected() -> None:
    served = Served(swap_out=slow(60))
    assert hidden_pages(served.now) == 0
    served.move(1.0)
    for pages in (1, 64):
        assert served.out(pages) == pytest.approx(1.0, rel=0.05)
    assert hidden_pages(served.now) == hidden_pages(COSTS) > 0


def test_what_is_too_dear_to_be_done_is_tried_again() -> None:
    served = Served(swap_out=slow(60))
    served.seconds += 6 * AGAIN
    assert hidden_pages(served.now) > 0
    served.swap(SwapOut, 64, 64 / 9536 * 60)  # it was true: one try, and it is dear again
    assert hidden_pages(served.now) == 0


def test_a_busy_second_while_serving_changes_nothing() -> None:
    served = Served()
    served.move(1.0, 40)
    served.move(30.0, 10)  # one second
    for pages in (1, 64):
        assert served.out(pages) == pytest.approx(1.0, rel=1e-3)


def test_a_fast_disk_that_has_turned_slow_is_believed() -> None:
    served = Served()
    served.move(1.0, 40)
    served.move(10.0, 100)
    for pages in (1, 64):
        assert served.out(pages) == pytest.approx(10.0, rel=0.1)


def test_what_leaves_beside_a_gpus_kernels_is_not_measured_by_its_batch() -> None:
    served = Served(out_beside_kernels=True)
    served.move(0.01, 40)
    assert served.now.swap_out == served.now.swap_in == COSTS.swap_in


@given(
    st.lists(
        st.tuples(
            st.sampled_from([SwapIn, SwapOut]),
            st.integers(1, 256),
            st.floats(1e-9, 1e3),
            st.floats(0, 1e4),
        )
    )
)
def test_costs_stay_within_bounds(moves: list[tuple[Any, int, float, float]]) -> None:
    served = Served()
    for kind, pages, seconds, pause in moves:
        served.swap(kind, pages, seconds)
        served.seconds += pause
        for one, prior in (
            (served.now.swap_in, COSTS.swap_in),
            (served.now.swap_out, COSTS.swap_out),
        ):
            assert one is not None
            assert prior is not None
            low, high = prior.pages_per_second / BOUND, prior.pages_per_second * BOUND
            assert 0.999 * low <= one.pages_per_second <= 1.001 * high
            assert 0 < one.seconds <= 0.01


def step(guest: Guest, pages: list[int], tokens: int, seconds: float) -> None:
    """A forward that the worker says has taken so long."""
    embeds = guest.embeds(tokens)
    guest.embed(list(range(tokens)), 8, embeds)
    guest.forward(pages, embeds)
    run(guest.server, seconds)


def run(server: Server, seconds: float) -> None:
    """A plan that the worker says has taken so long."""
    plan = server.scheduler.next_plan()
    assert plan is not None
    result = server.worker.run(plan)
    share = int(1e9 * seconds) // len(result.results)
    timed = [replace(one, nanoseconds=share) for one in result.results]
    server.scheduler.complete(replace(result, results=timed))
    server.clock.seconds += 0.3


def test_steps_and_prompts_of_a_server_are_learned() -> None:
    server = Server(kv_costs=FACTS, max_batch_tokens=64, embeds=2000)
    guest = Guest(server)
    pages = guest.filled(8)
    server.drain()
    policies = server.service.swap_advice._input
    for _ in range(8):
        step(guest, pages, 1, 3 * COSTS.step_time(1))
    assert policies.costs is not None
    assert policies.costs.step_time(1) == pytest.approx(3 * COSTS.step_time(1), rel=0.01)
    assert policies.costs.linear == COSTS.linear, "of prompts nothing is known yet"
    squares = COSTS.quadratic * (40**2 - 8**2)
    for _ in range(8):
        step(guest, pages, 32, 2 * (COSTS.fixed + COSTS.linear * 32 + squares))
    assert policies.costs.linear == pytest.approx(2 * COSTS.linear, rel=0.01)


def test_a_few_tokens_beside_steps_tell_nothing_of_prompts() -> None:
    server = Server(kv_costs=FACTS, max_batch_tokens=64, embeds=2000)
    guests = [Guest(server) for _ in range(9)]
    held = [guest.filled(8) for guest in guests]
    server.drain()
    for _ in range(20):
        for number, (guest, pages) in enumerate(zip(guests, held, strict=True)):
            tokens = 1 if number else 2  # a tool's answer beside eight that decode
            embeds = guest.embeds(tokens)
            guest.embed(list(range(tokens)), 8, embeds)
            guest.forward(pages, embeds)
        run(server, COSTS.step_time(8) + 2 * COSTS.linear)
    costs = server.service.swap_advice._input.costs
    assert costs is not None
    assert costs.linear == pytest.approx(COSTS.linear, rel=0.1)
