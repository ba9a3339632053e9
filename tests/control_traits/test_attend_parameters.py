"""`attend` of a sampler's parameters: taken out of them, checked, and refused by name."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from support.programs_read import bound_by, chosen_by, text_of
from support.scheduler_fixtures import MODEL

from inferlet import Sampler, attention
from inferlet.device import Attend
from pie_control.api.device_programs import check_attends, read_parameters
from pie_control.device_programs.reading import read
from pie_control.errors import ApiError
from pie_control.resources.samplers import SamplerPool, Samplers
from pie_py.device_programs.program import read_program
from pie_py.device_programs.recording import Recorded

H2O = attention.h2o(heavy=4, recent=4)


def parameters(policy: Attend, **more: object) -> str:
    return json.dumps({"temperature": 0.5, "attend": {**policy.to_dict(), **more}})


def test_the_rest_is_a_samplers() -> None:
    wanted = read_parameters(parameters(H2O))
    assert wanted.program == chosen_by(Sampler(temperature=0.5))
    bound = bound_by(H2O, MODEL.vocab_size)
    assert (bound.program.attends, bound.values) == (True, bytes(4))


def test_a_model_without_weights_says_why() -> None:
    facts = replace(MODEL, no_attend="it has no keys of its heads, but latents")
    with pytest.raises(ApiError, match="but latents") as raised:
        check_attends(facts)
    assert raised.value.code == "unsupported"
    check_attends(MODEL)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"attend": 5}', "attend: Input should be"),
        ('{"attend": {"program": "x"}}', "there is no program 'x'"),
        ('{"attend": {"program": "h2", "constants": {}}}', "did you mean `h2o`"),
        (parameters(H2O, constants={"heavy": 4}), "h2o wants a constant `recent`"),
        (
            parameters(attention.quest(-1)),
            "quest: pages is -1: a whole number is wanted",
        ),
        (parameters(H2O, constants={"heavy": 2.5, "recent": 4}), "h2o: heavy is 2.5: a whole"),
        (parameters(H2O, given={}), "there is no state.sums"),
        (parameters(H2O, given={"sums": [0.0, 1.0]}), r"add of sizes"),
        (parameters(H2O, given={"sums": "x"}), "sums is 'x': a program is given numbers"),
        (parameters(H2O, seed=1), "attend.seed: Extra inputs"),
        ('["attend"', "sampler parameters: "),
    ],
)
def test_what_is_wrong_is_named(text: str, message: str) -> None:
    with pytest.raises(ApiError, match=message) as raised:
        _ = [read(key) for key in read_parameters(text).keys]
    assert raised.value.code == "invalid-argument"


@pytest.mark.parametrize(
    ("policy", "undone"),
    [(H2O, 15), (attention.tova(4), 15), (attention.quest(2), 10_000), (None, 10_000)],
)
def test_how_far_a_sampler_goes_back(policy: Attend | None, undone: int) -> None:
    """As far as the worker keeps what was kept after each step, if there is any of it."""
    program = None if policy is None else read_program(text_of(policy))
    greedy = bound_by(Sampler(temperature=0.0), MODEL.vocab_size).program
    _, sampler = Samplers(SamplerPool(4, 4, 0), 4).create(
        program=greedy, source=Recorded(greedy.text, ()), top=0, attend=program
    )
    assert sampler.is_memoryless is (policy is None)
    sampler.go_back(20_000 - undone, 20_000)
    sampler.check_choice()
    if undone < 10_000:
        sampler.go_back(20_000 - undone - 1, 20_000)
        with pytest.raises(ApiError, match="more than 16 tokens were undone"):
            sampler.check_choice()
