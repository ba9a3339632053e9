"""What `transformers` says, the test of truth."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

HIDDEN = torch.finfo(torch.float32).min  # a score that attention gives no weight


@lru_cache(maxsize=32)
def load(folder: Path, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """The checkpoint as transformers loads it."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()


def greedy(folder: Path, tokens: list[int], count: int) -> list[int]:
    """New token ids of `transformers.generate`, greedy, which no stop token ends."""
    with torch.inference_mode():
        output = load(folder).generate(
            torch.tensor([tokens]),
            attention_mask=torch.ones(1, len(tokens), dtype=torch.long),
            do_sample=False,
            max_new_tokens=count,
            eos_token_id=None,
            pad_token_id=0,
        )
    found: list[int] = output[0, len(tokens) :].tolist()
    return found


def probabilities(
    folder: Path,
    tokens: list[int],
    positions: list[int] | None = None,
    visible: list[list[bool]] | None = None,
) -> torch.Tensor:
    """Next-token distribution `[vocab]` after the tokens.

    `visible` `[tokens, tokens]`, row by row what a token attends to, replaces causality.
    """
    options = {}
    if positions is not None:
        options["position_ids"] = torch.tensor([positions])
    if visible is not None:
        options["attention_mask"] = torch.where(torch.tensor(visible), 0.0, HIDDEN)[None, None]
    with torch.inference_mode():
        logits = load(folder)(torch.tensor([tokens]), **options).logits[0, -1]
    return torch.softmax(logits.float(), -1)
