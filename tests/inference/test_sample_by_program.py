"""Device programs in the sample handler: beside other samplers, masked, refused, wrong."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from support.model_rig import Rig, ints, sample_of
from support.programs_read import bound_by, set_samplers

from inferlet import Sampler, device, samplers
from inferlet.device import ProgramSampler, State, Tensor
from pie_inference import handlers
from pie_inference.errors import BadBatch
from pie_py.wire.device_programs import packed_states
from pie_py.wire.plan import BatchResult, SetSampler, WriteState

RULED_OUT = "the device program chose token 7, which the grammar or mask rules out: node 0, int []"


@device.program
def fixed(logits: Tensor, state: State) -> Tensor:
    return state.token


@device.program
def nucleus(logits: Tensor) -> Tensor:
    return device.draw(samplers.top_p(logits / 0.8, 0.9))


BUILT = Sampler(temperature=0.8, top_p=0.9)


def message(rig: Rig, programs: Sequence[Sampler | ProgramSampler], **others: Any) -> SetSampler:
    count = len(programs)
    made = set_samplers(
        programs,
        rig.model.description.vocab_size,
        seeds=np.arange(2 * count).reshape(count, 2),
        rows=range(count),
    )
    return replace(made, **others)


@torch.inference_mode()
def put(rig: Rig, *programs: Sampler | ProgramSampler) -> None:
    handlers.samplers.set_sampler(rig.model, message(rig, programs))


@torch.inference_mode()
def draw(rig: Rig, count: int, step: int = 0, masked: tuple[int, ...] = (), top: int = 0) -> Any:
    """Masked rows may have tokens 32 to 63 alone."""
    masks = np.zeros((1, -(-rig.model.description.vocab_size // 32)), np.uint32)
    masks[0, 1] = 0xFFFFFFFF
    rows, of = range(count), [0 if i in masked else -1 for i in range(count)]
    batch = sample_of(rows, rows, step, top, of, masks)
    result = handlers.sample.sample(rig.model, batch).get()
    assert result.values is not None
    return result


def told(result: BatchResult) -> tuple[list[int], list[float], list[list[int]]]:
    samples = result.values
    assert samples is not None
    return samples.tokens.tolist(), samples.logprobs.tolist(), samples.top_tokens.tolist()


@pytest.mark.parametrize("masked", [(), (1, 2)])
def test_rows_with_programs_and_rows_without_choose_what_either_alone_would(
    rig: Rig, masked: tuple[int, ...]
) -> None:
    """And report the same log-probabilities and most likely tokens."""
    put(rig, *[BUILT] * 6)
    built_in = [told(draw(rig, 6, step, masked, top=4)) for step in range(3)]
    put(rig, *[nucleus()] * 6)
    assert [told(draw(rig, 6, step, masked, top=4)) for step in range(3)] == built_in
    put(rig, BUILT, nucleus(), BUILT, nucleus(), nucleus(), BUILT)
    assert [told(draw(rig, 6, step, masked, top=4)) for step in range(3)] == built_in


def test_a_token_that_cannot_be_is_refused_in_its_row_alone(rig: Rig) -> None:
    vocabulary = rig.model.description.vocab_size
    tokens = [7, -1, 40, vocabulary, 2**63 - 1, 7]
    put(rig, *(fixed(token=token) for token in tokens))
    result = draw(rig, 6, masked=(0, 2))
    assert result.values.tokens.tolist() == [-1, -1, 40, -1, -1, 7]
    outside = (
        "the device program chose token {}, which is not in the vocabulary (0 to {}):"
        " node 0, int []"
    )
    assert result.refused == {
        0: RULED_OUT,
        1: "the device program chose token -1, which is none: it rules out all that the grammar or"
        " mask allows: node 0, int []",
        **{i: outside.format(tokens[i], vocabulary - 1) for i in (3, 4)},
    }
    assert rig.model.samplers.tokens[:6].tolist() == [-1, -1, 40, -1, -1, 7]


def test_numbers_that_are_none_end_a_row_by_name(rig: Rig) -> None:
    @device.program
    def divided(logits: Tensor, state: State) -> Tensor:
        return device.draw(logits / state.by)

    @device.program
    def rooted(logits: Tensor, state: State) -> Tensor:
        return (logits - state.by).sqrt().argmax()

    put(rig, divided(by=0.0), rooted(by=1e9), divided(by=1.0))
    result = draw(rig, 3)
    assert [*result.refused] == [0, 1]
    assert all("its numbers are NaN or infinite" in why for why in result.refused.values())
    for rule, operation in ((divided(by=0.0), "div"), (rooted(by=1e9), "sqrt")):
        nodes = bound_by(rule, rig.model.description.vocab_size).program.nodes
        [number] = [i for i, node in enumerate(nodes) if node.operation == operation]
        why = result.refused[0 if operation == "div" else 1]
        assert why.endswith(f": node {number}, float [vocabulary]")


def test_temperature_0_is_greedy_in_every_rule(rig: Rig) -> None:
    put(
        rig,
        samplers.tempered(temperature=0.0, p=0.9, seed=1),
        samplers.entropy_temperature(temperature=0.0, theta=1.0, seed=2),
        samplers.gumbel_watermark(temperature=0.0, key=3),
        samplers.synthid(temperature=0.0, key=4, seed=5),
    )
    likeliest = rig.model.network.logits(rig.model.embeds.hidden[:4]).argmax(1)
    assert draw(rig, 4).values.tokens.tolist() == likeliest.tolist()


def test_ids_without_a_token_are_never_chosen(rig: Rig) -> None:
    network, hidden = rig.model.network, rig.model.embeds.hidden[2:3]
    best = network.logits(hidden)[0].argsort(descending=True)[:3].tolist()
    network.no_tokens = torch.tensor(best[:2])

    @device.program
    def first(logits: Tensor) -> Tensor:
        return logits.argmax()

    try:
        put(rig, BUILT, nucleus(), first(), samplers.tempered(temperature=1e3, p=1.0, seed=1))
        masked: tuple[int, ...] = (0, 1)
        for _ in range(3):
            result = draw(rig, 4, masked=masked, top=4)
            assert not {*result.values.tokens.tolist()} & {*best[:2]}
            assert not {*result.values.top_tokens.ravel().tolist()} & {*best[:2]}
            masked = ()
        assert result.values.tokens[2] == best[2]
    finally:
        network.no_tokens = None


@torch.inference_mode()
def test_logits_that_are_no_numbers_are_minus_infinity_to_a_program(rig: Rig) -> None:
    @device.program
    def numbers(logits: Tensor) -> Tensor:
        odd = logits.is_nan() | (logits >= math.inf)
        return odd.to_int().sum()

    put(rig, numbers(), numbers())
    kept = rig.model.embeds.hidden[:2].clone()
    try:
        rig.model.embeds.hidden[0] = torch.nan
        rig.model.embeds.hidden[1, 0] = torch.inf
        result = draw(rig, 2)
    finally:
        rig.model.embeds.hidden[:2] = kept
    none = "the device program chose token 0, which the grammar or mask rules out: node 6, int []"
    assert result.refused.get(0) == none
    assert result.values.tokens[1] == 0 or result.refused[1] == none


@torch.inference_mode()
def test_any_damage_to_a_plan_is_a_bad_batch(rig: Rig) -> None:
    """And the next plan is carried out."""
    chance, bad = Random(1), 0
    names = ("programs", "text_lengths", "texts", "given_lengths", "given", "freed", "rows")
    for _ in range(300):
        whole = message(rig, [fixed(token=3), BUILT, nucleus()], freed=ints([0, 1]))
        name = chance.choice(names)
        array = getattr(whole, name).copy()
        match chance.randrange(4):
            case 0 if array.size:
                array.flat[chance.randrange(array.size)] = chance.choice([0, 5, 99, 2**31 - 1])
            case 1:
                array = array[: chance.randrange(array.size + 1)]
            case 2:
                array = array[:, None]
            case _:
                array = np.concatenate([array, array])
        setattr(whole, name, array)
        try:
            handlers.samplers.set_sampler(rig.model, whole)
        except BadBatch:
            bad += 1
    assert bad > 150
    put(rig, fixed(token=3), fixed(token=4))
    assert draw(rig, 2).values.tokens.tolist() == [3, 4]


@torch.inference_mode()
def test_a_program_that_remembers_needs_a_row(rig: Rig) -> None:
    @device.program
    def last(logits: Tensor) -> Tensor:
        return device.newest(1)[0]

    with pytest.raises(BadBatch, match="needs a row"):
        handlers.samplers.set_sampler(rig.model, message(rig, [last()], rows=ints([-1])))


def written(sampler: int, name: int, value: bytes) -> WriteState:
    states = packed_states([value])
    return WriteState(
        ints([sampler]), np.zeros(1, np.uint32), ints([name]), states.lengths, states.values
    )


@torch.inference_mode()
def test_values_that_are_no_ones_are_refused(rig: Rig) -> None:
    put(rig, fixed(token=7), BUILT)
    value = np.int64(9).tobytes()
    handlers.samplers.write_state(rig.model, written(0, 0, value))
    assert draw(rig, 1).values.tokens.tolist() == [9]
    for wrong in (
        written(0, 1, value),
        written(0, -1, value),
        written(0, 0, value[:4]),
        written(1, 0, value),
        written(rig.model.samplers.size, 0, value),
    ):
        with pytest.raises(BadBatch, match="write_state"):
            handlers.samplers.write_state(rig.model, wrong)


@torch.inference_mode()
def test_the_likeliest_token_is_chosen_as_the_built_in_sampler_does(rig: Rig) -> None:
    @device.program
    def likeliest(logits: Tensor) -> Tensor:
        return logits.argmax()

    @device.program
    def of_negative(logits: Tensor) -> Tensor:
        return (-logits).argmax()

    put(rig, likeliest(), of_negative(), likeliest(seed=3))
    pool = rig.model.samplers
    compiled = pool.device_programs.compiled
    assert compiled.has[:3].tolist() == [True, False, True]
    assert compiled.drawing[:3].tolist()[::2] == [False, False]
    logits = rig.model.network.logits(rig.model.embeds.hidden[:3])
    wanted = [logits[0].argmax(), logits[1].argmin(), logits[2].argmax()]
    assert draw(rig, 3).values.tokens.tolist() == [int(token) for token in wanted]
    assert draw(rig, 1, masked=(0,)).values.tokens.tolist() == [int(logits[0, 32:64].argmax()) + 32]
    assert pool.device_programs.state(0, 1) == []
