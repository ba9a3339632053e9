"""Sizes that FlashInfer's attention is given. `test_on_simulated_gpu.py` runs it with what its
kernels are documented to compute, and `tests/gpu` with the kernels themselves.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pie_inference.attention.flashinfer import least_workspace
from pie_inference.loading.sizing import batch_buckets


def test_the_ladder_ends_with_the_most() -> None:
    assert batch_buckets(1) == [1]
    assert batch_buckets(3) == [3, 2, 1]
    assert batch_buckets(256)[:2] == [256, 240]
    assert batch_buckets(500)[0] == 500
    assert all(b < a for a, b in zip(batch_buckets(512), batch_buckets(512)[1:], strict=False))


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "batch", "megabytes"),
    [(64, 8, 128, 512, 402), (64, 4, 128, 256, 276), (32, 8, 128, 256, 83), (4, 2, 64, 8, 17)],
)
def test_the_workspace_suffices(
    monkeypatch: pytest.MonkeyPatch,
    heads: int,
    kv_heads: int,
    head_dim: int,
    batch: int,
    megabytes: int,
) -> None:
    """What FlashInfer's plan asks for with 132 multiprocessors, by its source."""
    gpu = SimpleNamespace(multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: gpu)
    cache: Any = SimpleNamespace(
        data=SimpleNamespace(device=torch.device("cuda:0")), kv_heads=kv_heads, head_dim=head_dim
    )
    assert 1.0 <= least_workspace(cache, heads, batch) / (megabytes * 1e6) < 1.1
