"""GGUF files, written by the library and read as `transformers` reads them."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs
import pytest
import torch
from safetensors.torch import load_file
from support.families import make_family
from support.model_rig import Rig, Step, assert_close, expected_logits
from tokenizers import Regex, Tokenizer
from tokenizers.decoders import ByteLevel
from tokenizers.pre_tokenizers import Split
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode
from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

from pie_control.models.tokenizer import TextCodec
from pie_inference.checkpoints import gguf_file
from pie_inference.checkpoints.gguf_splits import SPLITS
from pie_inference.errors import LoadError

gguf = pytest.importorskip("gguf")

MODULES = {theirs: ours for ours, theirs in (gguf_file._LAYER | gguf_file._OUTSIDE).items()}
ODD = random.Random(5)
ODD_TEXTS = ["".join(ODD.choices("aBéß中ñ1２½ \t\n\r.,'sS/!€😀_-", k=12)) for _ in range(100)]
TEXTS = ["The quick fox", "a<|end|>b", " x\né", ""]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platformdirs, "user_cache_dir", lambda name: str(tmp_path / name))


@pytest.fixture
def no_tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves out what takes seconds."""
    monkeypatch.setattr(gguf_file, "_write_tokenizer", lambda file, folder, splits: None)


def stored_name(name: str) -> str:
    module, _, part = name.rpartition(".")
    layer = module.removeprefix("model.layers.").partition(".")
    if module.startswith("model.layers."):
        return f"blk.{layer[0]}.{MODULES[layer[2]]}.{part}"
    return f"{MODULES[module]}.{part}"


def write(folder: Path, architecture: str, kind: Any, **more: Any) -> Path:
    """Writes a checkpoint as llama.cpp's converter does, its matrices quantized."""
    config = json.loads((folder / "config.json").read_text())
    file = folder.parent / f"{folder.name}.gguf"
    writer = gguf.GGUFWriter(file, architecture)
    writer.add_name("test")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    if (factors := more.pop("rope_freqs", None)) is not None:
        writer.add_tensor("rope_freqs.weight", factors.astype(np.float32))
    pre = more.pop("pre", "qwen2" if architecture.startswith("qwen") else "llama-bpe")
    for name, value in more.items():
        getattr(writer, f"add_{name}")(value)
    described = json.loads((folder / "tokenizer.json").read_text())
    tokens = sorted(described["model"]["vocab"].items(), key=lambda item: item[1])
    special = {token["id"] for token in described["added_tokens"]}
    writer.add_tokenizer_model("gpt2")
    if pre is not None:
        writer.add_tokenizer_pre(pre)
    writer.add_token_list([text for text, _ in tokens])
    writer.add_token_types([3 if i in special else 1 for _, i in tokens])
    writer.add_token_merges([" ".join(merge) for merge in described["model"]["merges"]])
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_chat_template("{{ messages[0].content }}")
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    for name, tensor in load_file(folder / "model.safetensors").items():
        count = heads.get(name.split(".")[-2]) if architecture == "llama" else None
        if count:  # pairs of neighbours, where a checkpoint has halves of heads
            tensor = (
                tensor.reshape(count, 2, -1, *tensor.shape[1:])
                .transpose(1, 2)
                .reshape(tensor.shape)
            )
        data = tensor.float().numpy()
        plain = data.ndim == 1 or kind == gguf.GGMLQuantizationType.F32
        found = data if plain else gguf.quantize(data, kind)
        writer.add_tensor(
            stored_name(name), np.ascontiguousarray(found), raw_dtype=None if plain else kind
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def logits(rig: Rig, tokens: list[int]) -> torch.Tensor:
    return rig.forward(Step(rig.sequence(len(tokens)), tokens, outputs=len(tokens)))[0]


@pytest.mark.parametrize(
    ("family", "kind", "options"),
    [
        ("llama", "F32", {"head_dim": 16}),
        ("qwen2", "Q4_0", {"head_dim": 16, "tie_word_embeddings": True}),
        ("qwen3", "Q5_1", {"head_dim": 128}),  # transformers knows no other size of this one
    ],
)
@torch.inference_mode()
def test_weights_are_those_that_transformers_reads(
    family: str, kind: str, options: dict[str, Any], tmp_path: Path, no_tokenizer: None
) -> None:
    folder = make_family(tmp_path / "model", family, **options)
    file = write(folder, family, gguf.GGMLQuantizationType[kind])
    tokens = list(range(5, 45))
    theirs = AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file=file.name, dtype=torch.float32
    )
    wanted = theirs(torch.tensor([tokens])).logits[0]
    assert_close(logits(Rig(file, dtype="float32"), tokens), wanted)


@pytest.mark.slow
def test_all_of_a_file(tmp_path: Path) -> None:
    """The tokenizer is that of the checkpoint, and the folder is made once."""
    folder = make_family(tmp_path / "model", "llama", head_dim=16, tie_word_embeddings=True)
    file = write(folder, "llama", gguf.GGMLQuantizationType.Q8_0)
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


MERGES = ["Ċ Ċ", "Ġ Ġ", "ĠĠ ĠĠ", "1 1", "Ġ 1", "a b", "Ġ ab", "e Ì", "eÌ ģ", "Ã ©"]
PARTS = {
    "\n\n1.": ["ĊĊ", "1", "."],
    "    1": ["ĠĠĠĠ", "1"],
    "ab  111 ab": ["ab", "ĠĠ", "1", "1", "1", "Ġab"],
}


TOKENS = [*sorted(bytes_to_unicode().values()), *(m.replace(" ", "") for m in MERGES)]
# A tokenizer of bytes and a few merges, so that each split can be seen.
SMALL = {
    "vocab": {token: at for at, token in enumerate(TOKENS)},
    "merges": [merge.split() for merge in MERGES],
}


@pytest.mark.slow
def test_texts_are_split_as_the_file_says(tmp_path: Path) -> None:
    folder = make_family(tmp_path / "model", "llama", head_dim=16)
    described = json.loads((folder / "tokenizer.json").read_text())
    described["model"] |= SMALL
    described["added_tokens"] = []
    (folder / "tokenizer.json").write_text(json.dumps(described))
    file = write(folder, "llama", gguf.GGMLQuantizationType.F32, pre="smollm")
    made = Tokenizer.from_file(str(gguf_file.gguf_folder(file) / "tokenizer.json"))
    for text, parts in PARTS.items():
        assert made.encode(text).tokens == parts


@pytest.mark.parametrize(
    ("pre", "wanted"),
    [
        ("smollm", PARTS),
        ("gpt-2", {"\n\n1.": ["Ċ", "Ċ", "1", "."], " 111": ["Ġ", "11", "1"]}),
        ("qwen2", {"e\u0301": ["Ã©"], "\n\n1": ["ĊĊ", "1"]}),
    ],
)
def test_how_texts_are_split(pre: str, wanted: dict[str, list[str]]) -> None:
    described: dict[str, Any] = {"version": "1.0", "model": {"type": "BPE", **SMALL}}
    SPLITS[pre].apply(described)
    made = Tokenizer.from_str(json.dumps(described))
    for text, parts in wanted.items():
        assert made.encode(text).tokens == parts


@pytest.mark.parametrize("name", sorted(SPLITS))
def test_every_way_to_split_loses_no_character(name: str) -> None:
    model = {"type": "BPE", "vocab": {c: i for i, c in enumerate(bytes_to_unicode().values())}}
    described: dict[str, Any] = {"version": "1.0", "model": {**model, "merges": []}}
    SPLITS[name].apply(described)
    tokenizer = Tokenizer.from_str(json.dumps(described))
    tokenizer.decoder = ByteLevel()
    for text in ODD_TEXTS:
        assert tokenizer.decode(tokenizer.encode(text).ids) == text
    known = GGUF_PRE_TOKENIZER_SPLITS.get(name)
    if known is not None:  # transformers' own table
        [split, _] = described["pre_tokenizer"]["pretokenizers"]
        theirs, ours = (
            Split(Regex(known), "isolated"),
            Split(Regex(split["pattern"]["Regex"]), "isolated"),
        )
        for text in ODD_TEXTS:
            assert ours.pre_tokenize_str(text) == theirs.pre_tokenize_str(text)


def test_factors_of_frequencies_are_kept(tmp_path: Path, no_tokenizer: None) -> None:
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
    factors = (plain / turn.frequencies).numpy()
    file = write(folder, "llama", gguf.GGMLQuantizationType.F32, rope_freqs=factors)
    tokens = list(range(5, 45))
    assert_close(logits(Rig(file), tokens), expected_logits(folder, tokens))


def test_what_cannot_be_served_is_refused(tmp_path: Path) -> None:
    folder = make_family(tmp_path / "model", "llama", head_dim=16)
    kind = gguf.GGMLQuantizationType.F32
    for more, words in (
        ({"expert_count": 4}, "architecture 'llama' is not supported"),
        ({"rope_dimension_count": 8}, "differ in size"),
        ({"pre": "bailingmoe"}, r"model\.gguf has 'bailingmoe' as the way .*smollm.*safetensors"),
        ({"pre": "default"}, "has 'default' as the way its texts are split"),
        ({"pre": None}, "says nothing of the way its texts are split"),
        ({"rope_scaling_type": gguf.RopeScalingType.LONGROPE}, "rope scaling 'longrope'"),
    ):
        with pytest.raises(LoadError, match=words):
            Rig(write(folder, "llama", kind, **more))
    file = write(folder, "llama", kind)
    file.write_bytes(file.read_bytes()[:5000])
    with pytest.raises(LoadError, match=r"model\.gguf cannot be read"):
        Rig(file)
