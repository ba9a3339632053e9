"""Families without code of ours: transformers' own modules under the paged attention."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from click.testing import CliRunner
from safetensors.torch import load_file, save_file
from support.checkpoints import edited
from support.model_rig import Rig, Step, causal, runs_of
from support.transformers_classes import random_module, small_config
from transformers import PreTrainedModel

from pie_inference.attention import Chunk
from pie_inference.errors import LoadError
from pie_inference.loading.check import check
from pie_inference.models import registry
from pie_inference.models.by_transformers.network import ByTransformers
from pie_inference.models.by_transformers.products import Ours
from pie_py.cli import main

TESTS = Path(__file__).parents[1]
# Learned positions, none, slopes; latents; windows that slide and stand; experts; soft caps; layers
# of several widths; embeddings for each layer; sinks; logits that are scaled; convolutions; states.
KINDS = (
    "GPT2LMHeadModel",
    "OPTForCausalLM",
    "BloomForCausalLM",
    "MptForCausalLM",
    "GPTNeoXForCausalLM",
    "FalconForCausalLM",
    "DeepseekV2ForCausalLM",
    "Llama4ForCausalLM",
    "OlmoeForCausalLM",
    "Gemma2ForCausalLM",
    "Gemma4ForCausalLM",
    "GptOssForCausalLM",
    "CohereForCausalLM",
    "MiniMaxM2ForCausalLM",
    "Lfm2ForCausalLM",
    "NemotronHForCausalLM",
    "Glm4MoeLiteForCausalLM",
    "Gemma3nForCausalLM",
    "HunYuanDenseV1ForCausalLM",
    "ApertusForCausalLM",
    "LongcatFlashForCausalLM",
)


@pytest.fixture
def general(monkeypatch: pytest.MonkeyPatch) -> None:
    """Families of ours go the general way, too."""
    monkeypatch.setattr(registry, "ARCHITECTURES", {})
    monkeypatch.setattr("pie_inference.loading.network.ARCHITECTURES", {})


def made(folder: Path, name: str, **more: Any) -> PreTrainedModel:
    module = random_module(getattr(transformers, name), **more)
    module.save_pretrained(folder)
    return module


@torch.inference_mode()
def wanted_of(module: PreTrainedModel, tokens: list[int], **more: Any) -> torch.Tensor:
    logits: torch.Tensor = module(input_ids=torch.tensor([tokens]), use_cache=False, **more).logits
    return logits[0].log_softmax(-1)


def assert_close(found: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(found, wanted, atol=1e-3, rtol=0)


def tokens_of(count: int, seed: int = 0) -> list[int]:
    tokens: list[int] = np.random.default_rng(seed).integers(5, 150, count).tolist()
    return tokens


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.usefixtures("general")
def test_log_probabilities(name: str, tmp_path: Path) -> None:
    """Of prompts at once, in pieces and in one batch with others' steps; forked, and masked."""
    module = made(tmp_path, name)
    rig = Rig(tmp_path, page_size=8)
    assert isinstance(rig.model.network, ByTransformers)
    first, second = tokens_of(45), tokens_of(20, 1)
    wanted, other = wanted_of(module, first), wanted_of(module, second)
    assert_close(rig.read(first).log_softmax(-1), wanted)
    one, two = rig.sequence(45), rig.sequence(20)
    for (a, b), (c, d) in zip(
        ((0, 30), (30, 43), (43, 44)), ((0, 1), (1, 18), (18, 19)), strict=True
    ):
        steps = Step(one, first[a:b], outputs=b - a), Step(two, second[c:d], outputs=d - c)
        found, beside = rig.forward(*steps)
        assert_close(found.log_softmax(-1), wanted[a:b])
        assert_close(beside.log_softmax(-1), other[c:d])
    (found,) = rig.forward(Step(one, first[44:]))  # a row alone
    assert_close(found.log_softmax(-1), wanted[44:])


@pytest.mark.parametrize("name", ["LlamaForCausalLM", "NemotronHForCausalLM"])
def test_a_model_to_measure_with_needs_no_weights(name: str, tmp_path: Path) -> None:
    made(tmp_path, name)
    (tmp_path / "model.safetensors").unlink()
    rig = Rig(tmp_path, load_format="dummy")
    assert isinstance(rig.model.network, ByTransformers) == (name != "LlamaForCausalLM")
    assert rig.read(tokens_of(9)).isfinite().all()


def test_a_weight_that_is_elsewhere_is_multiplied_by_no_one() -> None:
    """PyTorch takes one without numbers in a product, and gives what is in memory."""
    layer = Ours(torch.nn.Linear(8, 4), None)
    assert layer.weight.dtype == torch.float32
    assert layer.weight.shape == (4, 8)
    for use in (lambda w: torch.nn.functional.linear(torch.ones(1, 8), w), torch.Tensor.float):
        with pytest.raises(LoadError, match="reads the weight of a linear layer by itself"):
            use(layer.weight)


@pytest.mark.parametrize("name", ["Lfm2ForCausalLM", "NemotronHForCausalLM"])
def test_layers_with_a_state_go_back(name: str, tmp_path: Path) -> None:
    """A text is cut and goes on otherwise, and what begins alike shares pages."""
    module = made(tmp_path, name, max_position_embeddings=700)
    rig = Rig(tmp_path, page_size=8, pages=192)
    tokens = tokens_of(600)
    one = rig.sequence(640)
    for first, end in ((0, 530), (530, 599), (599, 600)):
        rig.forward(Step(one, tokens[first:end]))
    for length in (560, 24):
        one.used = length
        others = tokens[:length] + tokens_of(7, length)
        (found,) = rig.forward(Step(one, others[length:], outputs=7))
        assert_close(found.log_softmax(-1), wanted_of(module, others)[length:])
    fork, last = rig.sequence(640), tokens_of(3, 5)
    fork.pages[:2], fork.used = one.pages[:2], 16
    (found,) = rig.forward(Step(fork, last, outputs=3))
    assert_close(found.log_softmax(-1), wanted_of(module, tokens[:16] + last)[16:])


@pytest.mark.usefixtures("general")
def test_masks_and_observed_attention(tmp_path: Path) -> None:
    module = made(tmp_path, "GPT2LMHeadModel")
    rig = Rig(tmp_path, page_size=8)
    tokens = tokens_of(20)
    sequence = rig.sequence(20)
    rig.forward(Step(sequence, tokens[:12], outputs=0))
    visible = causal(20)
    visible[12:, [3, 8]] = False
    added = torch.where(torch.tensor(visible), 0.0, torch.finfo(torch.float32).min)[None, None]
    step = Step(sequence, tokens[12:], outputs=8, mask=runs_of(visible[12:]), observed=8)
    (found,) = rig.forward(step)
    assert_close(found.log_softmax(-1), wanted_of(module, tokens, attention_mask=added)[12:])
    assert rig.attention is not None
    weights = torch.tensor(rig.attention.values)
    assert weights[[3, 8]].eq(0).all()
    assert weights[:12].sum() > 1


@pytest.mark.usefixtures("general")
def test_windows_are_read_from_the_masks(tmp_path: Path) -> None:
    made(tmp_path / "still", "Llama4ForCausalLM")
    windows = {one.window for one in Rig(tmp_path / "still").model.network.shape.attention}
    assert windows == {None, Chunk(12)}
    made(tmp_path / "sliding", "Gemma2ForCausalLM")
    shape = Rig(tmp_path / "sliding").model.network.shape
    assert {(one.window, one.softcap) for one in shape.attention} == {(12, 50.0), (None, 50.0)}


@pytest.mark.usefixtures("general")
def test_bfloat16_is_near_to_float32(tmp_path: Path) -> None:
    module = made(tmp_path, "BloomForCausalLM")
    rig = Rig(tmp_path, dtype="bfloat16")
    tokens = tokens_of(60)
    exact = wanted_of(module, tokens)
    theirs = wanted_of(module.to(torch.bfloat16), tokens).float()
    own = rig.read(tokens).log_softmax(-1)
    assert (own - exact).norm() <= 1.2 * (theirs - exact).norm()


REFUSED = {
    "RoFormerForCausalLM": "its layers compute attention",
    "JambaForCausalLM": "do not go on from a state",
    "MiniMaxForCausalLM": "inputs depend on others outside its attention.*linear_attention",
    "BertLMHeadModel": "neither causal nor a window",
    "CpmAntForCausalLM": "its code fails without its own attention and cache .AttributeError: ",
    "DeepseekV4ForCausalLM": "its code fails .* .it has layers of compressed_sparse_attention",
    "ZayaForCausalLM": "its code fails without its own attention and cache .TypeError: ",
    "DeepseekV32ForCausalLM": "DeepseekV32Attention gives its attention what ours has not: indices",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_keys_and_values_is_refused(name: str, tmp_path: Path) -> None:
    made(tmp_path, name, is_decoder=False)
    with pytest.raises(LoadError, match=f"{name} by transformers: .*{REFUSED[name]}") as refused:
        Rig(tmp_path)
    assert "take a model of another architecture, docs/models.md" in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"auto_map": {"AutoModelForCausalLM": "own.Model"}}, "'auto_map' names code of its own"),
        ({"architectures": ["StrangerForCausalLM"]}, "StrangerForCausalLM is not supported: it is"),
        ({"n_layer": 10**9}, "config.json: 'n_layer' is 1000000000, not at most 4096"),
        ({"text_config": {"num_layers": 5000}}, "config.json, 'text_config': 'num_layers' is 5000"),
    ],
)
def test_strangers_are_refused(changes: dict[str, Any], text: str, tmp_path: Path) -> None:
    made(tmp_path, "GPT2LMHeadModel")
    edited("config.json", **changes)(tmp_path)
    with pytest.raises(LoadError, match=text) as refused:
        Rig(tmp_path)
    assert len(str(refused.value)) < 300


def test_without_the_library_it_is_asked_for_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(tmp_path, "GPT2LMHeadModel")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(LoadError, match=r"not among ours.*`pip install 'pie-py\[models\]'`"):
        Rig(tmp_path)


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"quantize": "int8"}, "quantize: it has no linear layers that can be rounded"),
        ({"deterministic": True}, "not with deterministic"),
        ({"max_length": 300}, "max_length: 300 tokens, and the model serves 256 at most"),
    ],
)
def test_what_only_families_of_ours_have(config: dict[str, Any], text: str, tmp_path: Path) -> None:
    made(tmp_path, "GPT2LMHeadModel")
    with pytest.raises(LoadError, match=text):
        Rig(tmp_path, **config)


@pytest.mark.parametrize(
    ("layer", "weight", "text"),
    [
        (1, torch.full((64,), torch.nan), "h.1.ln_1.weight holds numbers that are not finite"),
        (1, None, r"lacks tensors: transformer.h.1.ln_1.weight"),
        (1, torch.ones(63), "disagree with config.json"),
        (9, torch.ones(64), "does not have: transformer.h.9"),
    ],
)
def test_tensors_are_checked(
    layer: int, weight: torch.Tensor | None, text: str, tmp_path: Path
) -> None:
    made(tmp_path, "GPT2LMHeadModel")
    name = f"transformer.h.{layer}.ln_1.weight"
    tensors = load_file(tmp_path / "model.safetensors") | {name: weight}
    present = {name: each for name, each in tensors.items() if each is not None}
    save_file(present, tmp_path / "model.safetensors")
    with pytest.raises(LoadError, match=text):
        Rig(tmp_path)
    if "finite" not in text:  # the others show in the files' heads
        with pytest.raises(LoadError, match=text):
            check(str(tmp_path))


def test_families_are_listed_with_whose_code_runs_them() -> None:
    rows = json.loads(CliRunner().invoke(main, ["models", "--families", "--json"]).stdout)
    code = {row["family"]: row["code"] for row in rows}
    assert code["LlamaForCausalLM"] == "pie_py"
    assert code["GPT2LMHeadModel"] == "transformers"


def test_adapters_are_refused_by_name(tmp_path: Path) -> None:
    made(tmp_path, "GPT2LMHeadModel")
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == [
        "GPT2LMHeadModel"
    ]
    description = Rig(tmp_path).model.description
    assert "adapter" not in description.traits
    assert "transformers' module" in description.no_adapters
    assert small_config(transformers.GPT2Config).n_embd == description.hidden_size


def test_adapters_of_some_sequences(tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model

    module = made(tmp_path / "model", "ArceeForCausalLM")
    tokens = tokens_of(20)
    plain = wanted_of(module, tokens)
    adapted = get_peft_model(module, LoraConfig(r=2, target_modules=["q_proj", "down_proj"]))
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                parameter.normal_(0.0, 0.2)
    adapted.save_pretrained(tmp_path / "own")
    rig = Rig(tmp_path / "model", adapters={"own": str(tmp_path / "own")})
    steps = [Step(rig.sequence(20), tokens, outputs=20, adapter=slot) for slot in (0, -1)]
    own, other = rig.forward(*steps)
    changed = wanted_of(adapted, tokens)
    assert (changed - plain).abs().max() > 0.01
    assert_close(own.log_softmax(-1), changed)
    assert_close(other.log_softmax(-1), plain)


def test_rounded_to_int8(tmp_path: Path) -> None:
    module = made(tmp_path, "ArceeForCausalLM")
    rig = Rig(tmp_path, quantize="int8")
    assert rig.model.description.few_bits == [8]
    tokens = tokens_of(40)
    wanted = wanted_of(module, tokens)
    error = (rig.read(tokens).log_softmax(-1) - wanted).norm() / wanted.norm()
    assert 0 < error < 0.02


@pytest.mark.nightly
@pytest.mark.timeout(0)  # each class is given its own time
def test_every_class_of_transformers() -> None:
    """None is wrong: what is not right is refused."""
    outcomes = outcomes_of()
    assert outcomes["wrong"] == 0
    assert outcomes["right"] >= 130
    images = outcomes_of("--images")
    assert images
    assert images["wrong"] == 0


def outcomes_of(*options: str) -> Counter[str]:
    """How many of transformers' classes have each outcome."""
    command = [sys.executable, "-m", "support.transformers_classes", *options]
    paths = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    told = subprocess.check_output(command, text=True, env={**os.environ, "PYTHONPATH": paths})
    return Counter(json.loads(line)[1] for line in told.splitlines())
