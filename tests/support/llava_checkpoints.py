"""Small random LLaVA checkpoints for tests, with their preprocessing."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers import (
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    Qwen2Config,
    SiglipVisionConfig,
)

from support.checkpoints import small_tokenizer

SIDE, PATCH = 28, 7
PATCHES = (SIDE // PATCH) ** 2
IMAGE_TOKEN = 300  # stands for an image in what transformers reads

_VISION = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "image_size": SIDE,
    "patch_size": PATCH,
    "initializer_range": 0.2,
}
_CLIP_STEPS = {
    "image_processor_type": "CLIPImageProcessor",
    "size": {"shortest_edge": SIDE},
    "crop_size": {"height": SIDE, "width": SIDE},
    "resample": 3,
}
_SIGLIP_STEPS = {
    "image_processor_type": "SiglipImageProcessor",
    "size": {"height": SIDE, "width": SIDE},
    "resample": 3,
}

# Name -> vision, text, options, preprocessor_config.json, embeds an image.
KINDS: dict[str, tuple[Any, Any, dict[str, Any], dict[str, Any], int]] = {
    "clip-llama": (CLIPVisionConfig, LlamaConfig, {}, _CLIP_STEPS, PATCHES),
    "clip-full": (
        CLIPVisionConfig,
        LlamaConfig,
        {"vision_feature_select_strategy": "full", "vision_feature_layer": -1},
        {**_CLIP_STEPS, "image_processor_type": "LlavaImageProcessor", "do_pad": True},
        PATCHES + 1,
    ),
    "siglip-qwen2": (
        SiglipVisionConfig,
        Qwen2Config,
        {"vision_feature_select_strategy": "full", "multimodal_projector_bias": False},
        _SIGLIP_STEPS,
        PATCHES,
    ),
}


def make_llava(folder: Path, kind: str = "clip-llama", *, dtype: str = "float32") -> Path:
    """Writes a random LLaVA with tokenizer and preprocessing into a folder, and returns the folder.

    A folder that already holds a checkpoint is left as it is.
    """
    if (folder / "config.json").is_file():
        return folder
    vision, text, options, steps, _ = KINDS[kind]
    tokenizer = small_tokenizer()
    extra = {"vision_use_head": False} if vision is SiglipVisionConfig else {"projection_dim": 16}
    config = LlavaConfig(
        vision_config=vision(**_VISION, **extra),
        text_config=text(
            vocab_size=len(tokenizer),
            hidden_size=64,
            intermediate_size=96,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=512,
            initializer_range=0.2,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
        ),
        image_token_index=IMAGE_TOKEN,
        **options,
    )
    torch.manual_seed(2)
    model = LlavaForConditionalGeneration(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "multi_modal_projector" in name or "class_embedding" in name:
                parameter.normal_(0.0, 0.2)
            elif name.endswith("bias"):
                parameter.normal_(0.0, 0.1)
            elif "position_embedding" in name or "patch_embedding" in name:
                parameter.normal_(0.0, 0.3)
    model.to(getattr(torch, dtype)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(steps))
    return folder


def picture(width: int, height: int, seed: int = 0) -> Image.Image:
    """A colourful picture without sharp edges."""
    numbers = np.random.default_rng(seed)
    small = Image.fromarray(numbers.integers(0, 256, (5, 6, 3), np.uint8))
    return small.resize((width, height), Image.Resampling.BICUBIC)


def as_file(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    """An image as a file's content."""
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()
