"""Through the whole system, greedy output equals that of `transformers`, token for token."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support import reference
from support.checkpoints import make_llama
from support.servers import Server

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
SHAPES: list[tuple[int, dict[str, Any]]] = [
    (8, {"heads": 4, "kv_heads": 2, "tied": True}),
    (16, {"heads": 4, "kv_heads": 4, "tied": False}),
    (32, {"heads": 8, "kv_heads": 1, "tied": False, "rope_scaling": LLAMA3}),
]
LENGTHS = (1, 7, 8, 16, 33, 100)


def prompt(length: int, seed: int, vocabulary: int = 300) -> list[int]:
    return random.Random(seed).choices(range(3, vocabulary), k=length)


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, dict[int, Path]]]:
    """A server of a model of each shape, and their folders, by page size."""
    place = tmp_path_factory.mktemp("shapes")
    folders = {size: make_llama(place / f"{size}", seed=size, **shape) for size, shape in SHAPES}
    models = [
        {"source": str(folder), "name": f"{size}", "page_size": size, "kv_pages": 256}
        for size, folder in folders.items()
    ]
    with Server(models=models) as server:
        yield server, folders


@pytest.mark.slow
@pytest.mark.parametrize("page_size", [size for size, _ in SHAPES])
def test_one_at_a_time(
    page_size: int, shapes: tuple[Server, dict[int, Path]], guests: Path
) -> None:
    server, folders = shapes
    folder, model = folders[page_size], f"{page_size}"
    with server.client() as client:
        program = client.upload(guests / "greedy.py")
        raw = client.upload(guests / "raw_probabilities.py")
        for length in LENGTHS:
            tokens = prompt(length, seed=length)
            answer = client.launch(program, [json.dumps(tokens), "24", model]).result()
            assert json.loads(answer) == reference.greedy(folder, tokens, 24), length
            answer = client.launch(raw, [json.dumps(tokens), model]).result()
            expected = reference.probabilities(folder, tokens)
            ours = torch.tensor(json.loads(answer))
            # Log-probabilities differ as logits do.
            assert (ours.log() - expected.log()).abs().max() < 1e-4
