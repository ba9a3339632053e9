"""The vision tower of Qwen 3 VL, which llama.cpp keeps in a file of its own beside the model's."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from pie_inference.checkpoints.gguf_families import Facts
from pie_inference.checkpoints.gguf_reader import GgufFile, GgufTensor
from pie_inference.checkpoints.sources import Made, Source
from pie_inference.errors import LoadError

ARCHITECTURE = "qwen3vl"  # of the language model
NAMES = "*mmproj*.gguf"
KIND = "qwen3vl_merger"
FRAMES = 2  # of a video, which a patch takes together; an image is given as so many equal ones
PIXELS = 1 << 16, 1 << 24  # of an image, at least and at most, where a file does not say
TOKENS = {
    "image_token_id": "<|image_pad|>",
    "video_token_id": "<|video_pad|>",
    "vision_start_token_id": "<|vision_start|>",
    "vision_end_token_id": "<|vision_end|>",
}
_LAYER = re.compile(r"v\.(blk|deepstack)\.([0-9]{1,5})\.(\w+)\.(weight|bias)")
_MODULES = {
    "ln1": "norm1",
    "ln2": "norm2",
    "attn_qkv": "attn.qkv",
    "attn_out": "attn.proj",
    "ffn_up": "mlp.linear_fc1",
    "ffn_down": "mlp.linear_fc2",
    "fc1": "linear_fc1",
    "fc2": "linear_fc2",
    "v.position_embd": "pos_embed",
    "v.patch_embd": "patch_embed.proj",
    "v.post_ln": "merger.norm",
    "mm.0": "merger.linear_fc1",
    "mm.2": "merger.linear_fc2",
}


def projector_of(text: Facts, files: Iterable[Path]) -> Facts | None:
    """Of projector files the one that fits a language model. Raises `LoadError` if several do, or
    one is damaged.
    """
    if text.architecture != ARCHITECTURE:
        return None
    width, found = text.count("embedding_length"), []
    for file in files:
        facts = Facts(GgufFile(file))
        kind = facts.text("projector_type", "")
        if kind == KIND and facts.count("vision.projection_dim") == width:
            found.append(facts)
    if len(found) > 1:
        names = ", ".join(Path(facts.where).name for facts in found)
        raise LoadError(f"several projector files fit {text.where}: {names}; leave one beside it")
    return found[0] if found else None


def with_images(
    config: Mapping[str, Any], text: Facts, projector: Facts, tokens: list[str]
) -> dict[str, Any]:
    """The config.json of both files, of that of the language model. Raises `LoadError` for what is
    damaged.
    """
    if lacking := set(TOKENS.values()).difference(tokens):
        raise LoadError(f"{text.where} has no tokens of images: {', '.join(sorted(lacking))}")
    sections = text.items("rope.dimension_sections") or []
    rope = {"mrope_section": sections[:3], "mrope_interleaved": True}
    inner = {**config, "rope_parameters": {**config["rope_parameters"], **rope}}
    del inner["architectures"]
    return {
        **{name: config[name] for name in ("dtype", "tie_word_embeddings")},
        **{name: tokens.index(token) for name, token in TOKENS.items()},
        "architectures": ["Qwen3VLForConditionalGeneration"],
        "model_type": "qwen3_vl",
        "text_config": inner,
        "vision_config": _tower(projector),
    }


def preprocessing(projector: Facts) -> dict[str, Any]:
    """The content of preprocessor_config.json."""
    least, most = PIXELS
    return {
        "image_processor_type": "Qwen2VLImageProcessorFast",
        "patch_size": _size(projector, "v.patch_embd.weight", -1),
        "temporal_patch_size": FRAMES,
        "merge_size": projector.count("vision.spatial_merge_size"),
        "size": {
            "shortest_edge": projector.count("vision.image_min_pixels", least),
            "longest_edge": projector.count("vision.image_max_pixels", most),
        },
        "image_mean": projector.items("vision.image_mean"),
        "image_std": projector.items("vision.image_std"),
    }


def projector_tensors(file: Path, dtype: torch.dtype) -> dict[str, Source]:
    """The tensors of a projector file, by the names that a checkpoint gives them, in that dtype."""
    opened = GgufFile(file)
    deep = _deep(Facts(opened))
    found: dict[str, Source] = {}
    for name, place in opened.tensors.items():
        layer = _LAYER.fullmatch(name)
        if layer is None:
            module, _, part = name.rpartition(".")
            full = f"{_MODULES.get(module, module)}.{part}"
        else:
            kind, number, module, part = layer.groups()
            full = f"{_MODULES.get(module, module)}.{part}"
            if kind == "blk":
                full = f"blocks.{number}.{full}"
            elif int(number) in deep:
                full = f"deepstack_merger_list.{deep.index(int(number))}.{full}"
        found[f"model.visual.{full}"] = GgufTensor(opened, place, dtype)
    return _with_frames(found)


def _with_frames(found: dict[str, Source]) -> dict[str, Source]:
    """With the weights of patches as one tensor, which the file has apart for each frame."""
    name = "model.visual.patch_embed.proj.weight"
    frames = [found.pop(each, None) for each in (name, "model.visual.v.patch_embd.weight.1")]
    if (first := frames[0]) is not None and frames[1] is not None:
        shape = (*first.shape[:2], FRAMES, *first.shape[2:])
        found[name] = Made(shape, lambda *each: torch.stack(each, 2), *frames)
    return found


def _tower(facts: Facts) -> dict[str, Any]:
    depth = facts.count("vision.block_count")
    if depth > len(facts.file.tensors):
        raise LoadError(f"{facts.where}: 'vision.block_count' is not the number of its layers")
    return {
        "depth": depth,
        "hidden_size": _size(facts, "v.position_embd.weight", 1),
        "intermediate_size": _size(facts, "v.blk.0.ffn_up.weight", 0),
        "num_heads": facts.count("vision.attention.head_count"),
        "patch_size": _size(facts, "v.patch_embd.weight", -1),
        "spatial_merge_size": facts.count("vision.spatial_merge_size"),
        "temporal_patch_size": FRAMES,
        "out_hidden_size": _size(facts, "mm.2.weight", 0),
        "num_position_embeddings": _size(facts, "v.position_embd.weight", 0),
        "deepstack_visual_indexes": _deep(facts),
    }


def _deep(facts: Facts) -> list[int]:
    """Numbers of the layers whose results later layers of the language model read, too."""
    told = facts.items("vision.is_deepstack_layers") or []
    return [number for number, deep in enumerate(told) if deep]


def _size(facts: Facts, tensor: str, dimension: int) -> int:
    shape = facts.file.tensors[tensor].shape if tensor in facts.file.tensors else ()
    if len(shape) <= abs(dimension):
        raise LoadError(f"{facts.where} lacks the tensor {tensor}, or it has too few dimensions")
    return shape[dimension]
