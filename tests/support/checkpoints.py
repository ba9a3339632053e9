"""Random checkpoints for tests, made by transformers, with a small byte-level tokenizer."""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    PreTrainedConfig,
    PreTrainedTokenizerFast,
)

TEXT = [
    "The quick brown fox jumps over the lazy dog. The capital of France is Paris.\n",
    "def main(argument):\n    return argument + 1\n",
    "Once upon a time there was a small test that ran quickly and told the truth.\n",
]


def make_llama(
    folder: Path,
    *,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    hidden: int = 64,
    intermediate: int = 128,
    head_dim: int | None = None,
    tied: bool = False,
    dtype: str = "float32",
    max_position: int = 1024,
    rope_theta: float = 10_000.0,
    rope_scaling: dict[str, Any] | None = None,
    attention_bias: bool = False,
    mlp_bias: bool = False,
    seed: int = 0,
    shards: int = 1,
    deviation: float = 0.2,
) -> Path:
    """Writes a random Llama with tokenizer and chat template into a folder, and returns the folder.

    A folder that already holds a checkpoint is left as it is: give one folder to one set of
    options.

    Args:
        folder: where; made if it does not exist.
        rope_scaling: of transformers, such as `{"rope_type": "linear", "factor": 2.0}`.
        shards: about how many safetensors files.
        deviation: standard deviation of the weights; larger than usual, so that a random model's
            greedy texts vary and its logits lie apart.
    """
    if (folder / "config.json").is_file():
        return folder
    tokenizer = small_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim or hidden // heads,
        max_position_embeddings=max_position,
        rope_parameters={"rope_type": "default", **(rope_scaling or {}), "rope_theta": rope_theta},
        tie_word_embeddings=tied,
        attention_bias=attention_bias,
        mlp_bias=mlp_bias,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        initializer_range=deviation,
    )
    return make_checkpoint(folder, config, dtype=dtype, seed=seed, shards=shards)


def make_checkpoint(
    folder: Path,
    config: PreTrainedConfig,
    *,
    dtype: str = "float32",
    seed: int = 0,
    shards: int = 1,
) -> Path:
    """Writes a random model of a config with tokenizer and chat template into a folder.

    A folder that already holds a checkpoint is left as it is. The vocabulary is
    `small_tokenizer`'s.
    """
    if (folder / "config.json").is_file():
        return folder
    tokenizer = small_tokenizer()
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):  # transformers starts them at zero
                parameter.normal_(0.0, config.initializer_range)
            elif "norm" in name:  # and these at one, or zero if it adds one
                parameter.add_(torch.randn_like(parameter) * 0.1)
    model = model.to(getattr(torch, dtype))
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    options = {"max_shard_size": size // shards + 1} if shards > 1 else {}
    model.save_pretrained(folder, **options)
    tokenizer.save_pretrained(folder)
    return folder


def make_adapter(checkpoint: Path, folder: Path, seed: int = 0, **config: Any) -> Path:
    """Writes a random LoRA adapter of a checkpoint into a folder, as PEFT does, and returns the
    folder.

    Its weights are large, so that it changes what the model says.
    """
    torch.manual_seed(seed)
    base = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    from peft import LoraConfig, get_peft_model  # takes seconds: only where it is used

    config = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"], **config}
    adapted = get_peft_model(base, LoraConfig(**config))
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name or "modules_to_save" in name:
                parameter.normal_(0.0, 0.3)
    adapted.save_pretrained(folder)
    return folder


Edit = Callable[[Path], object]
"""Spoils, or changes, the files of a checkpoint."""


def edited(name: str, **changes: Any) -> Edit:
    """Changes keys of a JSON file; None takes one out."""

    def edit(folder: Path) -> None:
        file = folder / name
        found = {**(json.loads(file.read_text()) if file.is_file() else {}), **changes}
        file.write_text(json.dumps({k: v for k, v in found.items() if v is not None}))

    return edit


def edited_tensors(change: Callable[[dict[str, torch.Tensor]], object]) -> Edit:
    """Changes the stored tensors."""

    def edit(folder: Path) -> None:
        found = load_file(folder / "model.safetensors")
        change(found)
        save_file(found, folder / "model.safetensors", {"format": "pt"})

    return edit


def gone(name: str) -> Edit:
    """Takes a file away."""
    return lambda folder: (folder / name).unlink()


def written(name: str, data: bytes) -> Edit:
    """Writes a file."""
    return lambda folder: (folder / name).write_bytes(data)


def small_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer of some 350 tokens, with chat template; yours to change."""
    return copy.deepcopy(_trained_tokenizer())


@functools.cache
def _trained_tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=384,
        special_tokens=["<|begin|>", "<|end|>", "<|user|>", "<|assistant|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<|begin|>", eos_token="<|end|>"
    )
    fast.chat_template = (
        "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    return fast
