"""Logits equal those of transformers within 1e-4 in float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.checkpoints import make_llama
from support.model_rig import Rig, Step, assert_close, expected_logits, tokens_of

SHAPES: dict[str, dict[str, Any]] = {
    "gqa": {"heads": 4, "kv_heads": 2},
    "mha-tied": {"heads": 4, "kv_heads": 4, "tied": True},
    "mqa-wide": {"heads": 4, "kv_heads": 1, "head_dim": 32},
    "biases": {"heads": 6, "kv_heads": 3, "hidden": 96, "attention_bias": True, "mlp_bias": True},
    "sharded": {"layers": 3, "shards": 3},
    "llama3": {
        "max_position": 1024,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 128,
        },
    },
    "linear": {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
}


@pytest.fixture(scope="module", params=SHAPES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    name = request.param
    return make_llama(tmp_path_factory.mktemp("model") / name, **SHAPES[name])


@pytest.mark.parametrize("page_size", [8, 16, 32])
def test_prompts_of_every_length_then_decoding(folder: Path, page_size: int) -> None:
    rig = Rig(folder, page_size=page_size)
    for length in (1, page_size - 1, page_size, page_size + 1, 5 * page_size + 3):
        tokens = tokens_of(length + 10, seed=length)
        wanted = expected_logits(folder, tokens)
        sequence = rig.sequence(len(tokens))
        (prompt,) = rig.forward(Step(sequence, tokens[:length], outputs=length))
        assert_close(prompt, wanted[:length])
        for i in range(length, length + 10):
            (step,) = rig.forward(Step(sequence, tokens[i : i + 1]))
            assert_close(step[0], wanted[i])
        rig._free.extend(sequence.pages)


def test_a_prompt_in_chunks(folder: Path) -> None:
    rig = Rig(folder)
    tokens = tokens_of(100)
    wanted = expected_logits(folder, tokens)
    sequence = rig.sequence(100)
    done = 0
    for chunk in (7, 30, 1, 2, 60):
        (logits,) = rig.forward(Step(sequence, tokens[done : done + chunk], outputs=chunk))
        assert_close(logits, wanted[done : done + chunk])
        done += chunk


def test_prefill_and_decode_of_many_sequences_in_one_batch(folder: Path) -> None:
    rig = Rig(folder, page_size=8, pages=400)
    lengths = [1, 3, 8, 9, 9, 17, 40, 2, 120, 64, 64, 63]
    texts = [tokens_of(n + 12, seed=i) for i, n in enumerate(lengths)]
    wanted = [expected_logits(folder, text) for text in texts]
    sequences = [rig.sequence(len(text)) for text in texts]
    # Sequence i starts in round i // 2, so that every round mixes new prompts and decoding.
    for turn in range(12):
        live = range(min(len(lengths), 2 * turn + 2))
        steps = []
        for i in live:
            used = sequences[i].used
            end = used + 1 if used else lengths[i]
            steps.append(Step(sequences[i], texts[i][used:end], outputs=min(end - used, 3)))
        for i, found in zip(live, rig.forward(*steps), strict=True):
            end = sequences[i].used
            assert_close(found, wanted[i][end - found.shape[0] : end])


def test_without_outputs_only_keys_and_values_are_made(folder: Path) -> None:
    rig = Rig(folder)
    tokens = tokens_of(30)
    sequence = rig.sequence(30)
    assert rig.forward(Step(sequence, tokens[:-1], outputs=0))[0].shape[0] == 0
    (logits,) = rig.forward(Step(sequence, tokens[-1:]))
    assert_close(logits[0], expected_logits(folder, tokens)[-1])


def test_inputs_that_are_not_kept_leave_no_trace(folder: Path) -> None:
    rig = Rig(folder)
    tokens = tokens_of(40)
    wanted = expected_logits(folder, tokens)
    sequence = rig.sequence(40)
    rig.forward(Step(sequence, tokens[:20]))
    for _ in range(2):
        (logits,) = rig.forward(Step(sequence, tokens[20:], keep=False, outputs=20))
        assert_close(logits, wanted[20:])
    (logits,) = rig.forward(Step(sequence, tokens[20:21], keep=False))
    assert_close(logits[0], wanted[20])
