"""Checkpoints: dtypes, names, sizes of the pools, and a clear reason for each bad one."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.checkpoints import Edit, edited, edited_tensors, gone, make_llama, written
from support.model_rig import Rig, Step

from pie_inference.checkpoints.loader import choose_dtype, cpu_has_bfloat16
from pie_inference.errors import LoadError
from pie_inference.loading.assembly import load_models
from pie_inference.loading.choices import choose_device
from pie_inference.loading.pooling import pooling
from pie_inference.serving.engine import Engine
from pie_py.config.memory import available_memory
from pie_py.config.model import ModelConfig


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llama(tmp_path_factory.mktemp("model") / "good")


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llama(tmp_path_factory.mktemp("model") / "sharded", shards=3)


WEIGHTS = "model.safetensors"
DOWN = "model.layers.1.mlp.down_proj.weight"
config = partial(edited, "config.json")
FAULTS: dict[str, tuple[Edit, str]] = {
    "garbled": (written(WEIGHTS, b"\x07" * 4096), "model.safetensors cannot be read"),
    "no weights": (gone(WEIGHTS), "neither model.safetensors nor"),
    "no config": (gone("config.json"), "has no config.json"),
    "bad json": (written("config.json", b'{"architectures": ['), "config.json cannot be read"),
    "architecture": (
        config(architectures=["BertModel"]),
        "architecture BertModel is not supported: it is none that writes text",
    ),
    "quantized": (
        config(quantization_config={"quant_method": "quip", "bits": 4}),
        "the method 'quip' are not supported .supported: awq, bitsandbytes, compressed-tensors",
    ),
    "too many experts": (
        config(architectures=["MixtralForCausalLM"], num_local_experts=2, num_experts_per_tok=3),
        "3 experts a token, but there are 2",
    ),
    "layer types": (
        config(
            architectures=["MistralForCausalLM"], sliding_window=9, layer_types=["linear_attention"]
        ),
        "'layer_types' is not 2 times",
    ),
    "window": (
        config(architectures=["MistralForCausalLM"], sliding_window=-1),
        "'sliding_window' is -1, not a positive whole number",
    ),
    "tied": (config(tie_word_embeddings="yes"), "'yes', not true or false"),
    "bidirectional": (
        config(architectures=["Gemma2ForCausalLM"], use_bidirectional_attention=True),
        "use_bidirectional_attention is not supported",
    ),
    "no architecture": (config(architectures=None), "unnamed is not supported"),
    "missing tensor": (edited_tensors(lambda t: t.pop(DOWN)), f"lacks tensors: {DOWN}"),
    "surplus tensor": (
        edited_tensors(lambda t: t.update({"model.extra.weight": torch.zeros(2)})),
        "does not have: model.extra.weight",
    ),
    "wrong shape": (
        edited_tensors(lambda t: t.update({DOWN: torch.zeros(3, 5)})),
        rf"{DOWN} is \[3, 5\], not \[64, 128\]",
    ),
    "not a number": (
        edited_tensors(
            lambda t: t.update({DOWN: t[DOWN].index_fill(0, torch.tensor(3), torch.nan)})
        ),
        rf"{DOWN} holds numbers that are not finite in float32: download it again$",
    ),
    "whole numbers": (
        edited_tensors(lambda t: t.update({DOWN: torch.zeros(64, 128, dtype=torch.int8)})),
        "torch.int8, not floating-point",
    ),
    "shapes disagree": (config(hidden_size=128), "disagree with config.json"),
    "heads": (config(num_key_value_heads=3), "do not divide"),
    "lacking": (config(vocab_size=None), "lacks 'vocab_size'"),
    "negative": (config(vocab_size=-5), "not a positive whole number"),
    "activation": (config(hidden_act="mish"), "'mish' is not supported"),
    "rope lacks": (config(rope_parameters={"rope_type": "linear"}), "lacks the parameter"),
    "part of a head turned": (
        config(partial_rotary_factor=0.5),
        "partial_rotary_factor other than 1 is not supported",
    ),
    "dtype": (config(dtype="float8"), "'float8' is not supported"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_bad_checkpoint_is_refused_with_its_reason(
    good: Path, tmp_path: Path, fault: str
) -> None:
    spoil, reason = FAULTS[fault]
    folder = tmp_path / "model"
    shutil.copytree(good, folder)
    spoil(folder)
    with pytest.raises(LoadError, match=reason):
        load_models([ModelConfig(source=str(folder), kv_pages=8)])


def test_a_lacking_shard_is_named(sharded: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(sharded, folder)
    shard = sorted(folder.glob("*.safetensors"))[1]
    shard.unlink()
    with pytest.raises(LoadError, match=f"lacks files that .* names: {shard.name}"):
        load_models([ModelConfig(source=str(folder), kv_pages=8)])


def test_a_source_that_is_nowhere(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="there is no folder"):
        load_models([ModelConfig(source=str(tmp_path / "nothing"))])


@pytest.mark.parametrize("device", ["tpu", "meta", "cpu:0", "cuda:99"])
def test_a_device_that_is_not_there(good: Path, device: str) -> None:
    with pytest.raises(LoadError, match=device):
        load_models([ModelConfig(source=str(good), device=device)])


def test_the_model_at_fault_is_named(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"^model mine: "):
        Engine([ModelConfig(source=str(tmp_path), name="mine")])


def test_two_models_of_one_name_are_refused(good: Path) -> None:
    with pytest.raises(LoadError, match="two models are called 'good'"):
        Engine([ModelConfig(source=str(good), kv_pages=8)] * 2)


def test_a_pool_beyond_the_memory_is_refused(good: Path) -> None:
    with pytest.raises(LoadError, match="no memory for a KV pool"):
        load_models([ModelConfig(source=str(good), kv_pages=1 << 40)])
    with pytest.raises(LoadError, match="set kv_memory or kv_pages"):
        load_models([ModelConfig(source=str(good), kv_memory=10)])


def test_sizes_of_the_pools(good: Path) -> None:
    page = 16 * (2 * 2 * 2 * 16) * 4  # 2 layers, keys and values, 2 heads of 16, float32
    told = load_models([ModelConfig(source=str(good), kv_memory=10 * page + 1, embeds=99)])[0]
    assert (told.cache.pages, told.description.embeds) == (10, 99)
    assert (told.description.kv_pages, told.description.embeds) == (10, 99)
    untold = load_models([ModelConfig(source=str(good))])[0]
    assert untold.cache.pages > 1000
    assert untold.embeds.size >= untold.description.max_batch_tokens


def test_several_models_share_the_memory(good: Path) -> None:
    page = 16 * (2 * 2 * 2 * 16) * 4  # 2 layers, keys and values, 2 heads of 16, float32
    configs = [ModelConfig(source=str(good), name=name) for name in "abc"]
    three = load_models(configs)
    assert len({model.cache.pages for model in three}) == 1
    assert len({model.cache.data.data_ptr() for model in three}) == 3
    most = available_memory() // page
    greedy = [ModelConfig(source=str(good), name=n, kv_pages=most * 2 // 3) for n in "ab"]
    with pytest.raises(LoadError, match=r"^model b: no memory .* are other models'"):
        load_models(greedy)


def test_what_is_told_of_a_model(good: Path) -> None:
    told = load_models([ModelConfig(source=str(good), kv_pages=8, page_size=8)])[0].description
    assert told.name == "good"
    assert Path(told.folder) == good
    assert (told.page_size, told.hidden_size, told.max_position) == (8, 64, 1024)
    assert (told.bos_token, told.stop_tokens) == (0, [1])
    assert told.dtype == "float32"


def test_a_decoder_that_was_saved_by_itself_gives_the_same_hidden_states(tmp_path: Path) -> None:
    """As models for embeddings are: without a head, and without `model.` before names."""
    whole = make_llama(tmp_path / "whole")
    bare = tmp_path / "bare"
    shutil.copytree(whole, bare)
    edited("config.json", architectures=["LlamaModel"])(bare)
    weights = load_file(bare / "model.safetensors")
    weights = {name[6:]: each for name, each in weights.items() if name.startswith("model.")}
    save_file(weights, bare / "model.safetensors", {"format": "pt"})
    found = []
    for folder in (whole, bare):
        rig = Rig(folder)
        assert rig.model.description.pooling == "last"
        rig.forward(Step(rig.sequence(8), list(range(5, 13))))
        found.append(rig.model.embeds.hidden[:2048].clone())
    assert torch.equal(*found)


def test_pooling_is_the_checkpoints_own(tmp_path: Path) -> None:
    assert pooling(tmp_path, {}) == "last"
    assert [pooling(tmp_path, {"pooling_type": kind}) for kind in range(4)] == [
        *("last", "mean", None, "last")
    ]
    assert pooling(tmp_path, {"is_causal": False}) is None
    (tmp_path / "modules.json").write_text('[{"type": "st.Pooling", "path": "1_Pooling"}]')
    (tmp_path / "1_Pooling").mkdir()
    for config, wanted in (
        ({"pooling_mode_mean_tokens": True}, "mean"),
        ({"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": False}, "last"),
        ({"pooling_mode_cls_token": True}, None),
        ({"pooling_mode": "mean"}, "mean"),
    ):
        (tmp_path / "1_Pooling/config.json").write_text(json.dumps(config))
        assert pooling(tmp_path, {}) == wanted


def test_the_checkpoints_dtype_is_taken_unless_another_is_wanted() -> None:
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    fast = torch.bfloat16 if cpu_has_bfloat16() else torch.float32
    assert choose_dtype("auto", {"dtype": "bfloat16"}, cpu) == fast
    assert choose_dtype("auto", {"torch_dtype": "bfloat16"}, cuda) == torch.bfloat16
    assert choose_dtype("auto", {"dtype": "float16"}, cpu) == torch.float32
    assert choose_dtype("auto", {"dtype": "float16"}, cuda) == torch.float16
    assert choose_dtype("float32", {"dtype": "bfloat16"}, cpu) == torch.float32


def test_one_device_has_one_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models of one GPU share its memory, however their configurations call it."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    assert {choose_device(name) for name in ("auto", "cuda", "cuda:0")} == {torch.device("cuda:0")}
    assert choose_device("cuda:1") == torch.device("cuda:1")


def test_a_worker_loads_nothing_that_is_for_gpus_or_downloads() -> None:
    program = (
        "import sys; import pie_inference.serving.worker;print([n for n in sys.modules if"
        " n.startswith(('pie_inference.cuda', 'flashinfer', 'triton', 'huggingface_hub')) or n =="
        " 'pie_inference.attention.flashinfer'])"
    )
    found = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert found.stdout == "[]\n"
