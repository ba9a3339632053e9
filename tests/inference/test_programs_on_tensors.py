"""Device programs on tensors against plain Python; their state, memory, and wrong plans."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import device_reference
from support.device_reference import Row, same_as_last
from support.programs_read import bound_by, text_of
from support.random_device_programs import SIZE, choose, random_program, random_row, random_state

from inferlet import device
from inferlet.device import State, Tensor
from pie_inference.sampling.device_operations import repeats
from pie_inference.sampling.executable import Executable
from pie_inference.sampling.noise import starts
from pie_inference.sampling.pool import SamplerPool
from pie_py.device_programs.bound import Bound
from pie_py.device_programs.language import OPERATIONS, Kind
from pie_py.device_programs.program import Program, ProgramFault, read_program
from pie_py.wire.device_programs import packed, unpacked
from pie_py.wire.plan import SetSampler

CPU = torch.device("cpu")
DTYPES = {Kind.FLOAT: torch.float32, Kind.INT: torch.int64, Kind.BOOL: torch.bool}
# Sums of what is far from rounding's reach differ by which product is no number first.
OVERFLOWING = 1e15


class Rows:
    """Rows of the reference, as tensors."""

    def __init__(self, rows: list[Row], states: list[dict[str, Any]], program: Program) -> None:
        self._rows, self._states, self._program = rows, states, program
        self.logits = torch.tensor([row.logits for row in rows], dtype=torch.float32)
        self.steps = torch.tensor([row.step for row in rows])
        seeds = np.array([row.seed for row in rows], np.uint64)
        words = starts(seeds, np.array([row.step for row in rows], np.uint32))
        self.start = torch.from_numpy(words.view(np.int64))[:, None]

    def newest(self, count: int) -> torch.Tensor:
        return torch.tensor([([-1] * count + list(row.newest))[-count:] for row in self._rows])

    def beside(self, number: int) -> torch.Tensor:
        return torch.tensor([row.beside[number] for row in self._rows])

    def counts(self) -> torch.Tensor:
        return torch.tensor([row.counts for row in self._rows])

    def given(self) -> torch.Tensor:
        return torch.tensor([row.given for row in self._rows])

    def state(self, number: int) -> torch.Tensor:
        name, of = self._program.names[number]
        return torch.tensor([one[name] for one in self._states], dtype=DTYPES[of.kind])

    in_layers = state

    def lens(self, x: torch.Tensor) -> torch.Tensor:
        raise AssertionError(x)


def agree(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    if wanted.dtype is torch.float32:
        return torch.allclose(found, wanted, rtol=1e-5, atol=1e-6, equal_nan=True)
    return torch.equal(found, wanted)


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """To the bit, but for which NaN it is."""
    return bool(((one == other) | ((one != one) & (other != other))).all())


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32))
def test_every_operation_means_what_the_reference_says(seed: int) -> None:
    """Each operation on the reference's own operands, so that no rounding grows."""
    chance = Random(seed)
    program = random_program(chance, 40)
    states = [random_state(chance) for _ in range(3)]
    rows = Rows([random_row(chance) for _ in range(3)], states, program)
    wanted = [
        device_reference.evaluate(program, row, state)
        for row, state in zip(rows._rows, states, strict=True)
    ]
    values = [
        torch.tensor([one[i] for one in wanted], dtype=DTYPES[node.type.kind])
        for i, node in enumerate(program.nodes)
    ]
    for i, action, _ in Executable(program, SIZE, CPU)._actions:
        node, exact = program.nodes[i], values[i]
        found = action(rows, values)
        assert found.dtype is exact.dtype
        operands = [values[j] for j in node.operands]
        if node.operation == "matvec" and not all(
            bool((one.abs() < OVERFLOWING).all()) for one in operands
        ):
            continue
        assert agree(found.expand(exact.shape), exact), node


def test_the_random_programs_have_all_operations() -> None:
    chance = Random(1)
    found = {node.operation for _ in range(200) for node in random_program(chance, 40).nodes}
    assert found == set(OPERATIONS)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32))
def test_a_row_is_the_same_alone_and_among_others(seed: int) -> None:
    chance = Random(seed)
    program = random_program(chance, 40)
    rows = [random_row(chance) for _ in range(5)]
    states = [random_state(chance) for _ in range(5)]
    executable = Executable(program, SIZE, CPU)
    tokens, following = executable.run(Rows(rows, states, program))
    for i in range(5):
        token, own = executable.run(Rows(rows[i : i + 1], states[i : i + 1], program))
        assert token.tolist() == tokens[i : i + 1].tolist()
        for name, value in own.items():
            assert same(value, following[name][i : i + 1])


# What samplers keep


@device.program
def counting(logits: Tensor, state: State) -> Tensor:
    state.next += state.by
    return state.next


@device.program
def greedy(logits: Tensor) -> Tensor:
    return logits.argmax()


def bound(sampler: device.ProgramSampler) -> Bound:
    return bound_by(sampler, SIZE)


def test_several_programs_are_in_one_step_and_each_has_its_own_state() -> None:
    pool = SamplerPool(SIZE, CPU, 40)
    programs = pool.device_programs
    one, ten = bound(counting(next=0, by=1)), bound(counting(next=0, by=10))
    programs.set(range(30), [one if i % 2 else ten for i in range(30)])
    programs.set([30], [bound(greedy())])
    for step in range(3):
        found = choose(pool, list(range(31)), [step] * 31)
        wanted = [(1 if i % 2 else 10) * (step + 1) for i in range(30)]
        assert found == [*wanted, 7]


def test_state_over_the_vocabulary_changes_from_token_to_token() -> None:
    rule = device.program("""
        def tired(logits, state):
            token = (logits - state.tired).argmax()
            state.tired = state.tired * 0.5 + one_hot(token).to_float() * 4.0
            return token
    """)
    pool = SamplerPool(SIZE, CPU, 2)
    programs = pool.device_programs
    programs.set([0], [bound(rule(tired=device.per_token(0.0)))])
    logits, tired = torch.arange(SIZE) * 0.5, torch.zeros(SIZE)
    for step in range(12):
        token = int((logits - tired).argmax())
        tired = tired * 0.5
        tired[token] += 4
        assert choose(pool, [0], [step], logits[None]) == [token]


def test_a_sampler_that_goes_back_finds_its_state() -> None:
    pool = SamplerPool(SIZE, CPU, 4)
    programs = pool.device_programs
    programs.set([2], [bound(counting(next=100, by=1))])
    for step in range(90):
        assert choose(pool, [2], [step]) == [101 + step]
    for step in (89, 60, 28, 88, 61):  # again
        assert choose(pool, [2], [step]) == [101 + step]


def test_values_of_samplers_that_are_over_are_forgotten() -> None:
    pool = SamplerPool(SIZE, CPU, 200)
    programs = pool.device_programs
    for i in range(150):
        given_ = {f"x{i}": 1}
        rule = device.program(lambda logits, state: logits.argmax())
        programs.set([i], [bound(rule(**given_))])
        assert not programs.compiled.has[i]
        programs.drop([i])
    assert programs.compiled.has.all()
    assert len(programs._by_text) <= 64


def test_the_memory_of_a_text_is_what_the_program_sees() -> None:
    pool = SamplerPool(SIZE, CPU, 4)
    remembered = pool.remembered
    remembered.count_given(np.array([1, 1]), np.array([3, 4]))
    remembered.count(np.array([1, 1]), torch.tensor([4, 5]))
    remembered.note(np.array([1] * 3), np.array([0, 1, 2]), torch.tensor([3, 4, 5]))
    program = device.program(
        lambda logits: (
            device.newest(2).sum() * 10_000
            + device.counts().sum() * 100
            + device.given().to_int().sum()
        )
    )
    pool.device_programs.set([0], [bound(program())])
    pool.rows[0], pool.given[0] = 1, 1
    assert choose(pool, [0], [2]) == [90_000 + 200 + 2]


# Messages


def test_programs_travel_and_each_text_once() -> None:
    programs = [bound(counting(next=1, by=2)), bound(greedy()), bound(counting(next=3, by=4))]
    arrays = packed(programs)
    assert arrays["text_lengths"].size == 2
    assert unpacked(message(len(programs), **arrays), SIZE) == (programs, [None] * 3)
    assert unpacked(message(0, **packed([])), SIZE) == ([], [])


def message(count: int, **arrays: Any) -> SetSampler:
    return SetSampler(
        samplers=np.arange(count, dtype=np.int32),
        seeds=np.zeros((count, 2), np.uint32),
        rows=np.full(count, -1, np.int32),
        **arrays,
    )


# Texts that are no programs


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[]", "not an object of state, nodes, token and next"),
        ("[" * 60_000, "no JSON"),
        ('{"state":[],"nodes":[["logits",[],[]]],"token":0,"next":[] }', "canonical"),
        (
            '{"state":[],"nodes":[["logits",[],[]],["step",[],[]]],"token":1,"next":[]}',
            "nodes that are not needed",
        ),
        (
            '{"state":[],"nodes":[["step",[],[]],["step",[],[]],["add",[0,1],[]]],"token":2,"next":[]}',
            "a node stands there twice",
        ),
        ('{"state":[],"nodes":[["rm",[],[]]],"token":0,"next":[]}', "no operation 'rm'"),
        ('{"state":[],"nodes":[["neg",[0],[]]],"token":0,"next":[]}', "none of 0 before"),
        ('{"state":[],"nodes":[["step",[],[1]]],"token":0,"next":[]}', "has 0 numbers"),
        ('{"state":[["a-b",0,[]]],"nodes":[["step",[],[]]],"token":0,"next":[]}', "is no name"),
        ('{"state":[["a",0,[0]]],"nodes":[["step",[],[]]],"token":0,"next":[]}', "is no name"),
        ('{"state":[],"nodes":[["iota",[],[true]]],"token":0,"next":[]}', "no whole number"),
        ('{"state":[["a",0,[]]],"nodes":[["step",[],[]]],"token":0,"next":[[0,0]]}', "becomes"),
    ],
)
def test_a_text_that_is_no_program_is_told_why(text: str, told: str) -> None:
    with pytest.raises(ProgramFault, match=told):
        read_program(text)


def too_wide(logits: Tensor) -> Tensor:
    return (device.iota(5000).reshape(5000, 1) + device.iota(100)).argmax().max()


def too_long(logits: Tensor) -> Tensor:
    for _ in range(100):
        logits = logits.sort()
    return logits.argmax()


def too_much_state(logits: Tensor, state: State) -> Tensor:
    state.x = state.x + 1
    return device.step()


def too_far(logits: Tensor) -> Tensor:
    return logits.top(SIZE + 1)[0]


@pytest.mark.parametrize(
    ("rule", "given_", "told"),
    [
        (too_wide, {}, "500000 elements; 65536 at most"),
        (too_long, {}, r"a step costs .* additions; .* at most"),
        (too_much_state, {"x": [0] * 1071}, "1071 elements that change from step to step"),
        (too_far, {}, "top 24 of 23 tokens"),
    ],
)
def test_bounds_are_told_by_name(rule: Any, given_: dict[str, Any], told: str) -> None:
    program = read_program(text_of(device.program(rule)(**given_)))
    vocabulary = 100_000 if rule is too_long else SIZE
    with pytest.raises(ProgramFault, match=told):
        program.check_fits(vocabulary)


def test_a_program_is_known_by_its_hash() -> None:
    assert text_of(greedy()) == text_of(greedy(seed=4))
    assert text_of(greedy()) != text_of(counting(next=1, by=1))


@given(st.lists(st.integers(-1, 2), min_size=1, max_size=12), st.integers(0, 5))
def test_what_repeats_the_end_of_a_text(text: list[int], most: int) -> None:
    """Of few tokens, as `device_reference` says; random programs seldom meet two that are equal."""
    found = repeats(torch.tensor([text]), most)[0].tolist()
    assert found == [same_as_last(text[: i + 1], text, most) for i in range(len(text))]
