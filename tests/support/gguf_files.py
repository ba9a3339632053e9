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
    config |= config.get("text_config", {})
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
        stored = names.get_name(name, try_suffixes=(".weight", ".bias", ".scale"))
        assert stored is not None, name
        tensors[stored] = tensor.float().numpy()
    for name, data in tensors.items():
        plain = data.ndim == 1 or kind == Kind.F32 or "ssm_conv1d" in name
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
    writer.add_head_count(heads)
    if config["model_type"] == "gemma4_text":
        _write_gemma4(writer, config)
        return
    writer.add_feed_forward_length(config["intermediate_size"])
    if rank := config.get("kv_lora_rank"):
        _write_latents(writer, config, rank)
    else:
        writer.add_head_count_kv(config["num_key_value_heads"])
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    if values := config.get("linear_num_value_heads"):
        writer.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
        writer.add_ssm_state_size(config["linear_key_head_dim"])
        writer.add_ssm_group_count(config["linear_num_key_heads"])
        writer.add_ssm_time_step_rank(values)
        writer.add_ssm_inner_size(config["linear_value_head_dim"] * values)
    if "rms_norm_eps" in config:
        writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    else:
        writer.add_layer_norm_eps(config.get("layer_norm_eps") or config["norm_epsilon"])
    rope = config["rope_parameters"]
    rope = rope.get("full_attention", rope)
    writer.add_rope_freq_base(rope["rope_theta"])
    if sections := rope.get("mrope_section"):
        writer.add_rope_dimension_sections([*sections, 0])
    if (turning := rope.get("partial_rotary_factor")) is not None:
        writer.add_rope_dimension_count(int(turning * head_dim))
    if rope["rope_type"] in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        writer.add_rope_scaling_factor(rope["factor"])
    if "original_max_position_embeddings" in rope:
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])


def _write_gemma4(writer: Any, config: dict[str, Any]) -> None:
    """What differs among its layers."""
    slides = [kind == "sliding_attention" for kind in config["layer_types"]]
    own = config["per_layer_config"]
    full = own[str(slides.index(False))]
    heads = config["num_key_value_heads"]
    in_full = full.get("num_key_value_heads", heads)
    writer.add_head_count_kv([heads if each else in_full for each in slides])
    writer.add_sliding_window_pattern(slides)
    writer.add_sliding_window(config["sliding_window"])
    for add, dim in (("", full["head_dim"]), ("_swa", config["head_dim"])):
        for what in ("key_length", "value_length", "rope_dimension_count"):
            getattr(writer, f"add_{what}{add}")(dim)
    shared = config["num_kv_shared_layers"]
    writer.add_shared_kv_layers(shared)
    wide = [i >= len(slides) - shared and config["use_double_wide_mlp"] for i in range(len(slides))]
    writer.add_feed_forward_length([config["intermediate_size"] * (1 + each) for each in wide])
    writer.add_embedding_length_per_layer_input(config["hidden_size_per_layer_input"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    ropes = config["rope_parameters"]
    writer.add_rope_freq_base(ropes["full_attention"]["rope_theta"])
    writer.add_rope_freq_base_swa(ropes["sliding_attention"]["rope_theta"])
    pairs = full["head_dim"] // 2
    turning = int(ropes["full_attention"]["partial_rotary_factor"] * pairs)
    writer.add_tensor(
        "rope_freqs.weight", np.array([1.0] * turning + [1e30] * (pairs - turning), "f")
    )
    if config["final_logit_softcapping"]:
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    if config["enable_moe_block"]:
        writer.add_expert_count(config["num_experts"])
        writer.add_expert_used_count(config["top_k_experts"])
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])


def _write_latents(writer: Any, config: dict[str, Any], rank: int) -> None:
    turning, value = config["qk_rope_head_dim"], config["v_head_dim"]
    writer.add_head_count_kv(1)
    writer.add_key_length(rank + turning)
    writer.add_value_length(rank)
    writer.add_key_length_mla(config["qk_nope_head_dim"] + turning)
    writer.add_value_length_mla(value)
    writer.add_kv_lora_rank(rank)
    writer.add_rope_dimension_count(turning)
    if config["q_lora_rank"] is not None:
        writer.add_q_lora_rank(config["q_lora_rank"])
    writer.add_expert_group_count(config["n_group"] or 1)
    writer.add_expert_group_used_count(config["topk_group"] or 1)
    rope = config["rope_parameters"]
    if stretched := rope.get("mscale_all_dim"):
        writer.add_rope_scaling_yarn_log_mul(0.1 * stretched)


def _write_tokenizer(writer: Any, folder: Path, config: dict[str, Any], pre: str | None) -> None:
    described = json.loads((folder / "tokenizer.json").read_text())
    added = {token["content"]: token["id"] for token in described["added_tokens"]}
    vocab = described["model"]["vocab"] | added
    tokens = sorted(vocab.items(), key=lambda item: item[1])
    special = set(added.values())
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
    stored = load_file(folder / "model.safetensors")
    tensors = {
        name.replace("language_model.", ""): tensor
        for name, tensor in stored.items()
        if ".visual." not in name
    }
    if "linear_num_value_heads" in config:
        tensors = dict(_of_delta_nets(tensors, architecture, config))
    for name, tensor in tensors.items():
        module = name.split(".")[-2]
        if architecture == "gemma4":
            yield _of_gemma4(name), tensor
        elif head := re.fullmatch(r"(.*\.[qk]_layernorm)\.norms\.\d+(\.weight)", name):
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
        elif module == "kv_b_proj":
            by_head = tensor.view(config["num_attention_heads"], -1, tensor.shape[1])
            keys, values = by_head.tensor_split((config["qk_nope_head_dim"],), 1)
            yield name.replace("kv_b", "k_b"), keys.transpose(1, 2)
            yield name.replace("kv_b", "v_b"), values
        elif name.endswith("sinks"):
            yield f"{name}.weight", tensor
        else:
            yield name.replace("correction_bias", "correction.bias"), tensor
    for name, of_layer in experts.items():
        if "block_sparse_moe" in name:  # Mixtral's have other names in the table
            name = name.removeprefix("model.").replace("block_sparse_moe", "feed_forward")
        yield name, torch.stack(of_layer)


def _of_gemma4(name: str) -> str:
    name = name.replace("router.scale", "router.proj.scale")
    name = name.replace("router.per_expert_scale", "experts.down_proj.scale")
    return name if name.endswith((".weight", ".scale")) else f"{name}.weight"


def _of_delta_nets(
    tensors: dict[str, torch.Tensor], architecture: str, config: dict[str, Any]
) -> Iterator[tuple[str, torch.Tensor]]:
    """With the tensors of layers with a state as the file has them."""
    keys, values = config["linear_num_key_heads"], config["linear_num_value_heads"]
    key, inner = config["linear_key_head_dim"], config["linear_value_head_dim"] * values
    parts = [key, key, inner // keys, inner // keys]

    def tiled(tensor: torch.Tensor, dim: int = 0) -> torch.Tensor:
        """Value heads in turns of key heads; what stands before them, stays."""
        if architecture == "qwen3next":
            return tensor
        whole = tensor.transpose(0, dim)
        behind = inner if len(whole) > values else values
        first, rest = whole[:-behind], whole[-behind:]
        heads = rest.reshape(keys, values // keys, -1, *rest.shape[1:]).transpose(0, 1)
        return torch.cat([first, heads.reshape(rest.shape)]).transpose(0, dim)

    for name, tensor in tensors.items():
        if name.endswith("norm.weight") and "linear_attn" not in name:
            yield name, tensor + 1
        elif name.endswith("in_proj_qkvz.weight"):
            by_head = tensor.view(keys, sum(parts), -1)
            query, keyed, value, gate = (p.flatten(0, 1) for p in torch.split(by_head, parts, 1))
            yield name.replace("qkvz", "qkv"), torch.cat([query, keyed, value])
            yield name.replace("qkvz", "z"), gate
        elif name.endswith("A_log"):
            yield name, tiled(-tensor.exp())
        elif name.endswith("dt_bias"):
            yield name.replace("dt_bias", "dt_proj.bias"), tiled(tensor)
        elif name.endswith("conv1d.weight"):
            yield name, tiled(tensor[:, 0])
        elif name.endswith("linear_attn.out_proj.weight"):
            yield name, tiled(tensor, 1)
        elif "linear_attn.in_proj" in name and "_ba." not in name:
            yield name, tiled(tensor)
        else:
            yield name, tensor


def write_projector(folder: Path, kind: Any = Kind.F32, name: str = "mmproj-test") -> Path:
    """Writes the vision tower of a checkpoint of Qwen 3 VL as a projector file beside its folder,
    its matrices quantized.
    """
    vision = json.loads((folder / "config.json").read_text())["vision_config"]
    steps = json.loads((folder / "preprocessor_config.json").read_text())
    deep: list[int] = vision["deepstack_visual_indexes"]
    file = folder.parent / f"{name}.gguf"
    writer = gguf.GGUFWriter(file, "clip")
    writer.add_clip_has_vision_encoder(True)
    writer.add_clip_projector_type(gguf.VisionProjectorType.QWEN3VL)
    writer.add_vision_use_gelu(True)
    writer.add_vision_projection_dim(vision["out_hidden_size"])
    writer.add_vision_image_size(int(vision["num_position_embeddings"] ** 0.5) * 4)
    writer.add_vision_patch_size(vision["patch_size"])
    writer.add_vision_embedding_length(vision["hidden_size"])
    writer.add_vision_feed_forward_length(vision["intermediate_size"])
    writer.add_vision_block_count(vision["depth"])
    writer.add_vision_head_count(vision["num_heads"])
    writer.add_vision_spatial_merge_size(vision["spatial_merge_size"])
    writer.add_vision_attention_layernorm_eps(1e-6)
    writer.add_vision_is_deepstack_layers([i in deep for i in range(vision["depth"])])
    writer.add_vision_image_mean(steps["image_mean"])
    writer.add_vision_image_std(steps["image_std"])
    writer.add_vision_min_pixels(steps["size"]["shortest_edge"])
    writer.add_vision_max_pixels(steps["size"]["longest_edge"])
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, vision["depth"])
    for stored, tensor in _of_tower(folder, deep, names):
        data = tensor.float().numpy()
        plain = data.ndim != 2 or kind == Kind.F32 or "position" in stored
        found = data if plain else gguf.quantize(data, kind)
        writer.add_tensor(stored, np.ascontiguousarray(found), raw_dtype=None if plain else kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def _of_tower(folder: Path, deep: list[int], names: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors as a projector file has them, with their names there."""
    merged = {"norm": "v.post_ln", "linear_fc1": "mm.0", "linear_fc2": "mm.2"}
    for name, tensor in load_file(folder / "model.safetensors").items():
        if not name.startswith("model.visual."):
            continue
        module, _, part = name.removeprefix("model.").rpartition(".")
        if one := re.fullmatch(r"visual\.deepstack_merger_list\.(\d+)\.(?:linear_)?(\w+)", module):
            yield f"v.deepstack.{deep[int(one[1])]}.{one[2]}.{part}", tensor
        elif module.startswith("visual.merger."):
            yield f"{merged[module.removeprefix('visual.merger.')]}.{part}", tensor
        elif name == "model.visual.patch_embed.proj.weight":
            for frame, of in enumerate(tensor.unbind(2)):
                yield f"v.patch_embd.weight{f'.{frame}' if frame else ''}", of
        else:
            stored = names.get_name(module)
            assert stored is not None, module
            yield f"{stored}.{part}", tensor
