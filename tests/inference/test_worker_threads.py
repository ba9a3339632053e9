"""Each forward gets the threads that were found worth it; results do not depend on them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from support.checkpoints import make_llama
from support.model_rig import Rig, Step, expected_logits, tokens_of

from pie_inference.attention.torch_backend import TorchAttention
from pie_inference.calibration import costs, threads
from pie_inference.calibration.threads import SharedCores, Threads, measured
from pie_inference.calibration.trial import run_step
from pie_inference.serving.engine import Engine
from pie_inference.serving.worker import WorkerConfig
from pie_py.config.model import ModelConfig
from pie_py.wire.plan import EmbedText, Forward, Plan


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def used(found: Threads, inputs: int, sequences: int | None = None) -> int:
    found.use(inputs, inputs if sequences is None else sequences)
    return torch.get_num_threads()


def test_by_the_number_of_inputs() -> None:
    found = Threads(2, {1: 2, 8: 1, 32: 1})
    assert [used(found, n) for n in (1, 2, 8, 9, 32, 33, 1000)] == [2, 1, 1, 1, 1, 2, 2]


def test_prompts_get_them_all() -> None:
    found = Threads(2, {1: 1, 8: 1, 32: 1})
    assert [used(found, n, s) for n, s in ((4, 1), (5, 1), (32, 8), (32, 7))] == [1, 2, 1, 2]


@pytest.mark.parametrize(("beside", "wanted"), [(-1e9, 2), (1e9, 1)])
def test_all_cores_where_that_is_worth_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beside: float, wanted: int
) -> None:
    monkeypatch.setattr(threads, "STEP_SECONDS", beside)
    monkeypatch.setattr(threads, "SECONDS", 1e9)
    found = measured(Rig(make_llama(tmp_path / "llama"), pages=128).model)
    assert torch.get_num_threads() == 2
    assert used(found, 1) == used(found, 32) == used(found, 1000) == wanted
    assert used(found, 1000, 1) == 2


def test_plans_run_with_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "STEP_SECONDS", 1e9)
    monkeypatch.setattr(threads, "SECONDS", 1e9)
    monkeypatch.setattr(costs, "LONG_SECONDS", 1e9)
    monkeypatch.setattr(threads, "SharedCores", lambda: SharedCores(lambda _: 0.0))
    config = ModelConfig(source=str(make_llama(tmp_path / "llama")), embeds=256, kv_pages=16)
    engine = Engine([config], fixed_threads=False)
    description = engine.descriptions[0]
    assert description.kv_costs is not None
    assert description.kv_costs["prefill"]["tokens"] == [16, 64, 256]
    for count, wanted in ((4, 1), (200, 2)):
        ids = np.arange(count, dtype=np.int32)
        nothing = np.zeros(0, np.int32)
        starts = np.array([0, count], np.int32)
        forward = Forward(
            input_starts=starts,
            inputs=ids,
            page_starts=np.zeros(2, np.int32),
            pages=nothing,
            page_used=nothing,
            has_masked=np.zeros(1, np.int32),
            output_slots=np.full(count, -1, np.int32),
            output_starts=np.zeros(2, np.int32),
            outputs=nothing,
            mask_starts=np.zeros(2, np.int32),
            mask=nothing,
        )
        embed = EmbedText(np.full(count, 5, np.int32), ids, ids)
        result = engine.run(Plan(1, description.name, [embed, forward]))
        assert [part.error for part in result.results] == [None, None]
        assert torch.get_num_threads() == wanted


def test_who_is_told_a_number_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    models = [{"source": "x"}]
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert not WorkerConfig.model_validate({"models": models}).fixed_threads
    assert WorkerConfig.model_validate({"models": models, "threads": 2}).fixed_threads
    assert WorkerConfig.model_validate({"models": models, "tensor_parallel_size": 2}).fixed_threads
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert WorkerConfig.model_validate({"models": models}).fixed_threads


@pytest.mark.parametrize("count", [1, 2])
def test_both_ways_to_decode_in_bfloat16(tmp_path: Path, count: int) -> None:
    """Heads as queries of the one they share, and each by itself; few keys and many."""
    folder = make_llama(tmp_path / "llama", heads=4, kv_heads=2, head_dim=64)
    rig = Rig(folder, pages=128, dtype="bfloat16")
    lengths = [30, 50, 400, 420]
    texts = [tokens_of(n, seed=n) for n in lengths]
    sequences = [rig.sequence(n) for n in lengths]
    rig.forward(*(Step(s, text[:-1]) for s, text in zip(sequences, texts, strict=True)))
    torch.set_num_threads(count)
    found = rig.forward(*(Step(s, text[-1:]) for s, text in zip(sequences, texts, strict=True)))
    for text, logits in zip(texts, found, strict=True):
        wanted = expected_logits(folder, text)[-1]
        assert torch.nn.functional.cosine_similarity(logits[0], wanted, dim=0) > 0.995


def test_steps_are_measured_as_those_of_generations(tmp_path: Path) -> None:
    """Sequences with contexts in pages of their own, whose keys lie where the step before left
    them.
    """
    rig = Rig(make_llama(tmp_path / "llama"), pages=32)
    model = rig.model
    attention = model.attention
    assert isinstance(attention, TorchAttention)
    with torch.inference_mode():
        for context, copied in ((40, True), (41, False), (41, False)):
            run_step(model, 5, context)
            assert bool(attention.decode_caches.copied) == copied
    size = model.cache.page_size
    slots = np.arange(5) * (32 // 5) * size + 41
    assert (model.cache.positions[slots] == 41).all()
    assert np.isin(slots, np.flatnonzero(model.cache.written == model.cache.clock)).all()


@pytest.mark.parametrize("pages", [1, 3, 40, 128])
def test_small_pools_are_measured_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pages: int
) -> None:
    monkeypatch.setattr(threads, "STEP_SECONDS", 1e9)
    monkeypatch.setattr(threads, "SECONDS", 1e9)
    found = measured(Rig(make_llama(tmp_path / "llama"), pages=pages).model)
    assert used(found, 1) == 1
    assert used(found, 128) == (1 if pages >= 32 else 2)
