"""The two models: pie-tiny, and a drafter with the same tokenizer for speculative decoding.

Both are plain `LlamaForCausalLM`s. Their sizes are what learnt best in the time that two CPU cores
have: README.md tells the experiments.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from examples.pie_tiny.corpus.functions import ESTIMATE_TOKENS
from examples.pie_tiny.tokenizer import CONTEXT

SIZES: Mapping[str, Mapping[str, Any]] = {
    "pie-tiny": {
        "hidden_size": 256,
        "intermediate_size": 640,
        "num_hidden_layers": 6,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
    },
    "pie-tiny-draft": {
        "hidden_size": 128,
        "intermediate_size": 352,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
    },
}


def build(name: str, vocabulary: int, seed: int) -> LlamaForCausalLM:
    """A fresh model with random weights in float32.

    Args:
        name: one of `SIZES`.
        vocabulary: how many tokens there are; the first two are begin and end.
        seed: of the weights.
    """
    torch.manual_seed(seed)
    configuration = LlamaConfig(
        vocab_size=vocabulary,
        max_position_embeddings=CONTEXT,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=None,
        use_cache=False,
        **SIZES[name],
    )
    model = LlamaForCausalLM(configuration)
    order_estimates(model)
    # On a CPU a quarter faster to train with than the fused kernel, whose backward pass is slow.
    model.set_attn_implementation("eager")
    return model


def order_estimates(model: LlamaForCausalLM) -> None:
    """Gives the tokens of estimated times, the last ones, embeddings that lie along a line, in
    order.

    That longer is further along is what training would have to find out about each of the 99.
    """
    rows: torch.Tensor = model.model.embed_tokens.weight.data
    count = len(ESTIMATE_TOKENS)
    scale = float(rows[:-count].std())
    direction = torch.randn(rows.shape[1]) * scale
    places = torch.linspace(-1.7, 1.7, count)[:, None]
    rows[-count:] = places * direction + 0.5 * scale * torch.randn(count, rows.shape[1])


def export(model: LlamaForCausalLM, folder: Path) -> None:
    """Writes the checkpoint in bfloat16: `config.json`, `generation_config.json`,
    `model.safetensors`.
    """
    copy = _on_cpu(model).bfloat16()
    copy.config.use_cache = True
    copy.generation_config.bos_token_id, copy.generation_config.eos_token_id = 0, 1
    copy.save_pretrained(folder)
    # The releases of `transformers` write the key differently; every reader knows this one.
    file = folder / "config.json"
    configuration = json.loads(file.read_text(encoding="utf-8"))
    configuration.pop("transformers_version", None)
    file.write_text(json.dumps(configuration, indent=2) + "\n", encoding="utf-8")


def _on_cpu(model: LlamaForCausalLM) -> LlamaForCausalLM:
    """A copy of a model on the CPU, in float32."""
    copy = LlamaForCausalLM(model.config)
    copy.load_state_dict({name: tensor.cpu() for name, tensor in model.state_dict().items()})
    return copy
