"""Plans of several steps: the same as plans of one each, and cut between any two of them."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from support.engine_plans import decoding, engine_of, forward, sample, samplers
from support.model_rig import ints

from pie_inference.serving.engine import Engine
from pie_py.wire.plan import (
    Again,
    Batch,
    BatchResult,
    EmbedSampled,
    Forward,
    Plan,
    PlanResult,
    Sample,
)
from pie_py.wire.steps import count_steps, steps_of

STEPS = 12  # from position 40 on: a page of 16 slots is full within them


def several(count: int) -> Plan:
    """The steps of `decoding` in one plan."""
    steps = list(decoding(count))
    again = [Again(batch.output_slots) for _, batch, _ in steps[1:] if isinstance(batch, Forward)]
    return Plan(9, "m", [*steps[0], *again])


def same(one: Batch, two: Batch) -> bool:
    names = [field.name for field in fields(one)]
    return type(one) is type(two) and all(
        np.array_equal(getattr(one, name), getattr(two, name)) for name in names
    )


def test_what_again_stands_for() -> None:
    plan = several(STEPS)
    assert count_steps(plan) == STEPS
    found = list(steps_of(plan, 16))
    for step, expected in zip(found, decoding(STEPS), strict=True):
        assert all(map(same, step, expected))


def test_a_sequence_leaves() -> None:
    """The others go on as if it had never been there."""
    slots = [again.slots for again in several(5).batches[3:] if isinstance(again, Again)]
    left = slots[1].copy()
    left[1] = -1
    again = [slots[0], left, slots[2][[0, 2]], slots[3][[0, 2]]]
    plan = Plan(9, "m", [*next(decoding(5)), *map(Again, again)])
    for number, (step, whole) in enumerate(zip(steps_of(plan, 16), decoding(5), strict=True)):
        match *step, *whole:
            case [
                EmbedSampled() as embed,
                Forward() as run,
                Sample() as choice,
                EmbedSampled() as every_embed,
                Forward() as every_run,
                Sample() as every_choice,
            ]:
                rows = [0, 1, 2] if number < 2 else [0, 2]
            case _:
                pytest.fail("not the batches of a step")
        assert embed.positions.tolist() == every_embed.positions[rows].tolist()
        assert choice.steps.tolist() == every_choice.steps[rows].tolist()
        assert run.output_slots.tolist() == every_run.output_slots[rows].tolist()
        for at, row in enumerate(rows):
            own = slice(*run.page_starts[at : at + 2])
            theirs = slice(*every_run.page_starts[row : row + 2])
            assert run.pages[own].tolist() == every_run.pages[theirs].tolist()
            assert run.page_used[own].tolist() == every_run.page_used[theirs].tolist()


@pytest.mark.parametrize("wrong", ["first", "other", "prompt"])
def test_nothing_else_is_done_again(wrong: str) -> None:
    plan = several(2)
    if wrong == "first":
        del plan.batches[0]
    elif wrong == "other":
        plan.batches[-1] = Again(ints([5]))
    else:
        plan.batches[1] = forward(0, 3, 0, output=0)[1]
    with pytest.raises(ValueError, match="not a plan"):
        list(steps_of(plan, 16))


@pytest.fixture(scope="module")
def engine(folder: Path) -> Engine:
    return engine_of(folder, device="cpu")


def begin(engine: Engine) -> None:
    """Three prompts, and the first token of each."""
    for s in range(3):
        engine.run(Plan(s, "m", forward(s, 40, 8 * s, output=1000 + s)))
    first = replace(
        sample(3, 0, 1000),
        embeds=ints([1000, 1001, 1002]),
        masked=ints([-1] * 3),
        top=ints([0] * 3),
    )
    engine.run(Plan(4, "m", [samplers(3), first]))


def tokens(results: list[BatchResult]) -> list[list[int]]:
    assert not any(result.error or result.refused for result in results)
    return [found.tolist() for r in results if r.values is not None for found in [r.values.tokens]]


def test_several_steps_choose_the_same_tokens(engine: Engine) -> None:
    begin(engine)
    alone = [
        token
        for step in decoding(STEPS)
        for token in tokens(engine.run(Plan(5, "m", step)).results)
    ]
    begin(engine)
    parts: list[PlanResult] = []
    parts.append(engine.run(several(STEPS), parts.append))
    assert tokens([result for part in parts for result in part.results]) == alone
    assert [part.last for part in parts] == [False] * (len(parts) - 1) + [True]
    assert [part.first % 3 for part in parts] == [0] * len(parts)


@pytest.mark.parametrize("steps", [1, 2, STEPS - 1])
def test_a_plan_that_is_cut_goes_on_in_another_one(engine: Engine, steps: int) -> None:
    begin(engine)
    whole = list(decoding(STEPS))
    alone = [tok for step in whole for tok in tokens(engine.run(Plan(5, "m", step)).results)]
    begin(engine)
    parts: list[PlanResult] = []
    looked = 0

    def look() -> bool:
        nonlocal looked
        looked += 1
        return looked >= 2 * steps  # behind each forward, and before each further step

    parts.append(engine.run(several(STEPS), parts.append, look))
    assert parts[-1].last
    found = tokens([result for part in parts for result in part.results])
    assert found == alone[:steps]
    for step in whole[steps:]:
        found += tokens(engine.run(Plan(6, "m", step)).results)
    assert found == alone
