"""General questions and the model's own answers: what it is to go on saying with the adapter."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import PreTrainedModel

TOPICS = (
    "rain tea volcanoes chess bread whales bridges sleep paper honey trains music gardens winter"
    " history money"
).split()
QUESTIONS = (
    "Explain in a few sentences what people should know about {}.",
    "Write a very short story about {}.",
    "Why is {} important?",
)
BATCH = 24
WINDOW = 128  # tokens of a text that are read together


def questions(topics: list[str]) -> Iterator[str]:
    """Prompts in ChatML, up to where the answer begins."""
    for topic in topics:
        for question in QUESTIONS:
            yield (f"<|im_start|>user\n{question.format(topic)}<|im_end|>\n<|im_start|>assistant\n")


def answers(
    model: PreTrainedModel, tokenizer: Tokenizer, topics: list[str], file: Path, tokens: int = 48
) -> list[tuple[list[int], list[bool]]]:
    """Prompts with answers as token ids, and which tokens are the answer's.

    The answers are drawn from the model as it is, without an adapter, once: `file` keeps them.
    """
    if not file.exists():
        prompts = [tokenizer.encode(prompt).ids for prompt in questions(topics)]
        rows = [
            row
            for start in range(0, len(prompts), BATCH)
            for row in _sampled(model, prompts[start : start + BATCH], tokens)
        ]
        file.write_text(json.dumps(rows))
    return [
        ([*prompt, *answer], [False] * len(prompt) + [True] * len(answer))
        for prompt, answer in json.loads(file.read_text())
    ]


def windows(tokenizer: Tokenizer, text: Path) -> list[list[int]]:
    """A text in pieces of `WINDOW` tokens; what is left over is dropped."""
    ids = tokenizer.encode(text.read_text(encoding="utf-8")).ids
    return [ids[start : start + WINDOW] for start in range(0, len(ids) - WINDOW + 1, WINDOW)]


def _sampled(
    model: PreTrainedModel, prompts: list[list[int]], tokens: int
) -> Iterator[tuple[list[int], list[int]]]:
    width = max(map(len, prompts))
    padded = torch.tensor([[0] * (width - len(row)) + row for row in prompts])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in prompts])
    torch.manual_seed(0)
    written = model.generate(
        padded, attention_mask=mask, max_new_tokens=tokens, do_sample=True, top_k=0, pad_token_id=0
    )
    for prompt, row in zip(prompts, written[:, width:].tolist(), strict=True):
        end = row.index(2) + 1 if 2 in row else len(row)  # <|im_end|>
        yield prompt, row[:end]
