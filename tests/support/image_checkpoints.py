"""Small random checkpoints of all families that read images, with tokenizers and preprocessing:
LLaVA, Idefics 3 and SmolVLM, Qwen 3 VL; and what transformers makes of text and images.
"""

from __future__ import annotations

import functools
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers import (
    CLIPVisionConfig,
    Idefics3Config,
    Idefics3ForConditionalGeneration,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    SiglipVisionConfig,
    SmolVLMConfig,
    SmolVLMForConditionalGeneration,
)
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from support.checkpoints import small_tokenizer

SIDE, PATCH = 28, 7  # of an image, or of a tile
PATCHES = (SIDE // PATCH) ** 2

_VISION = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 2,
    "image_size": SIDE,
    "patch_size": PATCH,
    "initializer_range": 0.2,
}
_TEXT = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
}
# Of parameters, by a part of their names.
_PLACES = {"bias": 0.1, "position_embedding": 0.3, "patch_embedding": 0.3}


def make_image_checkpoint(folder: Path, kind: str) -> Path:
    """Writes a model of `IMAGE_KINDS` into a folder, and returns the folder, as all do that make
    one here. A folder that already holds a checkpoint is left as it is.
    """
    if kind in LLAVA_KINDS:
        return make_llava(folder, kind)
    return make_idefics(folder) if kind == "idefics3" else make_qwen_vl(folder)


@functools.cache
def image_tokenizer() -> PreTrainedTokenizerFast:
    """The small tokenizer, with the tokens that stand for images and around tiles."""
    tokenizer = small_tokenizer()
    tiles = [f"<row_{row}_col_{column}>" for row in range(1, 4) for column in range(1, 4)]
    names = ["<fake_token_around_image>", "<image>", "<global-img>", "<end_of_utterance>", *tiles]
    pads = ["<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>"]
    tokenizer.add_special_tokens({"additional_special_tokens": [*names, *pads]})
    return tokenizer


# What stands for an image in what transformers reads; Qwen 3 VL has another.
IMAGE_TOKEN: int = image_tokenizer().convert_tokens_to_ids("<image>")
IMAGE_PAD: int = image_tokenizer().convert_tokens_to_ids("<|image_pad|>")


def _ends(tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    """Facts of a text's configuration that are the tokenizer's."""
    return {
        "vocab_size": len(tokenizer),
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
    }


def _written(
    folder: Path,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    steps: dict[str, Any],
    deviations: Mapping[str, float],
    dtype: str = "float32",
    **processor: Any,
) -> Path:
    """Saves a model, whose parameters deviate by what stands beside a part of their names, and
    options of its processor.
    """
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if much := next((much for part, much in deviations.items() if part in name), 0.0):
                parameter.normal_(0.0, much)
    model.to(getattr(torch, dtype)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(steps))
    (folder / "processor_config.json").write_text(json.dumps(processor))
    return folder


# LLaVA

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
LLAVA_KINDS: dict[str, tuple[Any, Any, dict[str, Any], dict[str, Any], int]] = {
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
IMAGE_KINDS = (*LLAVA_KINDS, "idefics3", "qwen3-vl")


def make_llava(folder: Path, kind: str = "clip-llama", *, dtype: str = "float32") -> Path:
    """A LLaVA of a kind."""
    if (folder / "config.json").is_file():
        return folder
    vision, text, options, steps, embeds = LLAVA_KINDS[kind]
    tokenizer = image_tokenizer()
    extra = {"vision_use_head": False} if vision is SiglipVisionConfig else {"projection_dim": 16}
    config = LlavaConfig(
        vision_config=vision(**_VISION, num_hidden_layers=3, **extra),
        text_config=text(**_TEXT, **_ends(tokenizer)),
        image_token_index=IMAGE_TOKEN,
        **options,
    )
    torch.manual_seed(2)
    model = LlavaForConditionalGeneration(config)
    deviations = {"multi_modal_projector": 0.2, "class_embedding": 0.2} | _PLACES
    strategy = options.get("vision_feature_select_strategy", "default")
    more = {"patch_size": PATCH, "vision_feature_select_strategy": strategy}
    more["num_additional_image_tokens"] = embeds - PATCHES + (strategy == "default")
    return _written(folder, model, tokenizer, steps, deviations, dtype, **more)


# Idefics 3

SCALE, LONGEST = 2, 84
TILE_EMBEDS = (SIDE // PATCH // SCALE) ** 2

IDEFICS_STEPS = {
    "do_image_splitting": True,
    "image_processor_type": "Idefics3ImageProcessor",
    "max_image_size": {"longest_edge": SIDE},
    "size": {"longest_edge": LONGEST},
    "resample": 1,
}


def make_idefics(folder: Path, kind: str = "idefics3", *, splits: bool = True) -> Path:
    """An Idefics 3, or a SmolVLM as kind "smolvlm", for which images are cut into tiles or not."""
    if (folder / "config.json").is_file():
        return folder
    tokenizer = image_tokenizer()
    config_class, model_class = {
        "idefics3": (Idefics3Config, Idefics3ForConditionalGeneration),
        "smolvlm": (SmolVLMConfig, SmolVLMForConditionalGeneration),
    }[kind]
    config = config_class(
        vision_config={**_VISION, "num_hidden_layers": 2},
        text_config=LlamaConfig(**_TEXT, **_ends(tokenizer)).to_dict(),
        scale_factor=SCALE,
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
    )
    torch.manual_seed(3)
    steps = {**IDEFICS_STEPS, "do_image_splitting": splits}
    deviations = {"connector": 0.1} | _PLACES
    count = TILE_EMBEDS
    return _written(folder, model_class(config), tokenizer, steps, deviations, image_seq_len=count)


# Qwen 3 VL

QWEN_STEPS = {
    "image_processor_type": "Qwen2VLImageProcessorFast",
    "patch_size": 4,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "size": {"shortest_edge": 256, "longest_edge": 2048},
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}
QWEN_VISION: dict[str, Any] = {
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
_QWEN_TEXT: dict[str, Any] = {
    **_TEXT,
    "num_hidden_layers": 3,
    "head_dim": 32,
    "initializer_range": 0.1,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 50_000.0,
        "mrope_section": [6, 5, 5],
        "mrope_interleaved": True,
    },
}
# Name -> what is other in vision_config, text_config, preprocessor_config.json.
QWEN_KINDS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "qwen3-vl": ({}, {}, {}),
    "shallow": (
        {"deepstack_visual_indexes": [], "num_heads": 4, "hidden_act": "gelu"},
        {
            "num_key_value_heads": 4,
            "rope_parameters": _QWEN_TEXT["rope_parameters"] | {"mrope_section": [4, 6, 6]},
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
QWEN_KINDS["large-patches"][0]["deepstack_visual_indexes"] = [1]


def make_qwen_vl(folder: Path, kind: str = "qwen3-vl", *, dtype: str = "float32") -> Path:
    """A Qwen 3 VL of a kind."""
    if (folder / "config.json").is_file():
        return folder
    vision, text, steps = QWEN_KINDS[kind]
    tokenizer = image_tokenizer()
    config = Qwen3VLConfig(
        vision_config=QWEN_VISION | vision,
        text_config=_QWEN_TEXT | _ends(tokenizer) | text,
        image_token_id=IMAGE_PAD,
    )
    torch.manual_seed(4)
    model = Qwen3VLForConditionalGeneration(config)
    found = {key: value for key, value in (QWEN_STEPS | steps).items() if value is not None}
    deviations = {"bias": 0.1, "norm": 0.0, "merger": 0.15, "pos_embed": 0.3, "patch_embed": 0.3}
    return _written(folder, model, tokenizer, found, deviations, dtype)


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
        tokens += part if isinstance(part, list) else [IMAGE_PAD] * next(left)
    ids = torch.tensor([tokens])
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if seen:
        inputs["mm_token_type_ids"] = (ids == IMAGE_PAD).int()
        inputs["pixel_values"] = torch.cat([found["pixel_values"] for found in seen]).to(dtype)
        inputs["image_grid_thw"] = torch.cat([found["image_grid_thw"] for found in seen])
    return inputs


# Images


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
