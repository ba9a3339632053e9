"""Programs of the stage `attend` while they are read, and what is refused of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from support.device_reference import AttendRow, run_attend
from support.programs_read import bound_by, line_named, text_of, values_of

from inferlet import attention, device
from inferlet.device import State, Tensor
from pie_control.errors import ApiError
from pie_py.device_programs.language import HEADS, PAGES, TOKENS
from pie_py.device_programs.program import ProgramFault, program_for, read_program

VOCABULARY = 120
LIBRARY = {
    "quest": attention.quest(2),
    "quest together": attention.quest(2, together=True),
    "sinks": attention.sinks(2, 3),
    "tova": attention.tova(3),
    "h2o": attention.h2o(2, 2),
    "h2o together": attention.h2o(2, 2, together=True),
    "snapkv": attention.snapkv(4, window=2, kernel=3),
}
SCORES = [[1.0, 4.0, 0.0, 0.5], [3.0, 0.0, 1.0, 2.0]]
WEIGHTS = [[0.1, 0.4, 0.0, 0.05, 0.25, 0.2], [0.3, 0.0, 0.1, 0.1, 0.3, 0.2]]


def kept(name: str, layer: int = 0, step: int = 1, sharing: int = 1, **state: Any) -> list[Any]:
    """What a policy of the library keeps, perhaps by head, by the reference."""
    policy = LIBRARY[name]
    program = read_program(text_of(policy))
    given = SCORES if program.uses("scores") else WEIGHTS
    row = AttendRow(given, 6, 4, layer, step, sharing)
    names = {name: _grown(value) for name, value in values_of(policy).items()} | state
    found: list[Any] = run_attend(program, row, names)[0]
    if isinstance(found[0], list):
        return [[i for i, one in enumerate(own) if one] for own in found]
    return [i for i, one in enumerate(found) if one]


def _grown(value: list[Any]) -> list[Any]:
    """State of six tokens, or of two heads' six tokens."""
    return [value[0] * 6] * 2 if isinstance(value[0], list) else value * 6


@pytest.mark.parametrize("name", LIBRARY)
def test_the_library_is_within_bounds_and_canonical(name: str) -> None:
    policy = LIBRARY[name]
    program = program_for(text_of(policy), VOCABULARY)
    assert program.attends
    assert list(json.loads(text_of(policy))) == ["state", "nodes", "keep", "next"]
    axis = PAGES if program.uses("scores") else TOKENS
    by_head = name in ("quest", "quest together", "h2o", "snapkv")
    assert program.nodes[program.token].type.shape == ((HEADS, axis) if by_head else (axis,))
    assert bound_by(policy, VOCABULARY).program == program


def test_what_policies_keep() -> None:
    assert kept("sinks") == [0, 1, 3, 4, 5]
    assert kept("tova") == [0, 1, 4]  # of sums 0.4, 0.4, 0.1, 0.15, 0.55, 0.4 the first equal ones
    assert kept("h2o together") == [0, 1, 4, 5]
    assert kept("h2o together", sums=[0.0, 0.0, 9.0, 9.0, 0.0, 0.0]) == [2, 3, 4, 5]
    assert kept("h2o") == [[0, 1, 4, 5], [0, 2, 3, 4, 5]]  # of 0.3, 0, 0.1, 0.1 both equal ones
    sums = [[0.0, 0.0, 9.0, 9.0, 0.0, 0.0], [9.0, 0.0, 9.0, 0.0, 0.0, 0.0]]
    assert kept("h2o", sums=sums) == [[2, 3, 4, 5], [0, 2, 4, 5]]
    assert kept("quest") == [[0, 1, 2, 3]] * 2  # all, of the first layers
    assert kept("quest", layer=2) == [[0, 1], [0, 3]]
    assert kept("quest", layer=2, sharing=2) == [[0, 1], [0, 3]]
    assert kept("quest together", layer=2, sharing=2) == [[0, 1], [0, 1]]
    # What is before the last two becomes 0.4, 0.4, 0.4, 0.05 and 0.3, 0.3, 0.1, 0.1.
    assert kept("snapkv", step=0) == [[0, 1, 2, 4, 5], [0, 1, 4, 5]]
    assert kept("snapkv") == [[0, 1, 2, 3, 4, 5]] * 2  # what the prompt has dropped stays away


@pytest.mark.parametrize("kernel", [1, 2, 3, 5, 7, 9, 13])
def test_snapkv_pools_as_far_as_its_kernel(kernel: int) -> None:
    """The largest of as many tokens on both sides, at the ends of those that there are."""
    reach, count = kernel // 2, 24
    program = read_program(text_of(attention.snapkv(7, window=2, kernel=kernel)))
    given = [[(7 * i * i + 3 * i) % 31 / 31 for i in range(count)]]
    found: list[Any] = run_attend(program, AttendRow(given, count, 2, step=0), {})[0]
    rest = [*given[0][:-2], 0.0, 0.0]
    pooled = [max(rest[max(0, i - reach) : i + reach + 1]) for i in range(count - 2)]
    least = sorted(pooled)[-5]
    assert found == [[*(one >= least for one in pooled), True, True]]


def test_what_the_worker_keeps_is_counted_by_head() -> None:
    needed = {
        name: read_program(text_of(LIBRARY[name])).state_bytes(100, 3, heads=6, kv_heads=2)
        for name in LIBRARY
    }
    assert needed == {
        "quest": 0,
        "quest together": 0,
        "sinks": 0,
        "tova": 3 * 100,
        "h2o": 3 * (6 * 400 + 2 * 100),
        "h2o together": 3 * (400 + 100),
        "snapkv": 3 * 2 * 100,
    }


def test_how_much_of_a_prompt_a_program_is_told() -> None:
    windows = {name: read_program(text_of(policy)).window for name, policy in LIBRARY.items()}
    none = dict.fromkeys(("quest", "quest together", "sinks"))
    assert windows == {**none, "tova": 1, "h2o": 0, "h2o together": 0, "snapkv": 2}
    needed = {
        name: read_program(text_of(LIBRARY[name])).prompt_bytes(100, 3, 64) for name in LIBRARY
    }
    sums = dict.fromkeys(("h2o", "h2o together"), 1200)
    assert needed == {**dict.fromkeys(none, 0), **sums, "tova": 768, "snapkv": 1536}


# Mistakes


def looks_at_text(weights: Tensor) -> Tensor:
    return device.newest(3)[0] == weights.max()  # the mistake


def asks_for_vocabulary(weights: Tensor) -> Tensor:
    return device.iota() < 3  # the mistake


def mixes_sizes(weights: Tensor) -> Tensor:
    return weights + device.iota(device.PAGES).to_float()  # the mistake


def cuts_tokens(weights: Tensor) -> Tensor:
    return weights[0:3]  # the mistake


def changes_size(weights: Tensor, state: State) -> Tensor:
    state.sums = weights  # the mistake
    return device.iota(device.TOKENS) < 3


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (looks_at_text, r"newest of int \[3\]: the stage `attend` has none"),
        (asks_for_vocabulary, r"iota of int \[vocabulary\]: the stage `attend` has none"),
        (mixes_sizes, r"add of sizes \[heads, tokens\] and \[pages\]"),
        (cuts_tokens, r"slice from 0 to 3 of float \[heads, tokens\]"),
        (changes_size, r"state.sums is float \[tokens\], and becomes float \[heads, tokens\]"),
    ],
)
def test_a_mistake_is_told_at_its_line(rule: Callable[..., Tensor], message: str) -> None:
    with pytest.raises(ApiError, match=message) as raised:
        text_of(device.attend(rule)(sums=device.per_token(0.0)))
    assert line_named(str(raised.value)).endswith("# the mistake\n")


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (lambda logits: logits, "takes logits: there are weights or scores, and state"),
        (lambda weights, scores: weights, "takes weights, scores: there are"),
        (lambda weights: weights, r"what is kept is bool \[tokens\]"),
        (lambda scores: scores.max() > 0.0, r"what is kept is bool \[pages\]"),
    ],
)
def test_what_a_program_takes_and_returns(rule: Callable[..., Tensor], message: str) -> None:
    with pytest.raises(ApiError, match=message):
        text_of(device.attend(rule)())


def test_a_sampler_has_no_layers() -> None:
    with pytest.raises(ApiError, match=r"layer of int .*the stage `sample` has none"):
        text_of(device.program(lambda logits: device.layer())())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '{"state":[],"nodes":[["weights",[],[1]]],"token":0,"next":[]}',
            "stage `sample` has none",
        ),
        ('{"state":[],"nodes":[["logits",[],[]]],"keep":0,"next":[]}', "stage `attend` has none"),
        ('{"state":[],"nodes":[["iota",[],[-1]]],"keep":0,"next":[]}', "stage `attend` has none"),
        ('{"state":[],"nodes":[["iota",[],[-3]]],"keep":0,"next":[]}', "what is kept is int"),
        (
            '{"state":[],"nodes":[["weights",[],[0]],["weights",[],[1]],["lt",[0,1],[]],'
            '["transpose",[2],[]],["any",[3],[]]],"keep":4,"next":[]}',
            "weights of two windows",
        ),
        (
            '{"state":[],"nodes":[["weights",[],[1025]]],"keep":0,"next":[]}',
            r"last 1025 inputs: 0 \(all\) to 1024",
        ),
        (
            '{"state":[["x",0,[-2]]],"nodes":[["iota",[],[-3]],["lt",[0,0],[]]],"keep":1,"next":[]}',
            r"x is float \[heads\]: one axis at most",
        ),
        (
            '{"state":[["x",0,[-3,-2]]],"nodes":[["iota",[],[-3]],["lt",[0,0],[]]],"keep":1,"next":[]}',
            r"x is float \[tokens, heads\]: one axis at most",
        ),
    ],
)
def test_texts_that_are_no_program_of_the_stage(text: str, message: str) -> None:
    with pytest.raises(ProgramFault, match=message):
        read_program(text)


def test_costs_are_bounded() -> None:
    @device.attend
    def sorts(weights: Tensor) -> Tensor:
        return weights.argsort().transpose().sum() > 0

    @device.attend
    def pairs(weights: Tensor) -> Tensor:
        place = device.iota(device.TOKENS)
        column = (weights.transpose().sum().reshape(device.TOKENS, 1) > 0.0).to_int()
        return (column + place).max() > 0

    with pytest.raises(ProgramFault, match=r"a layer costs .* with 32 heads and 4096"):
        program_for(text_of(sorts()), VOCABULARY)

    @device.attend
    def page_pairs(scores: Tensor) -> Tensor:
        place = device.iota(device.PAGES)
        pairs = place.reshape(device.PAGES, 1) + place
        return (scores > 0.0) & (pairs.sort().max().max() > 0)

    with pytest.raises(ProgramFault, match="16777216 elements; 524288 at most"):
        program_for(text_of(pairs()), VOCABULARY)
    with pytest.raises(ProgramFault, match=r"pages, pages\], whose size grows with the square"):
        program_for(text_of(page_pairs()), VOCABULARY)
