"""FlashInfer's kernels, and graphs of them, beside PyTorch's attention on the same GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support import attention_scenes as scenes
from support.attention_scenes import Twins
from support.checkpoints import make_llama
from support.families import FAMILIES, make_family
from support.model_rig import tokens_of

from pie_inference.cuda.decode_graphs import GraphCapture

SMALL: dict[str, Any] = {"initializer_range": 0.05}  # bfloat16 has 8 bits: rounding must not decide
BF16: dict[str, Any] = {"device": "cuda", "dtype": "bfloat16"}
TOLERANCE = 4e-2  # of the largest logit
ROUTED = 0.4  # where rounding may choose another expert


def twins(folder: Path, **options: Any) -> Twins:
    library = pytest.importorskip("flashinfer")
    return Twins(
        folder,
        library=library,
        capture=GraphCapture.on,
        tolerance=ROUTED if any(name in folder.name for name in ("mixtral", "moe")) else TOLERANCE,
        **{"served": BF16, **options},
    )


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("model") / request.param
    return make_family(place, request.param, head_dim=64, **SMALL)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama") / "model"
    return make_llama(folder, head_dim=128, heads=8, kv_heads=2, deviation=0.05)


@pytest.mark.parametrize("graphs", [False, True])
def test_every_family_in_mixed_batches(folder: Path, graphs: bool) -> None:
    found = twins(folder, graphs=graphs)
    scenes.mixed_batches(found)
    assert (found.replayed > 0) == (graphs and found.paged.model.network.graphable)


def test_rules_of_every_kind_in_one_batch(folder: Path) -> None:
    scenes.every_rule(twins(folder))


def test_pages_that_are_not_full_amid_the_context(llama: Path) -> None:
    scenes.gaps(twins(llama, graphs=True))


def test_steps_of_every_size_share_buffers(llama: Path) -> None:
    scenes.every_size(twins(llama, graphs=True))


def test_batches_that_are_too_large_or_observed_run_without_a_graph(llama: Path) -> None:
    found = twins(llama, graphs=True)
    found.tolerance_of_attention = 2e-2
    scenes.no_graph(found)


@pytest.mark.parametrize(
    "options",
    [
        {"without": ["append"]},
        {"without": ["norm"]},
        {"without": ["rope"]},
        {"without": ["activation"]},
        {"prefill": "fa2"},
        {"decode": "cuda-cores"},
        {"decode": "tensor-cores"},
    ],
)
def test_switches_change_no_result(llama: Path, options: dict[str, Any]) -> None:
    found = twins(llama, graphs=True, **options)
    pair = found.sequence(60)
    found.forward((pair, tokens_of(40), {"outputs": 40}))
    for seed in range(4):
        found.forward((pair, tokens_of(1, seed=seed), {}))
    assert found.replayed == 4


@pytest.mark.parametrize("heads", [(4, 4), (6, 2), (8, 1), (7, 1)])
def test_numbers_of_heads(tmp_path: Path, heads: tuple[int, int]) -> None:
    folder = make_llama(
        tmp_path / "m",
        hidden=64 * heads[0],  # transformers wants a multiple of the heads
        head_dim=64,
        heads=heads[0],
        kv_heads=heads[1],
        deviation=0.05,
    )
    scenes.mixed_batches(twins(folder, graphs=True))


def test_8_bit_keys(llama: Path) -> None:
    capability = torch.cuda.get_device_capability()
    if capability < (8, 9):
        pytest.skip("this GPU has no 8-bit floats")
    scenes.mixed_batches(twins(llama, graphs=True, served={**BF16, "kv_dtype": "fp8"}))


def test_long_contexts_are_split_among_multiprocessors(tmp_path: Path) -> None:
    folder = make_llama(tmp_path / "m", head_dim=128, max_position=4096, deviation=0.05)
    served = {**BF16, "max_batch_tokens": 2048}
    found = twins(folder, graphs=True, served=served)
    pair = found.sequence(1500)
    found.forward((pair, tokens_of(1000), {}))
    found.forward((pair, tokens_of(300, seed=1), {"outputs": 3}))
    for seed in range(8):
        found.forward((pair, tokens_of(1, seed=seed), {}))
    assert found.replayed == 8
