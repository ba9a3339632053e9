"""Logits that depend neither on what else is computed nor on how a text was cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.families import make_family
from support.model_rig import Rig, Step, causal, runs_of

from pie_inference.errors import LoadError
from pie_inference.layers.grouped import multiplies_bfloat16

# By what they have that others have not: sinks and experts, capped scores and windows, layer norms.
FAMILIES = ("llama", "gptoss", "gemma2", "glm4")
LENGTH = 150
TEXTS = [[(7 * i * i + 3 * text * i + text) % 90 for i in range(LENGTH)] for text in range(4)]
CUTS = st.lists(st.integers(1, 40), min_size=LENGTH, max_size=LENGTH)

Deterministic = tuple[Rig, dict[tuple[int, int], torch.Tensor]]


MODELS = [*((family, "float32") for family in FAMILIES), ("llama", "bfloat16"), ("llama", "int8")]


@pytest.fixture(scope="module", params=MODELS)
def deterministic(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Deterministic:
    """A model, and the logits behind each token of the texts, read one after the other."""
    name, dtype = request.param
    rounded: dict[str, Any] = {"quantize": "int8"} if dtype == "int8" else {}
    more: dict[str, Any] = {"head_dim": 16} if rounded else {"dtype": dtype}
    folder = make_family(tmp_path_factory.mktemp(name), name, **more)
    try:
        rig = Rig(folder, pages=1024, deterministic=True, **rounded)
    except LoadError as error:
        if "on this machine" not in str(error):
            raise
        pytest.skip(str(error))  # tried when it is loaded, and refused where it does not hold
    packed = bool(rounded) or multiplies_bfloat16(torch.empty(64, 64, dtype=rig.model.cache.dtype))
    assert (rig.model.fused_steps is not None) == packed
    alone = {}
    for number, text in enumerate(TEXTS):
        stream = rig.sequence(LENGTH)
        for end, token in enumerate(text, 1):
            [alone[number, end]] = rig.forward(Step(stream, [token]))
    return rig, alone


@settings(max_examples=4, deadline=None)
@given(cuts=st.lists(CUTS, min_size=len(TEXTS), max_size=len(TEXTS)), threads=st.integers(1, 3))
def test_the_same_in_any_batch(
    deterministic: Deterministic, cuts: list[list[int]], threads: int
) -> None:
    rig, alone = deterministic
    streams = [rig.sequence(LENGTH) for _ in TEXTS]
    # It has a mask of its own and is observed, which other kernels compute.
    other = Step(rig.sequence(4), [1, 2, 3], keep=False, mask=runs_of(causal(3)), observed=1)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for turn in range(LENGTH):
            steps, ends = [], []
            for number, (text, stream) in enumerate(zip(TEXTS, streams, strict=True)):
                part = text[stream.used : stream.used + cuts[number][turn]]
                if part:
                    steps.append(Step(stream, part))
                    ends.append((number, stream.used + len(part)))
            if not steps:
                break
            place = turn % (len(steps) + 1)
            found = rig.forward(*steps[:place], other, *steps[place:])
            del found[place]
            for end, logits in zip(ends, found, strict=True):
                assert torch.equal(logits, alone[end]), end
    finally:
        torch.set_num_threads(before)
        for stream in [*streams, other.sequence]:
            rig.release(stream)


@pytest.mark.parametrize("name", ["deepseekv3", "qwen3next"])
def test_what_cannot_be_is_refused(tmp_path: Path, name: str) -> None:
    folder = make_family(tmp_path / name, name)
    with pytest.raises(LoadError, match="deterministic: not with"):
        Rig(folder, deterministic=True)
