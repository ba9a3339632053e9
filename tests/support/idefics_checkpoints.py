"""Small random Idefics 3 and SmolVLM checkpoints for tests, with tokenizer and preprocessing."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import torch
from transformers import (
    Idefics3Config,
    Idefics3ForConditionalGeneration,
    LlamaConfig,
    PreTrainedTokenizerFast,
    SmolVLMConfig,
    SmolVLMForConditionalGeneration,
)

from support.checkpoints import small_tokenizer

TILE, PATCH, SCALE, LONGEST = 28, 7, 2, 84
TILE_EMBEDS = (TILE // PATCH // SCALE) ** 2

STEPS = {
    "do_image_splitting": True,
    "image_processor_type": "Idefics3ImageProcessor",
    "max_image_size": {"longest_edge": TILE},
    "size": {"longest_edge": LONGEST},
    "resample": 1,
}


@functools.cache
def image_tokenizer() -> PreTrainedTokenizerFast:
    """The small tokenizer, with the tokens that surround tiles; those of the fourth row are plain
    text.
    """
    tokenizer = small_tokenizer()
    tiles = [f"<row_{row}_col_{column}>" for row in range(1, 4) for column in range(1, 4)]
    names = ["<fake_token_around_image>", "<image>", "<global-img>", "<end_of_utterance>", *tiles]
    tokenizer.add_special_tokens({"additional_special_tokens": names})
    return tokenizer


def make_idefics(folder: Path, kind: str = "idefics3", *, splits: bool = True) -> Path:
    """Writes a random model with tokenizer and preprocessing into a folder, and returns the folder.

    Args:
        folder: where; one that already holds a checkpoint is left as it is.
        kind: "idefics3" or "smolvlm".
        splits: whether images are cut into tiles.
    """
    if (folder / "config.json").is_file():
        return folder
    tokenizer = image_tokenizer()
    config_class, model_class = {
        "idefics3": (Idefics3Config, Idefics3ForConditionalGeneration),
        "smolvlm": (SmolVLMConfig, SmolVLMForConditionalGeneration),
    }[kind]
    config = config_class(
        vision_config={
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "image_size": TILE,
            "patch_size": PATCH,
            "initializer_range": 0.2,
        },
        text_config=LlamaConfig(
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
        ).to_dict(),
        scale_factor=SCALE,
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
    )
    torch.manual_seed(3)
    model = model_class(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "connector" in name or name.endswith("bias"):
                parameter.normal_(0.0, 0.1)
            elif "position_embedding" in name or "patch_embedding" in name:
                parameter.normal_(0.0, 0.3)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    steps = {**STEPS, "do_image_splitting": splits}
    (folder / "preprocessor_config.json").write_text(json.dumps(steps))
    return folder
