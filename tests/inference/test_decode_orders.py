"""Who is decoded with whom, and in which order, changes no result, and costs no copies."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.checkpoints import make_llama
from support.model_rig import Rig, Step, assert_close, expected_logits, tokens_of

from pie_inference.attention.torch_backend import TorchAttention


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llama(tmp_path_factory.mktemp("model") / "llama")


@settings(max_examples=8)
@given(seed=st.integers(0, 1 << 16))
def test_any_order_and_any_part(folder: Path, seed: int) -> None:
    """Prompts, parts of prompts and decoding, in batches of whoever is there."""
    rng = np.random.default_rng(seed)
    rig = Rig(folder, page_size=8, pages=256)
    texts = [tokens_of(int(n), seed=i) for i, n in enumerate(rng.integers(20, 140, 9))]
    wanted = [expected_logits(folder, text) for text in texts]
    sequences = [rig.sequence(len(text)) for text in texts]
    for _ in range(40):
        steps, ends = [], []
        for i in rng.permutation(len(texts))[: rng.integers(1, len(texts) + 1)].tolist():
            used, left = sequences[i].used, len(texts[i]) - sequences[i].used
            count = min(
                left, int(rng.choice([1, 1, 1, 1, 5])) if used else int(rng.integers(1, 70))
            )
            if count:
                outputs = int(rng.integers(0, min(count, 2) + 1))
                steps.append(Step(sequences[i], texts[i][used : used + count], outputs=outputs))
                ends.append((i, used + count - outputs, used + count))
        if steps:
            for (i, first, end), found in zip(ends, rig.forward(*steps), strict=True):
                if end > first:
                    assert_close(found, wanted[i][first:end])


def test_in_steady_state_nothing_is_copied(folder: Path) -> None:
    """Two parts of the sequences in turn, each in another order every time, of lengths of two
    rooms.
    """
    rng = np.random.default_rng(0)
    rig = Rig(folder, page_size=8, pages=256)
    attention = rig.model.attention
    assert isinstance(attention, TorchAttention)
    sequences = [rig.sequence(120) for _ in range(10)]
    rig.forward(*(Step(s, tokens_of(66 + i if i % 3 else 9 + i)) for i, s in enumerate(sequences)))
    copied = []
    for turn in range(24):
        part = sequences[:7] if turn % 2 else sequences[7:]
        rig.forward(*(Step(part[i], [5]) for i in rng.permutation(len(part))))
        copied.append(attention.decode_caches.copied)
    assert all(copied[:2])
    assert not any(copied[2:])
