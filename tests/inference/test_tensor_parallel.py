"""Two ranks on the CPU say what one does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch
from support.checkpoints import make_llama
from support.families import make_family
from support.workers import SECONDS, Worker, check_same

from pie_inference.errors import LoadError
from pie_inference.models.llama import llama, mixtral
from pie_inference.models.sharding import part_of, sharded
from pie_inference.parallel.ranks import Ranks
from pie_py.wire.plan import Failed, Hello

# Norms of heads; caps, windows, outer norms; experts; feed-forward beside attention.
FAMILIES = ("qwen3", "gemma2", "mixtral", "cohere")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    place = tmp_path_factory.mktemp("models")
    biased = make_llama(place / "llama", mlp_bias=True, attention_bias=True)
    tied = make_llama(place / "tied", tied=True)
    return [biased, tied, *(make_family(place / name, name) for name in FAMILIES)]


@pytest.fixture(scope="module")
def workers(folders: list[Path]) -> Iterator[tuple[Worker, Worker]]:
    one, two = Worker(folders, 1), Worker(folders, 2)
    yield one, two
    for worker in (one, two):
        worker.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "tied", *FAMILIES])
def test_two_ranks_say_what_one_does(workers: tuple[Worker, Worker], name: str) -> None:
    check_same(*workers, name)


@pytest.mark.slow
def test_what_two_ranks_are_described_as(workers: tuple[Worker, Worker]) -> None:
    one, two = (worker.first for worker in workers)
    assert isinstance(one, Hello)
    assert isinstance(two, Hello)
    for alone, shared in zip(one.models, two.models, strict=True):
        assert (shared.heads, shared.kv_pages) == (alone.heads, alone.kv_pages)
        assert set(alone.traits) - set(shared.traits) == {"adapter", "introspect"}
        assert "tensor_parallel_size" in shared.no_adapters
        assert not alone.no_adapters


@pytest.mark.slow
def test_a_rank_that_dies_takes_the_worker_with_it(folders: list[Path]) -> None:
    worker = Worker(folders[:1], 2)
    try:
        assert isinstance(worker.first, Hello)
        (other,) = psutil.Process(worker.process.pid).children()
        other.kill()
        assert worker.process.wait(timeout=SECONDS) == 1
    finally:
        worker.close()


@pytest.mark.slow
def test_heads_that_do_not_divide_are_told(tmp_path: Path) -> None:
    worker = Worker([make_llama(tmp_path / "m", heads=3, kv_heads=3, hidden=48)], 2)
    try:
        assert isinstance(worker.first, Failed)
        assert "3 attention heads do not divide among 2 ranks" in worker.first.reason
    finally:
        worker.close()


@pytest.mark.slow
def test_all_ranks_end_when_told(workers: tuple[Worker, Worker]) -> None:
    (other,) = psutil.Process(workers[1].process.pid).children()
    assert workers[1].stop() == 0
    assert not other.is_running()


def test_parts_of_all_ranks_are_the_whole() -> None:
    config = {
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 12,
        "vocab_size": 10,
    }
    for spec in (llama(config), mixtral(config)):
        parts = [part_of(spec, Ranks(rank, 2)) for rank in range(2)]
        weight, bias = torch.randn(8, 12), torch.randn(8)
        prefix = "model.layers.0.self_attn."
        rows = [part(f"{prefix}k_proj.weight", weight) for part in parts]
        assert torch.equal(torch.cat(rows), weight)
        columns = [part(f"{prefix}o_proj.weight", weight) for part in parts]
        assert torch.equal(torch.cat(columns, 1), weight)
        assert torch.equal(
            torch.stack([part(f"{prefix}o_proj.bias", bias) for part in parts]).sum(0), bias
        )
        norm = "model.layers.0.input_layernorm.weight"
        assert all(part(norm, bias) is bias for part in parts)
        assert sharded(spec, 2).shape.kv_heads == 1
        with pytest.raises(LoadError, match="divide among 4"):
            sharded(spec, 4)
