"""Small random Qwen 3 VL checkpoints for tests, and what transformers makes of text and images."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from support.checkpoints import small_tokenizer

IMAGE_TOKEN = 300  # stands for an image in what transformers reads
STEPS = {
    "image_processor_type": "Qwen2VLImageProcessorFast",
    "patch_size": 4,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "size": {"shortest_edge": 256, "longest_edge": 2048},
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}
VISION: dict[str, Any] = {
    "depth": 3,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_heads": 2,
    "patch_size": 4,
    "num_position_embeddings": 25,
    "out_hidden_size": 64,
    "deepstack_visual_indexes": [0, 2],
    "initializer_range": 0.2,
}
TEXT: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 512,
    "initializer_range": 0.1,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 50_000.0,
        "mrope_section": [6, 5, 5],
        "mrope_interleaved": True,
    },
}
# Name -> what is other in vision_config, text_config, preprocessor_config.json.
KINDS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "qwen3-vl": ({}, {}, {}),
    "shallow": (
        {"deepstack_visual_indexes": [], "num_heads": 4, "hidden_act": "gelu"},
        {
            "num_key_value_heads": 4,
            "rope_parameters": TEXT["rope_parameters"] | {"mrope_section": [4, 6, 6]},
        },
        {"min_pixels": 1024, "max_pixels": 1024, "image_mean": None, "image_std": None},
    ),
    "large-patches": (
        {"patch_size": 7, "spatial_merge_size": 3, "temporal_patch_size": 1, "depth": 2},
        {
            "num_hidden_layers": 4,
            "head_dim": 64,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10_000.0,
                "factor": 2.0,
                "original_max_position_embeddings": 256,
                "mrope_section": [12, 10, 10],
            },
        },
        {
            "patch_size": 7,
            "merge_size": 3,
            "temporal_patch_size": 1,
            "size": {"shortest_edge": 441, "longest_edge": 8000},
        },
    ),
}
KINDS["large-patches"][0]["deepstack_visual_indexes"] = [1]


def make_qwen_vl(folder: Path, kind: str = "qwen3-vl", *, dtype: str = "float32") -> Path:
    """Writes a random model with tokenizer and preprocessing into a folder, and returns the folder.

    A folder that already holds a checkpoint is left as it is.
    """
    if (folder / "config.json").is_file():
        return folder
    vision, text, steps = KINDS[kind]
    tokenizer = small_tokenizer()
    ends = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    config = Qwen3VLConfig(
        vision_config=VISION | vision,
        text_config=TEXT | {"vocab_size": len(tokenizer)} | ends | text,
        image_token_id=IMAGE_TOKEN,
    )
    torch.manual_seed(4)
    model = Qwen3VLForConditionalGeneration(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(0.0, 0.1)
            elif "merger" in name and "norm" not in name:
                parameter.normal_(0.0, 0.15)
            elif "pos_embed" in name or "patch_embed" in name:
                parameter.normal_(0.0, 0.3)
    model.to(getattr(torch, dtype)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    found = {key: value for key, value in (STEPS | steps).items() if value is not None}
    (folder / "preprocessor_config.json").write_text(json.dumps(found))
    return folder


@functools.cache
def qwen_vl(folder: Path, dtype: torch.dtype = torch.float32) -> Qwen3VLForConditionalGeneration:
    """The checkpoint as transformers runs it."""
    return Qwen3VLForConditionalGeneration.from_pretrained(folder, dtype=dtype).eval()


def qwen_vl_inputs(
    folder: Path, parts: Sequence[list[int] | Image.Image], dtype: torch.dtype = torch.float32
) -> dict[str, torch.Tensor]:
    """What transformers takes for text and images in turn."""
    steps = json.loads((folder / "preprocessor_config.json").read_text())
    steps.pop("image_processor_type")
    processor = Qwen2VLImageProcessorPil(**steps)
    tokens: list[int] = []
    seen = [processor(images=p, return_tensors="pt") for p in parts if not isinstance(p, list)]
    counts = [int(found["image_grid_thw"].prod()) // steps["merge_size"] ** 2 for found in seen]
    left = iter(counts)
    for part in parts:
        tokens += part if isinstance(part, list) else [IMAGE_TOKEN] * next(left)
    ids = torch.tensor([tokens])
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if seen:
        inputs["mm_token_type_ids"] = (ids == IMAGE_TOKEN).int()
        inputs["pixel_values"] = torch.cat([found["pixel_values"] for found in seen]).to(dtype)
        inputs["image_grid_thw"] = torch.cat([found["image_grid_thw"] for found in seen])
    return inputs
