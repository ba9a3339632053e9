"""`attend` of a sampler's parameters: taken out of them, checked, and refused by name."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from support.scheduler_fixtures import MODEL

from inferlet import attention
from inferlet.device import Attend
from pie_control.api.device_programs import take_attend
from pie_control.errors import ApiError
from pie_control.resources.samplers import SamplerPool, Samplers
from pie_py.device_programs.program import Program, read_program

H2O = attention.h2o(heavy=4, recent=4)


def parameters(policy: Attend, **more: object) -> str:
    return json.dumps({"temperature": 0.5, "attend": {**policy.to_dict(), **more}})


def test_the_rest_is_a_samplers() -> None:
    rest, bound = take_attend(parameters(H2O), MODEL)
    assert json.loads(rest) == {"temperature": 0.5}
    assert bound is not None
    assert bound.program.text == H2O.text
    assert bound.values == bytes(4)
    assert take_attend(rest, MODEL) == (rest, None)


def test_a_model_without_weights_says_why() -> None:
    facts = replace(MODEL, no_attend="it has no keys of its heads, but latents")
    with pytest.raises(ApiError, match="but latents") as raised:
        take_attend(parameters(H2O), facts)
    assert raised.value.code == "unsupported"
    assert take_attend("{}", facts) == ("{}", None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"attend": 5}', "attend: : Input should be"),
        ('{"attend": {"program": "x"}}', "attend: no JSON"),
        (parameters(H2O, given={}), "attend: sums: its names are"),
        (parameters(H2O, given={"sums": [0.0, 1.0]}), "no list of this size"),
        ('["attend"', "attend: "),
    ],
)
def test_what_is_wrong_is_named(text: str, message: str) -> None:
    with pytest.raises(ApiError, match=message) as raised:
        take_attend(text, MODEL)
    assert raised.value.code == "invalid-argument"


@pytest.mark.parametrize(
    ("policy", "undone"),
    [(H2O, 15), (attention.tova(4), 15), (attention.quest(2), 10_000), (None, 10_000)],
)
def test_how_far_a_sampler_goes_back(policy: Attend | None, undone: int) -> None:
    """As far as the worker keeps what was kept after each step, if there is any of it."""
    program: Program | None = None if policy is None else read_program(policy.text)
    _, sampler = Samplers(SamplerPool(4, 4, 0), 4).create(
        remembers=False, mixes=0, top=0, attend=program
    )
    assert sampler.is_memoryless is (policy is None)
    sampler.go_back(20_000 - undone, 20_000)
    sampler.check_choice()
    if undone < 10_000:
        sampler.go_back(20_000 - undone - 1, 20_000)
        with pytest.raises(ApiError, match="more than 16 tokens were undone"):
            sampler.check_choice()
