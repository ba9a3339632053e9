"""Small processors of images, beside the small random modules of
`transformers_classes.py`."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

SIDE, PATCH = 28, 7  # pixels of an image or tile, and of a patch
# By the names in configurations of towers, and of what joins them with language models.
NAMES = {
    SIDE: "image_size img_size force_image_size",
    3: "depth num_hidden_layers num_layers encoder_layers",
    4: "num_heads num_attention_heads tokens_per_image",
    64: """embed_dim out_hidden_size output_hidden_size projection_dim hidden_size
    projector_hidden_size vision_output_dim projector_input_dim projector_output_dim""",
    2: "spatial_merge_size merge_size temporal_patch_size pooling_kernel_size",
    16: "position_embedding_size head_dim",
}
SIZES: dict[str, Any] = {name: size for size, names in NAMES.items() for name in names.split()} | {
    "patch_size": PATCH,
    "num_position_embeddings": 25,
    "fullatt_block_indexes": [1],
    "deepstack_visual_indexes": [0, 2],
    "num_global_layers": 1,
    "intermediate_size": 96,
    "initializer_range": 0.15,
}
NAMED = {
    "image_token": "<image>",
    "video_token": "<video>",
    "audio_token": "<audio>",
    "boi_token": "<boi>",
    "eoi_token": "<eoi>",
    "boa_token": "<boa>",
    "eoa_token": "<eoa>",
    "start_image_token": "<img>",
    "end_image_token": "</img>",
    "context_image_token": "<image>",
    "image_start_token": "<img>",
    "image_end_token": "</img>",
}
OTHERS = (
    *("<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>", "<|image|>"),
    *("[IMG]", "[IMG_BREAK]", "[IMG_END]", "<fake_token_around_image>", "<global-img>"),
    *(f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)),
    *("<|START_OF_IMG|>", "<|END_OF_IMG|>", "<|IMG_PATCH|>", "<|IMG_LINE_BREAK|>"),
    *("TILE_GLOBAL", *(f"TILE_{i}" for i in range(1, 13)), "<|begin_of_image|>"),
    *("<|end_of_image|>", "<end_of_utterance>"),
)


def tokenizer() -> Any:
    """Of 160 tokens: some words, and those that processors of images know by name."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = ["<pad>", "<s>", "</s>", "<unk>"]
    names = [*special, *dict.fromkeys([*NAMED.values(), *OTHERS])]
    words = [f"w{i}" for i in range(160 - len(names))]
    plain = [*special, *words]
    vocabulary = {word: i for i, word in enumerate(plain)}
    plain_tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    plain_tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made = PreTrainedTokenizerFast(
        tokenizer_object=plain_tokenizer,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        extra_special_tokens=NAMED,
    )
    made.add_special_tokens({"additional_special_tokens": [n for n in names if n not in plain]})
    return made


def save_processor(folder: Path, model_type: str, per_image: int) -> Any:
    """Writes a small processor of a model, for whose tower a tile is so many tokens; returns it."""
    import transformers
    from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING_NAMES
    from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES

    kind = getattr(transformers, PROCESSOR_MAPPING_NAMES[model_type])
    module: Any = inspect.getmodule(kind)
    if getattr(module, "num2words", True) is None:
        module.num2words = str
    names = IMAGE_PROCESSOR_MAPPING_NAMES[model_type]
    if "pil" not in names:
        raise ValueError(f"its processor of images is torchvision's alone: {names}")
    images = getattr(transformers, names["pil"])
    words = tokenizer()
    given = {"image_processor": images(**_steps(images)), "tokenizer": words}
    parts = {name: given.get(name) for name in kind.get_attributes()}
    taken = inspect.signature(kind.__init__).parameters
    counts = dict.fromkeys(COUNTS, per_image)
    options = {name: value for name, value in (OPTIONS | counts).items() if name in taken}
    words.save_pretrained(folder)
    given["image_processor"].save_pretrained(folder)
    (folder / "processor_config.json").write_text(json.dumps(options))
    bare = type(kind.__name__, (kind,), {"check_argument_for_proper_class": lambda *_: None})
    return bare(**parts, **options)


COUNTS = ("image_seq_length", "image_seq_len", "num_image_tokens", "num_query_tokens")
OPTIONS: dict[str, Any] = {
    "patch_size": PATCH,
    "img_size": SIDE,
    "spatial_merge_size": 1,
    "downsample_factor": 2,
    "vision_feature_select_strategy": "full",
    "num_additional_image_tokens": 0,
    "image_token": "<image>",
}
_STEPS: dict[str, Any] = {
    "patch_size": PATCH,
    "merge_size": 2,
    "temporal_patch_size": 2,
    "max_patches": 4,
    "tile_size": SIDE,
    "max_image_size": SIDE,
    "pooling_kernel_size": 2,
    "image_grid_pinpoints": [[SIDE, 2 * SIDE], [2 * SIDE, SIDE], [2 * SIDE, 2 * SIDE]],
    "crop_size": {"height": SIDE, "width": SIDE},
    "max_soft_tokens": 70,
}


def _steps(images: Any) -> dict[str, Any]:
    """Small sizes of a class's own kinds."""
    found = {name: value for name, value in _STEPS.items() if getattr(images, name, None)}
    for name in ("patch_size", "max_image_size"):
        if isinstance(getattr(images, name, None), dict):
            keys = getattr(images, name)
            found[name] = dict.fromkeys(keys, _STEPS[name])
    size = getattr(images, "size", None)
    if isinstance(size, dict):
        if size.keys() == {"shortest_edge", "longest_edge"}:  # pixels of the whole
            found["size"] = {"shortest_edge": SIDE * SIDE, "longest_edge": 16 * SIDE * SIDE}
        elif "longest_edge" in size:
            found["size"] = {"longest_edge": 3 * SIDE}
        else:
            found["size"] = dict.fromkeys(size, SIDE)
    return found


def tell_tokens(config: Any, processor: Any) -> None:
    """Gives a configuration the tokens' numbers."""
    words = processor.tokenizer
    image = next((t for t in processor.image_token_ids if t is not None), None)
    if image is None:
        image = words.convert_tokens_to_ids("<image>")
    told = {
        **dict.fromkeys(("image_token_id", "image_token_index"), image),
        **{name: words.convert_tokens_to_ids(word) for name, word in TOLD.items()},
    }
    for name, number in told.items():
        if isinstance(getattr(config, name, None), int):
            setattr(config, name, number)


TOLD = {
    "video_token_id": "<video>",
    "video_token_index": "<video>",
    "audio_token_id": "<audio>",
    "vision_start_token_id": "<|vision_start|>",
    "vision_end_token_id": "<|vision_end|>",
    "image_start_token_id": "<|begin_of_image|>",
    "image_end_token_id": "<|end_of_image|>",
    "boi_token_id": "<boi>",
    "eoi_token_id": "<eoi>",
    "boi_token_index": "<boi>",
    "eoi_token_index": "<eoi>",
}
