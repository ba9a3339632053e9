"""Rows of device programs at the size of real vocabularies; what is kept of them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import device_reference
from support.programs_read import bound_by, text_of
from support.random_device_programs import choose

from inferlet import device, samplers
from inferlet.device import ProgramSampler, State, Tensor
from pie_inference.sampling import device_operations as operations
from pie_inference.sampling.choose import race
from pie_inference.sampling.executable import Executable
from pie_inference.sampling.noise import exponentials, starts
from pie_inference.sampling.pool import SamplerPool
from pie_py.device_programs.bound import Bound
from pie_py.device_programs.language import Kind, Type
from pie_py.device_programs.program import Node, ProgramFault, read_program

CPU = torch.device("cpu")
ODD = 50_271  # tokens, which no vector's width divides


def bound(sampler: ProgramSampler, vocabulary: int) -> Bound:
    return bound_by(sampler, vocabulary)


def keeping(of: Callable[[Tensor], Tensor]) -> Any:
    """A program whose next state is what a rule makes of the logits."""

    def rule(logits: Tensor, state: State) -> Tensor:
        state.found = of(logits)
        return device.step()

    return device.program(rule)


RULES: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda x: x.sum(),
    "sigmoid": lambda x: x.sigmoid()[50_240:50_271],
    "pow": lambda x: (abs(x) ** (x * 0.3))[50_240:50_271],
    "tanh": lambda x: x.tanh()[50_240:50_271],
    "exp": lambda x: x.exp()[50_240:50_271],
    "log": lambda x: abs(x).log()[50_240:50_271],
    "exponential": lambda x: device.exponential(device.iota())[50_240:50_271],
    "log_softmax": lambda x: x.log_softmax()[77],
    "cumsum": lambda x: x.cumsum()[50_256],
    "matvec": lambda x: (x[:50_000].reshape(10, 5000) @ x[:5000]).max(),
    "column": lambda x: x[:50_000].reshape(50_000, 1).sum().max(),
    "nucleus": lambda x: x.where(samplers.top_p(x, 0.7) > -math.inf, 0.0).sum(),
    "nucleus_by": lambda x: x.where(samplers.typical_p(x, 0.7) > -math.inf, 0.0).sum(),
}


# Of which some elements are kept: those behind the last whole vector.
ELEMENTWISE = {"sigmoid", "pow", "tanh", "exp", "log", "exponential"}


@pytest.mark.parametrize("rule", RULES)
def test_a_row_is_the_same_alone_and_among_others_to_the_bit(rule: str) -> None:
    found: Any = [0.0] * 31 if rule in ELEMENTWISE else 0.0
    program = read_program(text_of(keeping(RULES[rule])(found=found)))
    executable = Executable(program, ODD, CPU)
    logits = torch.randn(5, ODD, generator=torch.Generator().manual_seed(3)) * 4
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        together = executable.run(rows_of(logits))[1][0]
        for i in range(5):
            alone = executable.run(rows_of(logits[i : i + 1], i))[1][0]
            assert alone.equal(together[i : i + 1])
    finally:
        torch.set_num_threads(before)


def rows_of(logits: torch.Tensor, seed: int = 0) -> Any:
    """Rows of which nothing else is asked."""
    count = len(logits)
    seeds = np.arange(seed, seed + count, dtype=np.uint64)
    words = starts(seeds, np.zeros(count, np.uint32)).view(np.int64)
    steps = torch.zeros(count, dtype=torch.int64)
    return SimpleNamespace(logits=logits, steps=steps, start=torch.from_numpy(words)[:, None])


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([0.001, 0.1, 0.9]), st.booleans())
def test_a_race_of_few_is_the_race_of_all(seed: int, share: float, odd: bool) -> None:
    chance = torch.Generator().manual_seed(seed)
    values = torch.randn(3, 700, generator=chance)
    values[torch.rand(3, 700, generator=chance) > share] = -torch.inf
    if odd:
        values[0, 5], values[1, 6] = torch.nan, torch.inf
    start = torch.arange(3)[:, None]
    tokens = torch.arange(700)
    whole = values - exponentials(start, tokens).log_()
    assert race(values, start, tokens).view(torch.int32).equal(whole.view(torch.int32))


@settings(max_examples=80, deadline=None)
@given(
    st.integers(0, 2**32),
    st.integers(1, 1500),
    st.sampled_from([0.0, 0.3, 3.0]),
    st.sampled_from([-1.0, 0.0, 0.05, 0.5, 0.9, 0.999, 1.0, 2.0, float("nan")]),
    st.booleans(),
)
def test_a_nucleus_of_any_width(
    seed: int, size: int, deviation: float, share: float, by_others: bool
) -> None:
    """Equal ones among them, many or all; of the largest, or of the largest by other numbers."""
    chance = torch.Generator().manual_seed(seed)
    x, by = (torch.randn(2, 2, size, generator=chance) * deviation).mul(8).round().div(8)
    x[0, ::3] = -torch.inf
    by[1, ::5] = torch.inf
    shares = torch.tensor([share, 0.6123])
    by = by if by_others else x
    found = operations.nucleus_by(x, shares, by) if by_others else operations.nucleus(x, shares)
    for i in range(2):
        wanted = device_reference._nucleus(x[i].tolist(), shares[i].item(), by[i].tolist())
        assert found[i].tolist() == wanted or _is_close(x[i], shares[i].item(), found[i], wanted)


def _is_close(x: torch.Tensor, share: float, found: torch.Tensor, wanted: list[bool]) -> bool:
    """Whether they differ in one, where the share is reached within rounding."""
    weights = (x - x.max()).double().exp()
    differ = found != torch.tensor(wanted)
    least = weights[found & torch.tensor(wanted)].sum()
    return int(differ.sum()) == 1 and abs(float(least / weights.sum()) - share) < 1e-6


def test_draws_that_race_are_those_of_the_single_operations() -> None:
    def raced(logits: Tensor) -> Tensor:
        return device.draw(logits)

    def single(logits: Tensor) -> Tensor:
        return (logits + -device.exponential(device.iota()).log()).argmax()

    logits = torch.randn(40, 3000, generator=torch.Generator().manual_seed(5))
    found = [
        Executable(read_program(text_of(device.program(rule)())), 3000, CPU).run(rows_of(logits))[0]
        for rule in (raced, single)
    ]
    assert found[0].equal(found[1])
    assert len(set(found[0].tolist())) > 20


@pytest.mark.parametrize("whole", [2**60 + 2**36 + 1, -(2**60) - 2**36 - 1, 2**53 + 1, 2**63 - 1])
def test_a_whole_number_becomes_the_nearest_float(whole: int) -> None:
    """Not that of the nearest float64."""
    node = Node("cast", (0,), (Kind.FLOAT,), Type(Kind.FLOAT))
    row = device_reference.Row([0.0])
    wanted = device_reference._result(node, [whole], [Type(Kind.INT)], row)
    assert operations.cast(torch.tensor([whole]), Kind.FLOAT).item() == wanted
    assert wanted == np.int64(whole).astype(np.float32)


# What is kept


def test_nodes_that_no_token_needs_are_refused() -> None:
    """They would hold memory at no cost."""
    wide = [["iota", [], [60_000]], ["reshape", [0], [300, 200]], ["transpose", [1], []]]
    more = [["reshape", [2], [60_000]]]
    nodes = [*wide, *more, ["step", [], []]]
    text = json.dumps({"state": [], "nodes": nodes, "token": 4, "next": []}, separators=(",", ":"))
    with pytest.raises(ProgramFault, match="not needed"):
        read_program(text)


def test_whole_numbers_of_all_programs_are_the_same_memory() -> None:
    found = []
    for size in (60_000, 59_999, 5):
        nodes = [["iota", [], [size]], ["argmax", [0], []]]
        text = json.dumps(
            {"state": [], "nodes": nodes, "token": 1, "next": []}, separators=(",", ":")
        )
        action = Executable(read_program(text), 100, CPU)._actions[0][1]
        value = action(rows_of(torch.zeros(1, 100)), [])
        assert value.tolist() == [list(range(size))]
        found.append(value.data_ptr())
    assert len(set(found)) == 1


@device.program
def counting(logits: Tensor, state: State) -> Tensor:
    state.next += state.table[0]
    return state.next


def values_of(by: int, start: int = 0) -> dict[str, Any]:
    return {"next": start, "table": [by] * 1000}


def test_the_state_of_a_sampler_that_is_over_is_not_seen_by_the_next() -> None:
    """Whatever step that one is asked for."""
    pool = SamplerPool(50, CPU, 4)
    programs = pool.device_programs
    programs.set([0, 1], [bound(counting(**values_of(1, 1000)), 50)] * 2)
    logits = torch.zeros(1, 50)
    for step in range(70):
        choose(pool, [0], [step], logits)
    programs.drop([0])
    programs.set([2], [bound(counting(**values_of(5)), 50)])
    assert [choose(pool, [2], [step], logits) for step in (9, 40, 63)] == [[5]] * 3


def test_memory_of_samplers_that_are_over_is_given_back_and_the_others_keep_theirs() -> None:
    pool, logits = SamplerPool(50, CPU, 300), torch.zeros(300, 50)
    programs = pool.device_programs
    every = list(range(300))
    programs.set(every, [bound(counting(**values_of(i)), 50) for i in every])
    values = next(iter(programs._by_text.values()))
    for step in range(3):
        assert choose(pool, every, [step] * 300, logits) == [i * (step + 1) for i in every]
    most = sum(table.nbytes for table in values._tables)
    rest = every[::20]
    programs.drop([i for i in every if i % 20])
    assert sum(table.nbytes for table in values._tables) < most / 4
    assert choose(pool, rest, [3] * 15, logits[:15]) == [4 * i for i in rest]
    assert choose(pool, rest, [1] * 15, logits[:15]) == [2 * i for i in rest]  # back
    programs.drop(rest)
    assert sum(table.nbytes for table in values._tables) == 0


def test_a_slot_that_is_in_a_plan_twice_has_the_last_program() -> None:
    pool = SamplerPool(50, CPU, 4)
    programs = pool.device_programs
    twice = [bound(counting(**values_of(1)), 50), bound(counting(**values_of(7)), 50)]
    programs.set([3, 3], twice)
    assert choose(pool, [3], [0], torch.zeros(1, 50)) == [7]
    programs.drop([3])
    assert not any(values.samplers for values in programs._by_text.values())
