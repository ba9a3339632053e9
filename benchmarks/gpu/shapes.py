"""The models that are measured: real shapes, random weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_LLAMA3 = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "attention_bias": False,
    "mlp_bias": False,
    "bos_token_id": 128_000,
    "eos_token_id": 128_009,
    "dtype": "bfloat16",
    "hidden_act": "silu",
    "max_position_embeddings": 131_072,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500_000.0,
    "vocab_size": 128_256,
}


def _scaling(factor: float) -> dict[str, Any]:
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }


# As the published config.json files have them.
SHAPES: dict[str, dict[str, Any]] = {
    "llama-3.2-1b": {
        **_LLAMA3,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "head_dim": 64,
        "tie_word_embeddings": True,
        "rope_scaling": _scaling(32.0),
    },
    "llama-3.2-3b": {
        **_LLAMA3,
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "num_hidden_layers": 28,
        "num_attention_heads": 24,
        "head_dim": 128,
        "tie_word_embeddings": True,
        "rope_scaling": _scaling(32.0),
    },
    "llama-3.1-8b": {
        **_LLAMA3,
        "hidden_size": 4096,
        "intermediate_size": 14_336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "head_dim": 128,
        "tie_word_embeddings": False,
        "rope_scaling": _scaling(8.0),
    },
    # For trying the benchmark itself.
    "toy": {
        **_LLAMA3,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "max_position_embeddings": 16_384,
        "vocab_size": 1024,
        "tie_word_embeddings": True,
        "rope_scaling": None,
        "bos_token_id": 0,
        "eos_token_id": 1,
    },
}


def write_shape(name: str, folder: Path) -> Path:
    """Writes config.json of a shape into a folder: what a model with `load_format` dummy needs."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(SHAPES[name], indent=2))
    return folder


def parameters(name: str) -> tuple[int, int]:
    """Weights that a token goes through: of the layers, and of the head."""
    c = SHAPES[name]
    hidden, inner = c["hidden_size"], c["intermediate_size"]
    heads = (2 * c["num_attention_heads"] + 2 * c["num_key_value_heads"]) * c["head_dim"]
    return c["num_hidden_layers"] * (hidden * heads + 3 * hidden * inner), hidden * c["vocab_size"]


def kv_bytes(name: str) -> int:
    """Bytes of a token's keys and values in bfloat16."""
    c = SHAPES[name]
    return int(c["num_hidden_layers"] * 2 * c["num_key_value_heads"] * c["head_dim"] * 2)
