"""Calls to functions of a trait that the model lacks, for every trait that a model may lack."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.rig import host_functions, runtime
from support.scheduler_fixtures import MODEL, Guest, Server, u32

from pie_control.errors import ApiError
from pie_control.models.served import CONTROL_TRAITS
from pie_control.wasm.types import BOOL, STRING, U8_LIST, U32, U32_ARRAY, Enum, Scalar
from pie_py.build.wit import parse
from pie_py.wire.plan import ImageMeasured

CONTRACT = parse((Path(__file__).parents[2] / "sdk" / "wit" / "inferlet.wit").read_text())
TRAITS = [t for t in CONTRACT.worlds["inferlet"].imports if t not in CONTROL_TRAITS]
# Those that name a model or its queue: others know the model by a handle that only these can have
# given.
CALLS = [
    (trait, name)
    for trait in TRAITS
    for name, function in CONTRACT.interfaces[trait].functions.items()
    if function.params and function.params[0][0] in ("queue", "model")
]
CALLS.append(("sample", "sample-constrained"))  # a function of `grammar`
HOST = {function.name: function for function in host_functions()}


def call(guest: Guest, name: str) -> Any:
    """Calls a function with arguments that are right in kind, the first one in all."""
    params = HOST[name].params
    values: list[Any] = []
    for i, kind in enumerate(params):
        if kind is U32:
            values.append(guest.queue if i == 0 else 1)
        elif kind is STRING:
            values.append("symbolic" if i == 0 else "x")
        elif kind is BOOL:
            values.append(False)
        elif isinstance(kind, Scalar):
            values.append(1)
        elif isinstance(kind, Enum):
            values.append(kind.names[0])
        elif kind is U32_ARRAY:
            values.append(u32())
        else:
            values.append(b"" if kind is U8_LIST else [])
    return guest.server.function(name)(guest.instance, *values)


def test_models_may_have_all_traits_that_are_tested_here() -> None:
    assert set(TRAITS) == {*MODEL.traits, "input-image", "encode"}
    assert {trait for trait, _ in CALLS} == set(TRAITS)


@pytest.mark.parametrize(("trait", "name"), CALLS)
def test_a_trait_that_the_model_lacks(trait: str, name: str) -> None:
    others = [t for t in TRAITS if t != trait]
    guest = Guest(Server(traits=others, image_place="<image>"))
    with pytest.raises(ApiError) as caught:
        call(guest, name)
    assert caught.value.code == "unsupported"
    assert f"`{trait}`" in caught.value.message
    assert "symbolic" in caught.value.message
    assert guest.instance.queued_commands == len(guest.instance.futures) == 0
    told = runtime.available_traits(guest.instance, "symbolic")
    assert trait not in told
    assert set(others) <= set(told)


@pytest.mark.parametrize(("trait", "name"), CALLS)
def test_a_trait_that_the_model_has(trait: str, name: str) -> None:
    guest = Guest(Server(traits=TRAITS, image_place="<image>"))
    measured = ImageMeasured("symbolic", 1, 1, 4, 4, None)
    guest.server.parts.image_sizes.on_measured(measured)
    try:
        call(guest, name)
    except ApiError as error:
        assert "trait" not in error.message  # noqa: PT017 - it may fail for other reasons
