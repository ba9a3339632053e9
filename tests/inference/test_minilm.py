"""A real encoder has the vectors that its makers' library computes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from transformers import AutoModel, AutoTokenizer

from pie_inference.handlers.base import ServedEncoder
from pie_inference.loading.assembly import load_served
from pie_py.config.model import ModelConfig

TEXTS = [
    "A man is eating food.",
    "Ein Mann isst etwas, ümlaut 日本語 🙂",
    "The monkey plays the drums " * 60,
    "",
    "a",
]


def test_vectors_of_minilm(minilm: Path) -> None:
    [served] = load_served([ModelConfig(source="minilm")])
    assert isinstance(served, ServedEncoder)
    assert served.encoder.by_rows
    tokenizer, model = AutoTokenizer.from_pretrained(minilm), AutoModel.from_pretrained(minilm)
    # As sentence-transformers does: the mean of what is no padding, of length 1.
    inputs = tokenizer(TEXTS, padding=True, truncation=True, max_length=256, return_tensors="pt")
    kept = inputs["attention_mask"]
    with torch.inference_mode():
        states = model.eval()(**inputs).last_hidden_state * kept[:, :, None]
        means = states.sum(1) / kept.sum(1, keepdim=True)
        wanted = torch.nn.functional.normalize(means, dim=1).numpy()
        texts = [
            ids[mask.bool()].numpy() for ids, mask in zip(inputs["input_ids"], kept, strict=True)
        ]
        starts = np.cumsum([0, *map(len, texts)], dtype=np.int32)
        none, raw = np.full(len(texts), -1, np.int32), np.zeros(len(texts), np.int32)
        tokens = np.concatenate(texts).astype(np.int32)
        found = served.encoder.run(tokens, starts, none, raw).numpy()
    np.testing.assert_allclose(found, wanted, atol=1e-5)
