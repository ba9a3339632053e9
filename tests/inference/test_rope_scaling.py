"""Angles of every rope scaling equal those of transformers."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.families import make_family
from support.model_rig import Rig, assert_close, expected_logits, tokens_of
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from pie_inference.errors import LoadError
from pie_inference.layers.rope_scaling import MAX_POSITIONS, RopeSpec, rope_spec

TRAINED = 64
FACTOR = st.floats(1.0, 16.0)
PARAMETERS = st.one_of(
    st.fixed_dictionaries({"rope_type": st.just("default")}),
    st.fixed_dictionaries({"rope_type": st.just("linear"), "factor": FACTOR}),
    st.fixed_dictionaries(
        {
            "rope_type": st.just("llama3"),
            "factor": FACTOR,
            "low_freq_factor": st.floats(0.5, 1.0),
            "high_freq_factor": st.floats(2.0, 8.0),
            "original_max_position_embeddings": st.integers(8, 64),
        }
    ),
    st.fixed_dictionaries(
        {
            "rope_type": st.just("yarn"),
            "factor": FACTOR,
            "original_max_position_embeddings": st.integers(8, 64),
        },
        optional={
            "beta_fast": st.floats(8.0, 64.0),
            "beta_slow": st.floats(0.5, 4.0),
            "truncate": st.booleans(),
            "attention_factor": st.floats(0.5, 2.0),
            "mscale": st.floats(0.5, 2.0),
            "mscale_all_dim": st.floats(0.5, 2.0),
        },
    ),
)


def read(parameters: dict[str, Any], head_dim: int, base: float = 10_000.0) -> RopeSpec:
    return rope_spec(parameters, head_dim=head_dim, base=base, trained=TRAINED)


def config_of(parameters: dict[str, Any], head_dim: int, base: float) -> LlamaConfig:
    return LlamaConfig(
        head_dim=head_dim,
        max_position_embeddings=TRAINED,
        rope_parameters={**parameters, "rope_theta": base},
    )


@settings(max_examples=80)
@given(PARAMETERS, st.sampled_from([8, 32, 128]), st.floats(100.0, 1e6))
def test_angles(parameters: dict[str, Any], head_dim: int, base: float) -> None:
    found, amplitude = read(parameters, head_dim, base).turning()
    config = config_of(parameters, head_dim, base)
    if parameters["rope_type"] == "default":
        frequencies, wanted = LlamaRotaryEmbedding.compute_default_rope_parameters(config)
    else:
        frequencies, wanted = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config)
    assert amplitude == pytest.approx(wanted)
    torch.testing.assert_close(found, frequencies)


@pytest.mark.parametrize("factor", [1.5, 4.0])
@pytest.mark.parametrize("longest", [None, 32, TRAINED, TRAINED + 1, 80])
def test_dynamic_angles_are_those_of_a_text_as_long_as_is_served(
    factor: float, longest: int | None
) -> None:
    parameters = {"rope_type": "dynamic", "factor": factor}
    spec = rope_spec(parameters, head_dim=32, base=1e4, trained=TRAINED, longest=longest)
    assert spec.positions == (longest or TRAINED * factor)
    angles = torch.outer(torch.arange(float(spec.positions)), spec.frequencies())
    rotary = LlamaRotaryEmbedding(config_of(parameters, 32, 10_000.0))
    cos, sin = rotary(torch.zeros(1), torch.arange(spec.positions)[None])
    torch.testing.assert_close(angles.cos(), cos[0, :, :16], atol=1e-4, rtol=0)
    torch.testing.assert_close(angles.sin(), sin[0, :, :16], atol=1e-4, rtol=0)


def test_how_far_a_scaling_reaches() -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
    assert read(yarn, 32).positions == 128
    assert read({**yarn, "factor": 1.5}, 32).positions == TRAINED  # what config.json says is more
    assert read({"rope_type": "linear", "factor": 4.0}, 32).positions == TRAINED


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ({"rope_type": "su"}, "'su' is not supported .supported: default, linear, dynamic, yarn"),
        ({"rope_type": "linear"}, "lacks the parameter 'factor'"),
        ({"rope_type": "dynamic"}, "lacks the parameter 'factor'"),
        ({"rope_type": "llama3", "factor": 2.0}, "lacks the parameter 'low_freq_factor'"),
        ({"rope_type": "linear", "factor": "two"}, "'two', not a number"),
        ({"rope_type": "linear", "factor": 0.0}, "without finite angles"),
        ({"rope_type": "dynamic", "factor": -1.0}, "without finite angles"),
        ({"rope_type": "dynamic", "factor": float("inf")}, "without finite angles"),
        ({"rope_type": "yarn", "factor": 0.0}, "without finite angles"),
        ({"rope_theta": 0.0}, "without finite angles"),
        ({"partial_rotary_factor": 0.3}, "partial_rotary_factor"),
        ({"partial_rotary_factor": 2.0}, "partial_rotary_factor"),
        ({"rope_type": "longrope", "short_factor": [1.0]}, "'short_factor' is no list"),
        ({"rope_type": ["yarn"]}, "not supported"),
    ],
)
def test_bad_parameters_are_refused(parameters: dict[str, Any], reason: str) -> None:
    with pytest.raises(LoadError, match=reason):
        read(parameters, 32)


@torch.inference_mode()
def test_many_positions_take_no_memory(tmp_path: Path) -> None:
    """Of a file that claims them, whoever made it."""
    folder = make_family(tmp_path / "model", "llama", max_position_embeddings=MAX_POSITIONS)
    tokens, positions = tokens_of(20), list(range(MAX_POSITIONS - 20, MAX_POSITIONS))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    rig = Rig(folder)
    found = rig.read(tokens, positions=positions)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 18  # KiB
    assert_close(found, expected_logits(folder, tokens, positions=positions))
