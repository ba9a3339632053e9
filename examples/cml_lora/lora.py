"""The model and its adapter: loaded from a checkpoint, saved as PEFT saves it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, GgufConfig, PreTrainedModel

TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def load_model(checkpoint: Path, dtype: torch.dtype = torch.bfloat16) -> PreTrainedModel:
    """A frozen causal language model, from a GGUF file or a folder of safetensors."""
    folder, more = checkpoint, {}
    if checkpoint.suffix == ".gguf":
        # Packed weights have no gradients for what is below them.
        dense = GgufConfig(dequantize=True)
        folder, more = (
            checkpoint.parent,
            {"gguf_file": checkpoint.name, "quantization_config": dense},
        )
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, **more)
    return model.requires_grad_(False)


def with_new_adapter(model: PreTrainedModel, rank: int) -> PeftModel:
    """The model with a LoRA of its dtype on every linear layer of its blocks."""
    config = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=TARGETS, task_type="CAUSAL_LM")
    return get_peft_model(model, config, autocast_adapter_dtype=False)


def answer_loss(
    model: PreTrainedModel, ids: Sequence[Sequence[int]], learned: Sequence[Sequence[bool]]
) -> tuple[torch.Tensor, int]:
    """Mean negative log-likelihood of the learned tokens, and how many they are.

    Padding is at the right, where a causal model's other tokens do not see it; logits are computed
    where something is learned alone.
    """
    logits, tokens = _logits(model, ids, learned)
    return torch.nn.functional.cross_entropy(logits, tokens), len(tokens)


def divergence(
    model: PeftModel, ids: Sequence[Sequence[int]], learned: Sequence[Sequence[bool]]
) -> tuple[torch.Tensor, int]:
    """How far the adapter moves the model: the mean divergence (Kullback-Leibler, in nats) of the
    distributions of the learned tokens from those without it, and how many they are.
    """
    with torch.no_grad(), model.disable_adapter():
        plain = _logits(model, ids, learned)[0].log_softmax(-1)
    logits, tokens = _logits(model, ids, learned)
    moved = torch.nn.functional.kl_div(
        logits.log_softmax(-1), plain, reduction="batchmean", log_target=True
    )
    return moved, len(tokens)


def _logits(
    model: PreTrainedModel, ids: Sequence[Sequence[int]], learned: Sequence[Sequence[bool]]
) -> tuple[torch.Tensor, torch.Tensor]:
    """float32 `[learned tokens, vocabulary]`, and these tokens."""
    width = max(map(len, ids))
    tokens = torch.tensor([[*row, *[0] * (width - len(row))] for row in ids])
    wanted = torch.tensor([[*row, *[False] * (width - len(row))] for row in learned])[:, 1:]
    inner = model.get_base_model() if isinstance(model, PeftModel) else model
    hidden = inner.model(input_ids=tokens[:, :-1], use_cache=False).last_hidden_state
    return inner.lm_head(hidden[wanted]).float(), tokens[:, 1:][wanted]
