"""What FlashInfer is told, with its kernels' documented meaning in their place: the kernels need a
GPU.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support import attention_scenes as scenes
from support import flashinfer_reference
from support.attention_scenes import Twins
from support.checkpoints import make_llama
from support.families import FAMILIES, make_family
from support.model_rig import tokens_of

from pie_inference.attention.flashinfer import least_workspace
from pie_inference.loading.sizing import batch_buckets


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_family(tmp_path_factory.mktemp("model") / request.param, request.param)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llama(tmp_path_factory.mktemp("llama") / "model")


def test_every_family_in_mixed_batches_and_by_graphs(folder: Path) -> None:
    twins = Twins(folder, graphs=True)
    scenes.mixed_batches(twins)
    # Without grouped products the host has to know which experts have rows: no graph can.
    assert (twins.replayed > 0) == twins.paged.model.network.graphable


def test_rules_of_every_kind_in_one_batch(folder: Path) -> None:
    scenes.every_rule(Twins(folder))


def test_pages_that_are_not_full_amid_the_context(llama: Path) -> None:
    scenes.gaps(Twins(llama, graphs=True))


def test_steps_of_every_size_share_buffers(llama: Path) -> None:
    scenes.every_size(Twins(llama, graphs=True))


def test_batches_that_are_too_large_or_observed_run_without_a_graph(llama: Path) -> None:
    scenes.no_graph(Twins(llama, graphs=True))


@pytest.mark.parametrize("kernels", ["append", "norm", "rope", "activation"])
def test_pytorch_s_kernels_change_no_result(llama: Path, kernels: str) -> None:
    twins = Twins(llama, graphs=True, without=[kernels])
    pair = twins.sequence(40)
    twins.forward((pair, tokens_of(20), {"outputs": 20}))
    twins.forward((pair, tokens_of(1), {}))
    assert twins.replayed == 1


def test_the_ladder_ends_with_the_most() -> None:
    assert batch_buckets(1) == [1]
    assert batch_buckets(3) == [3, 2, 1]
    assert batch_buckets(256)[:2] == [256, 240]
    assert batch_buckets(500)[0] == 500
    assert all(b < a for a, b in zip(batch_buckets(512), batch_buckets(512)[1:], strict=False))


def test_the_library_has_what_the_worker_calls() -> None:
    """Against the real signatures, where it is installed: it needs no GPU to be imported."""
    library = pytest.importorskip("flashinfer")
    for name, reference in inspect.getmembers(flashinfer_reference, inspect.isfunction):
        if not name.startswith("_"):
            real = inspect.signature(getattr(library, name))
            _covers(real, inspect.signature(reference), name)
    for name in ("BatchDecodeWithPagedKVCacheWrapper", "BatchPrefillWithPagedKVCacheWrapper"):
        for method in ("__init__", "plan", "reset_workspace_buffer"):
            real = inspect.signature(getattr(getattr(library, name), method))
            own = inspect.signature(getattr(getattr(flashinfer_reference, name), method))
            _covers(real, own, f"{name}.{method}")


def _covers(real: inspect.Signature, own: inspect.Signature, name: str) -> None:
    """The same names at the same places; what is named only is there."""
    order = list(real.parameters)
    for at, (parameter, kind) in enumerate((p.name, p.kind) for p in own.parameters.values()):
        if kind is inspect.Parameter.POSITIONAL_ONLY:  # its name is free
            assert at < len(order), name
            continue
        assert parameter in order, f"{name}: {parameter}"
        if kind is not inspect.Parameter.KEYWORD_ONLY:
            assert order[at] == parameter, f"{name}: {parameter}"


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
