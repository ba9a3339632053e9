"""GGUF files, written by llama.cpp's library, against the checkpoints that they are made of."""

from __future__ import annotations

import json
import math
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import platformdirs
import pytest
import torch
from inference.test_quantized import plain_copy
from safetensors.torch import load_file, save_file
from support.families import WINDOW, YARN, make_family
from support.gguf_files import Kind, write_gguf
from support.model_rig import Rig, Step, assert_close, expected_logits
from transformers import AutoModelForCausalLM, AutoTokenizer

from pie_control.models.tokenizer import TextCodec
from pie_inference.checkpoints.gguf_file import gguf_folder, gguf_tensors
from pie_inference.errors import LoadError
from pie_inference.layers import grouped, native, step
from pie_inference.models import few_bits, kept_weights
from pie_inference.models.by_transformers.network import ByTransformers

TOKENS = list(range(5, 45))
TEXTS = ["The quick fox", "a<|end|>b", " x\né", ""]
SCALES = {"attention_scale": 0.2, "embedding_scale": 3.0, "residual_scale": 0.4, "logit_scale": 2.0}
HYBRID: dict[str, Any] = {
    "linear_num_value_heads": 4,
    "layer_types": [*["linear_attention"] * 3, "full_attention"],
}
# Of a checkpoint, and what its GGUF says of it beside sizes.
FAMILIES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "llama": ("llama", {"head_dim": 16, "attention_bias": True}, {}),
    "llama-yarn": ("llama", {}, {}),
    "mixtral": ("llama", {}, {"expert_count": 4, "expert_used_count": 2}),
    "qwen2": ("qwen2", {"head_dim": 16, "tie_word_embeddings": True}, {}),
    "qwen3": ("qwen3", {}, {}),
    "qwen2-moe-plain": ("qwen2moe", {}, {"expert_count": 4, "expert_used_count": 4}),
    "qwen3-moe": ("qwen3moe", {"mlp_only_layers": []}, {"expert_count": 6, "expert_used_count": 3}),
    "qwen3next": (
        "qwen3next",
        {"mlp_only_layers": []},
        {"expert_count": 4, "expert_used_count": 2, "full_attention_interval": 2},
    ),
    "qwen3_5": ("qwen35", HYBRID, {}),
    "qwen3_5moe": ("qwen35moe", HYBRID, {"expert_count": 4, "expert_used_count": 2}),
    "deepseekv3": (
        "deepseek2",
        {"rope_parameters": {**YARN, "mscale": 0.7, "mscale_all_dim": 0.7}},
        {
            "expert_count": 8,
            "expert_used_count": 3,
            "expert_shared_count": 1,
            "leading_dense_block_count": 1,
            "expert_weights_scale": 2.5,
            "expert_weights_norm": True,
            "expert_gating_func": gguf.ExpertGatingFuncType.SIGMOID,
        },
    ),
    "deepseekv2": (
        "deepseek2",
        {},
        {"expert_count": 4, "expert_used_count": 2, "leading_dense_block_count": 1},
    ),
    "gemma": ("gemma", {}, {}),
    "gemma2": (
        "gemma2",
        {"query_pre_attn_scalar": 32},
        {"sliding_window": WINDOW, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0},
    ),
    "gemma3": (
        "gemma3",
        {"query_pre_attn_scalar": 32},
        {"sliding_window": WINDOW, "sliding_window_pattern": 2},
    ),
    "gemma4": ("gemma4", {}, {}),
    "gemma4-moe": ("gemma4", {}, {}),
    "phi3": ("phi3", {}, {"sliding_window": WINDOW}),
    "phi": ("phi2", {}, {}),
    "cohere": ("command-r", {}, {"logit_scale": 0.5}),
    "cohere-normed": ("command-r", {"attention_bias": False}, {"logit_scale": 0.0625}),
    "cohere2": ("cohere2", {}, {"sliding_window": WINDOW, "logit_scale": 0.0625}),
    "starcoder2-plain": ("starcoder2", {}, {}),
    "starcoder2": ("starcoder2", {"sliding_window": None}, {}),
    "stablelm": ("stablelm", {}, {"parallel_residual": False}),
    "stablelm-parallel": ("stablelm", {}, {"parallel_residual": True}),
    "smollm3": ("smollm3", {"no_rope_layer_interval": 4}, {}),
    "olmo2": ("olmo2", {}, {}),
    "granite": ("granite", {}, SCALES),
    "granite-moe": ("granitemoe", {}, {**SCALES, "expert_count": 5, "expert_used_count": 3}),
    "glm4": ("glm4", {}, {}),
    "glm4-moe": (
        "glm4moe",
        {"routed_scaling_factor": 1.5},
        {
            "expert_count": 4,
            "expert_used_count": 2,
            "leading_dense_block_count": 1,
            "expert_weights_scale": 1.5,
            "expert_weights_norm": True,
        },
    ),
    "gptoss": (
        "gpt-oss",
        {"swiglu_limit": 7.0},
        {"sliding_window": WINDOW, "expert_count": 5, "expert_used_count": 2},
    ),
}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    native.library()  # which lies in the usual folder, and would be compiled anew in another
    monkeypatch.setattr(platformdirs, "user_cache_dir", lambda name: str(tmp_path / name))


def test_the_folder_that_is_made_is_kept_as_long_as_it_is_used(tmp_path: Path) -> None:
    folder = make_family(tmp_path / "model", "llama")
    file = write_gguf(folder, "llama")
    made = gguf_folder(file)
    assert made.stat().st_mode & 0o077 == 0
    (made / "tokenizer.json").touch()
    at = (made / "tokenizer.json").stat().st_ino
    past = made.with_name("past-0123456789abcdef")  # of another version
    past.mkdir()
    for unused in (past, made):
        os.utime(unused, (0, 0))
    assert gguf_folder(file) == made
    assert (made / "tokenizer.json").stat().st_ino == at
    assert not past.exists()


def test_what_a_process_leaves_that_is_killed_goes_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_gguf(make_family(tmp_path / "model", "llama"), "llama")
    if not (child := os.fork()):
        monkeypatch.setattr(os, "rename", lambda *places: os.kill(os.getpid(), signal.SIGKILL))
        gguf_folder(file)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    made = gguf_folder(file)
    [left] = set(made.parent.iterdir()) - {made}
    os.utime(left, (0, 0))
    assert gguf_folder(file) == made
    assert list(made.parent.iterdir()) == [made]


@pytest.mark.parametrize("name", ["tokenizer.json", "config.json", "sums"])
@pytest.mark.parametrize("damage", ["cut off", "gone"])
def test_a_damaged_folder_is_made_anew(name: str, damage: str, tmp_path: Path) -> None:
    file = write_gguf(make_family(tmp_path / "model", "llama"), "llama")
    broken = gguf_folder(file) / name
    content = broken.read_bytes()
    if damage == "gone":
        broken.unlink()
    else:
        broken.write_bytes(content[: len(content) // 2])
    assert (gguf_folder(file) / name).read_bytes() == content


@pytest.mark.parametrize("family", FAMILIES)
@torch.inference_mode()
def test_logits_are_those_of_the_checkpoint(family: str, tmp_path: Path) -> None:
    architecture, options, more = FAMILIES[family]
    folder = with_scales(make_family(tmp_path / "model", family, **options))
    file = write_gguf(folder, architecture, **more)
    near = 5e-4 if "layer_types" in options else 1e-4  # states are sums: 2e-4 on some CPUs
    found, wanted = Rig(file).read(TOKENS), expected_logits(folder, TOKENS)
    torch.testing.assert_close(found, wanted, atol=near, rtol=0)


def with_scales(folder: Path) -> Path:
    """Gemma 4's checkpoint, with factors that are not 1, as new ones all are."""
    tensors = load_file(folder / "model.safetensors")
    for name, tensor in tensors.items():
        if name.endswith(("scale", "layer_scalar")):
            tensor.uniform_(0.5, 2.0)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


@pytest.mark.parametrize("family", ["qwen3", "qwen3-moe"])
@torch.inference_mode()
def test_the_text_of_a_model_whose_images_are_in_another_file(family: str, tmp_path: Path) -> None:
    architecture, options, more = FAMILIES[family]
    folder = make_family(tmp_path / "model", family, **options)
    file = write_gguf(folder, architecture.replace("qwen3", "qwen3vl"), **more)
    assert_close(Rig(file).read(TOKENS), expected_logits(folder, TOKENS))


@pytest.mark.parametrize("served", [256, 512])
@torch.inference_mode()
def test_factors_for_short_and_long_texts_are_kept(served: int, tmp_path: Path) -> None:
    """Phi 3's are tensors of the file."""
    folder = make_family(tmp_path / "model", "phi3-long")
    rope = json.loads((folder / "config.json").read_text())["rope_parameters"]
    factors = {
        f"rope_factors_{which}.weight": np.array(rope[f"{which}_factor"], np.float32)
        for which in ("long", "short")
    }
    amplitude = math.sqrt(1 + math.log(2) / math.log(256))
    file = write_gguf(folder, "phi3", tensors=factors, rope_scaling_attn_factors=amplitude)
    found, wanted = (Rig(each, max_length=served).read(TOKENS) for each in (file, folder))
    assert_close(found, wanted)


def test_factors_of_frequencies_are_kept(tmp_path: Path) -> None:
    """Llama 3.1's are a tensor of the file, which transformers passes over."""
    scaling = {
        "rope_type": "llama3",
        "rope_theta": 10_000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    folder = make_family(tmp_path / "model", "llama", head_dim=16, rope_parameters=scaling)
    (turn, *_) = Rig(folder).model.network.turns() or [None]
    assert turn is not None
    plain = 1.0 / 10_000.0 ** (torch.arange(0, 16, 2) / 16)
    factors = {"rope_freqs.weight": (plain / turn.frequencies).numpy()}
    file = write_gguf(folder, "llama", tensors=factors)
    assert_close(Rig(file).read(TOKENS), expected_logits(folder, TOKENS))


WIDE_ENOUGH: dict[str, dict[str, Any]] = {
    "qwen3-moe": {"mlp_only_layers": [], "moe_intermediate_size": 64},
    "qwen3_5": {**HYBRID, "linear_key_head_dim": 32, "linear_value_head_dim": 32},
    "qwen3next": {
        "mlp_only_layers": [],
        "linear_value_head_dim": 32,
        "shared_expert_intermediate_size": 32,
    },
}


@pytest.mark.parametrize("family", WIDE_ENOUGH)
@pytest.mark.parametrize("name", ["F16", "BF16", "Q4_0", "Q5_1", "Q8_0"])
def test_matrices_in_few_bits_are_widened(name: str, family: str, tmp_path: Path) -> None:
    """Experts one by one, which the file has together; heads in the order of a checkpoint. What
    stays in groups stands for the same numbers.
    """
    architecture, _, more = FAMILIES[family]
    folder = make_family(tmp_path / "model", family, **WIDE_ENOUGH[family])
    kind: Any = getattr(Kind, name)
    found = gguf_tensors(write_gguf(folder, architecture, kind, **more))
    stored = load_file(folder / "model.safetensors")
    assert found.keys() == stored.keys()
    for tensor, value in stored.items():
        wanted = value.float().numpy()
        kept = wanted.ndim == 2 and not tensor.endswith("shared_expert_gate.weight")
        if kept:
            wanted = gguf.dequantize(gguf.quantize(wanted, kind), kind)
        assert found[tensor].shape == wanted.shape
        # Of these the file has something else, which is rounded.
        other = tensor.endswith(("A_log", "norm.weight"))
        near = 1e-6 if other else 0
        assert np.allclose(found[tensor].read().numpy(), wanted, rtol=0, atol=near), tensor
        groups = found[tensor].groups()
        assert (groups is not None) == (kept and name[0] == "Q"), tensor
        if groups is not None:
            each = groups.numbers.shape[1] // groups.scales.shape[1]
            scales, least = (part.repeat_interleave(each, 1) for part in groups[1:3])
            assert np.allclose(groups.numbers * scales + least, wanted, atol=1e-6), tensor


def test_few_bits_stay_so_in_a_module_of_transformers(tmp_path: Path) -> None:
    """In its linear layers, the head among them; what is stored otherwise is widened."""
    folder = make_family(tmp_path / "model", "olmo2")
    file = write_gguf(folder, "olmo2", Kind.Q8_0)
    rig = Rig(file, dtype="float32")
    assert isinstance(rig.model.network, ByTransformers)
    assert rig.model.description.few_bits == ([8] if native.library() else [])
    same = {name: source.read() for name, source in gguf_tensors(file).items()}
    plain = plain_copy(folder, tmp_path / "plain", same)
    assert_close(rig.read(TOKENS), expected_logits(plain, TOKENS), few_bits=True)


def test_all_of_a_file(tmp_path: Path) -> None:
    """The tokenizer is that of the checkpoint, and the folder is made once."""
    folder = make_family(tmp_path / "model", "llama", head_dim=16, tie_word_embeddings=True)
    file = write_gguf(folder, "llama", Kind.Q8_0)
    description = Rig(file).model.description
    codec, reference = TextCodec(Path(description.folder)), AutoTokenizer.from_pretrained(folder)
    for text in TEXTS:
        assert codec.encode(text) == reference.encode(text, add_special_tokens=False)
    assert codec.end_token == reference.eos_token_id
    assert codec.has_chat_template
    assert description.stop_tokens == [reference.eos_token_id]
    config = Path(description.folder) / "config.json"
    made = config.stat().st_mtime_ns
    assert Rig(file).model.description.folder == description.folder
    assert config.stat().st_mtime_ns == made


def test_the_end_of_a_turn_ends_an_answer(tmp_path: Path) -> None:
    folder = make_family(tmp_path / "model", "llama", head_dim=16)
    more = {"pooling_type": gguf.PoolingType.MEAN}
    description = Rig(write_gguf(folder, "llama", eot_token_id=7, **more)).model.description
    assert 7 in description.stop_tokens
    assert description.pooling == "mean"


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"rope_dimension_count": 8}, "heads of which a part turns, are not supported"),
        ({"sliding_window": 8}, "sliding windows.*are not supported"),
        ({"pre": "bailingmoe"}, r"has 'bailingmoe' as the way .*smollm.*safetensors"),
        ({"pre": None}, "says nothing of the way its texts are split"),
        ({"rope_scaling_type": gguf.RopeScalingType.LONGROPE}, "rope scaling 'longrope'"),
        ({"uint16": ("split.count", 3)}, "is one part of several"),
        ({"expert_count": 4}, r"lacks the tensor blk\.0\.ffn_gate_exps\.weight"),
    ],
)
def test_what_cannot_be_served_is_refused(more: dict[str, Any], words: str, tmp_path: Path) -> None:
    folder = make_family(tmp_path / "model", "llama", head_dim=16)
    file = write_gguf(folder, "llama", **more)
    with pytest.raises(LoadError, match=rf"model\.gguf.*{words}"):
        Rig(file)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("context_length", 1 << 30, "without finite angles.*, context_length 1073741824"),
        ("attention.head_count_kv", 3, "4 attention heads do not divide among 3 kv heads"),
        ("feed_forward_length", 95, r"disagree with .*model\.gguf, metadata: "),
    ],
)
def test_a_network_that_cannot_be_is_told_in_the_files_words(
    name: str, value: int, words: str, tmp_path: Path
) -> None:
    file = write_gguf(make_family(tmp_path / "model", "llama"), "llama")
    content = file.read_bytes()
    at = content.index(f"llama.{name}".encode()) + len(name) + 10
    file.write_bytes(content[:at] + value.to_bytes(4, "little") + content[at + 4 :])
    with pytest.raises(LoadError, match=words) as refused:
        Rig(file)
    assert "model.gguf, metadata" in str(refused.value)
    assert "config.json" not in str(refused.value)


@pytest.mark.nightly
@pytest.mark.timeout(0)
@torch.inference_mode()
def test_a_real_model_reads_long_texts(smollm2: Path) -> None:
    """At once and in chunks; then it goes on, as transformers does."""
    documents = sorted((Path(__file__).parents[2] / "docs").glob("*.md"))
    text = "".join(file.read_text(encoding="utf-8") for file in documents)
    tokens = TextCodec(gguf_folder(smollm2)).encode(text)[:3000]
    model = AutoModelForCausalLM.from_pretrained(
        smollm2.parent, gguf_file=smollm2.name, dtype=torch.float32
    ).eval()
    options = {"max_new_tokens": 16, "eos_token_id": None, "return_dict_in_generate": True}
    output = model.generate(torch.tensor([tokens]), do_sample=False, output_logits=True, **options)
    greedy = output.sequences[0, len(tokens) :].tolist()
    wanted = torch.cat(output.logits).log_softmax(-1)
    del model
    sizes = {"pages": 400, "embeds": 4096, "max_batch_tokens": 4096}
    rig = Rig(smollm2, dtype="float32", **sizes)
    for chunks in ([3000], [1000, 1, 37, 962, 1000]):
        sequence, done = rig.sequence(3016), 0
        for chunk in chunks:
            (found,) = rig.forward(Step(sequence, tokens[done : done + chunk]))
            done += chunk
        for token, logprobs in zip(greedy, wanted, strict=False):
            torch.testing.assert_close(found[-1].log_softmax(-1), logprobs, atol=1e-3, rtol=0)
            assert int(found[-1].argmax()) == token
            (found,) = rig.forward(Step(sequence, [token]))


@pytest.mark.nightly
@torch.inference_mode()
def test_a_real_model_in_bfloat16_is_close_to_float32(
    smollm2: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the kernels, layer by layer, and on a machine without a compiler."""
    text = (Path(__file__).parents[2] / "docs" / "contract.md").read_text(encoding="utf-8")
    tokens = TextCodec(gguf_folder(smollm2)).encode(text)[1000:1500]

    def logprobs(rig: Rig) -> torch.Tensor:
        return rig.read(tokens)[:-1].log_softmax(-1).gather(1, torch.tensor(tokens[1:])[:, None])

    sizes = {"pages": 64, "embeds": 2048}
    exact = logprobs(Rig(smollm2, dtype="float32", **sizes))
    rig = Rig(smollm2, dtype="bfloat16", **sizes)
    if native.library() is not None:
        assert rig.model.fused_steps is not None
        assert (logprobs(rig) - exact).abs().mean() < 0.018
        rig.model = replace(rig.model, fused_steps=None)
        assert (logprobs(rig) - exact).abs().mean() < 0.02
    for module in (grouped, few_bits, kept_weights, step):
        monkeypatch.setattr(module, "library", lambda: None)
    assert (logprobs(Rig(smollm2, dtype="bfloat16", **sizes)) - exact).abs().mean() < 0.022


def test_sizes_that_do_not_fit_the_tensors_are_refused(tmp_path: Path) -> None:
    folder = make_family(tmp_path / "model", "mixtral")
    file = write_gguf(folder, "llama", expert_count=4, expert_used_count=2)
    content = file.read_bytes()
    for name, value, words in (
        ("llama.block_count", 1 << 30, "block_count' is 1073741824, not at most 4096"),
        ("llama.block_count", 4000, "block_count' is not the number of its layers"),
        ("llama.expert_count", 4000, "expert_count' does not fit its tensors"),
        ("llama.attention.head_count", 1 << 30, "is 0, not a positive|do not fit its tensors"),
        ("llama.attention.key_length", 1 << 30, "differ in size"),
        ("llama.context_length", 0, "context_length' is 0, not a positive whole number"),
    ):
        at = content.index(name.encode()) + len(name) + 4
        file.write_bytes(content[:at] + value.to_bytes(4, "little") + content[at + 4 :])
        with pytest.raises(LoadError, match=rf"model\.gguf.*{words}"):
            gguf_folder(file)
    file.write_bytes(content.replace(b"token_embd.weight", b"token_embd.weighs"))
    with pytest.raises(LoadError, match=r"model\.gguf lacks the tensor token_embd\.weight"):
        gguf_folder(file)
    other = gguf.GGUFWriter(file, "mamba")
    other.write_header_to_file()
    other.write_kv_data_to_file()
    other.close()
    with pytest.raises(LoadError, match=r"architecture 'mamba' is not supported .*llama, qwen2"):
        gguf_folder(file)
