"""Perplexity on held-out text, and the mean loss of what is to be learnt in every kind of
sample.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from tokenizers import Tokenizer
from torch.nn.functional import cross_entropy
from transformers import LlamaForCausalLM

from examples.pie_tiny.corpus.mixture import GENERATORS
from examples.pie_tiny.corpus.sample import Sample, Split
from examples.pie_tiny.held_out import SampleSet
from examples.pie_tiny.scoring import Figure
from examples.pie_tiny.tokenizer import IGNORED, encode

ROWS = 16
TEXT = ("facts", "story")
"""The kinds that are English text: perplexity is measured on them."""


def loss_figures(
    model: LlamaForCausalLM, tokenizer: Tokenizer, split: Split, samples: int
) -> list[Figure]:
    """Mean losses of every kind's learnt tokens, and the perplexities of text per token and per
    byte.
    """
    kinds, perplexities = [], []
    for kind in GENERATORS:
        drawn = SampleSet(kind).draw(samples, split)
        loss, tokens = total_loss(model, tokenizer, drawn)
        kinds.append(Figure("loss", kind, loss / tokens, tokens, unit=""))
        if kind in TEXT:
            written = sum(
                len(piece.text.encode()) for one in drawn for piece in one.pieces if piece.learned
            )
            per_token, per_byte = math.exp(loss / tokens), math.exp(loss / written)
            perplexities += [
                Figure("perplexity", f"{kind}, per token", per_token, tokens, unit=""),
                Figure("perplexity", f"{kind}, per byte", per_byte, written, unit=""),
            ]
    return perplexities + kinds


@torch.inference_mode()
def total_loss(
    model: LlamaForCausalLM, tokenizer: Tokenizer, samples: Sequence[Sample]
) -> tuple[float, int]:
    """The sum of the losses, in nats, of the tokens to be learnt, and how many these are."""
    rows = sorted(encode(tokenizer, list(samples)), key=lambda row: len(row[0]))
    total, count = 0.0, 0
    for start in range(0, len(rows), ROWS):
        batch = rows[start : start + ROWS]
        length = max(len(ids) for ids, _ in batch)
        # Padding comes at the end, where nothing that counts can see it.
        ids = torch.tensor(
            [ids + [0] * (length - len(ids)) for ids, _ in batch], device=model.device
        )
        targets = torch.tensor(
            [row[1:] + [IGNORED] * (length - len(row) + 1) for _, row in batch], device=model.device
        ).flatten()
        logits = model(input_ids=ids, use_cache=False).logits.flatten(0, 1)
        total += float(
            cross_entropy(logits.float(), targets, ignore_index=IGNORED, reduction="sum")
        )
        count += int((targets != IGNORED).sum())
    return total, count
