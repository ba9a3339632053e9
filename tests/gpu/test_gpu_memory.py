"""Pools, and what happens when there is no memory left."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from support.checkpoints import make_llama
from support.model_rig import Rig, Step, ints, tokens_of

from pie_inference.errors import LoadError
from pie_inference.handlers.pages import clear
from pie_inference.loading.assembly import load_models
from pie_inference.memory import host_memory
from pie_py.config.model import ModelConfig
from pie_py.wire.plan import Clear

PAGE_BYTES = 4 * 16 * 2 * 2 * 64 * 2  # layers, slots, keys and values, heads, numbers


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llama(tmp_path_factory.mktemp("model") / "llama", head_dim=64, layers=4)


def test_the_utilization_is_kept(folder: Path) -> None:
    total = torch.cuda.mem_get_info()[1]
    torch.cuda.empty_cache()
    before = torch.cuda.mem_get_info()[0]
    config = ModelConfig(
        source=str(folder),
        device="cuda",
        dtype="bfloat16",
        gpu_memory_utilization=0.3,
        page_size=32,
        graph_batch=16,
    )
    model = load_models([config])[0]
    torch.cuda.synchronize()
    used = before - torch.cuda.mem_get_info()[0]
    assert used <= 0.3 * total
    assert model.cache.pages > 100


def test_a_pool_that_does_not_fit_is_told(folder: Path) -> None:
    with pytest.raises(LoadError, match="no memory"):
        load_models([ModelConfig(source=str(folder), device="cuda", kv_pages=1 << 30)])


@pytest.mark.parametrize("parts", [1, 9])
def test_swaps_run_beside_kernels_and_lose_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, parts: int
) -> None:
    """The host pool is pinned as a whole, or in parts: pages go to all of them, in any order."""
    if parts > 1:
        monkeypatch.setattr(host_memory, "PINNED_BYTES", 30 * PAGE_BYTES)
    rig = Rig(folder, pages=256, device="cuda", dtype="bfloat16", host_pages=256, graph_batch=8)
    model = rig.model
    assert len(model.host._parts) == parts
    pattern = torch.randn_like(model.cache.data[:, : 128 * 16].float()).to(model.cache.data.dtype)
    model.cache.data[:, : 128 * 16] = pattern
    pages = np.arange(128, dtype=np.int32)
    hosts = np.random.default_rng(0).permutation(256)[:128].astype(np.int32)
    stream = rig.sequence(64)
    stream.pages = [200, 201, 202, 203]
    with torch.inference_mode():
        for turn in range(5):
            model.host.swap_out(pages, hosts)
            clear(model, Clear(ints(range(128 * 16)), ints([]), ints([])))
            rig.forward(Step(stream, tokens_of(3, seed=turn)))
            model.host.swap_in(hosts, pages)
            hosts = np.roll(hosts, 7)
            pages = np.roll(pages, 7)
    torch.cuda.synchronize()
    assert torch.equal(model.cache.data[:, : 128 * 16], pattern)
