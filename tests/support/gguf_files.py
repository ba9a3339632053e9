"""GGUF files of small checkpoints, as llama.cpp's converter writes them, by its own library."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors.torch import load_file

Kind = gguf.GGMLQuantizationType
_NEIGHBOURS = ("llama", "granite", "granitemoe", "smollm3")
_ARCHITECTURES = {name: number for number, name in gguf.MODEL_ARCH_NAMES.items()}


def write_gguf(folder: Path, architecture: str, kind: Any = Kind.F32, **more: Any) -> Path:
    """Writes a checkpoint as a GGUF beside its folder, its matrices quantized.

    Args:
        folder: the checkpoint.
        architecture: in llama.cpp.
        kind: of the matrices.
        more: `X=value` calls the writer's `add_X(value)`, or of a tuple `add_X(*value)`; besides
            `pre`, how texts are split, and `tensors`, further ones by name.
    """
    config = json.loads((folder / "config.json").read_text())
    file = folder.parent / f"{folder.name}.gguf"
    writer = gguf.GGUFWriter(file, architecture)
    writer.add_name("test")
    _write_sizes(writer, config)
    pre = more.pop("pre", "qwen2" if architecture.startswith("qwen") else "llama-bpe")
    tensors = more.pop("tensors", {})
    for name, value in more.items():
        getattr(writer, f"add_{name}")(*(value if isinstance(value, tuple) else (value,)))
    _write_tokenizer(writer, folder, config, pre)
    names = gguf.get_tensor_name_map(_ARCHITECTURES[architecture], 8)
    for name, tensor in _converted(folder, architecture, config):
        stored = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert stored is not None, name
        tensors[stored] = tensor.float().numpy()
    for name, data in tensors.items():
        plain = data.ndim == 1 or kind == Kind.F32
        found = data if plain else gguf.quantize(data, kind)
        writer.add_tensor(name, np.ascontiguousarray(found), raw_dtype=None if plain else kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def _write_sizes(writer: Any, config: dict[str, Any]) -> None:
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    if "rms_norm_eps" in config:
        writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    else:
        writer.add_layer_norm_eps(config.get("layer_norm_eps") or config["norm_epsilon"])
    rope = config["rope_parameters"]
    rope = rope.get("full_attention", rope)
    writer.add_rope_freq_base(rope["rope_theta"])
    if (turning := rope.get("partial_rotary_factor")) is not None:
        writer.add_rope_dimension_count(int(turning * head_dim))
    if rope["rope_type"] in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        writer.add_rope_scaling_factor(rope["factor"])
    if "original_max_position_embeddings" in rope:
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])


def _write_tokenizer(writer: Any, folder: Path, config: dict[str, Any], pre: str | None) -> None:
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


def _converted(
    folder: Path, architecture: str, config: dict[str, Any]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors as the file has them, by names that its library's table knows."""
    experts: dict[str, list[torch.Tensor]] = {}
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    for name, tensor in load_file(folder / "model.safetensors").items():
        module = name.split(".")[-2]
        if head := re.fullmatch(r"(.*\.[qk]_layernorm)\.norms\.\d+(\.weight)", name):
            experts.setdefault(head[1] + head[2], []).append(tensor)
        elif architecture.startswith("gemma") and name.endswith("norm.weight"):
            yield name, tensor + 1
        elif architecture in _NEIGHBOURS and module in heads:
            halves = tensor.reshape(heads[module], 2, -1, *tensor.shape[1:])
            yield name, halves.transpose(1, 2).reshape(tensor.shape)
        elif one := re.fullmatch(r"(.*\.experts\.)\d+\.(.*)", name):
            experts.setdefault(one[1] + one[2], []).append(tensor)
        elif name.endswith("input_linear.weight"):
            for which, part in zip(("w1", "w3"), tensor.chunk(2, 1), strict=True):
                whole = name.replace("input_linear", f"experts.{which}")
                experts[whole] = list(part)
        elif ".experts." in name:  # gpt-oss
            whole, bias, _ = name.partition("_bias")
            part = tensor if bias else tensor.transpose(1, 2)
            suffix = ".bias" if bias else ".weight"
            halved = whole.endswith("gate_up_proj")
            for first, which in enumerate(("gate", "up") if halved else ("down",)):
                found = whole.replace("gate_up", which) + suffix
                yield found, part[:, first::2] if halved else part
        elif name.endswith("shared_expert_gate.weight"):
            yield name, tensor[0]
        elif name.endswith("sinks"):
            yield f"{name}.weight", tensor
        else:
            yield name.replace("correction_bias", "correction.bias"), tensor
    for name, tensors in experts.items():
        if "block_sparse_moe" in name:  # Mixtral's have other names in the table
            name = name.removeprefix("model.").replace("block_sparse_moe", "feed_forward")
        yield name, torch.stack(tensors)
