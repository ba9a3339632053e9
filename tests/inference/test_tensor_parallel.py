"""Two ranks on the CPU say what one does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch
from support.checkpoints import make_llama
from support.families import make_family
from support.model_rig import assert_near, forward_of, ints, sample_of, tokens_of
from support.programs_read import set_samplers
from support.workers import SECONDS, Worker

from inferlet import Sampler
from pie_inference.errors import LoadError
from pie_inference.models.llama import llama, mixtral
from pie_inference.models.sharding import part_of, sharded
from pie_inference.parallel.ranks import Ranks
from pie_py.wire.plan import (
    CopyKv,
    EmbedSampled,
    EmbedText,
    Failed,
    Hello,
    NextDist,
    Plan,
    SwapIn,
    SwapOut,
)

# Norms of heads; caps, windows, outer norms; experts; feed-forward beside attention.
FAMILIES = ("qwen3", "gemma2", "mixtral", "granite")
SIZES = {"kv_pages": 32, "host_pages": 8, "max_batch_tokens": 64}
NONE = ints([])


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    place = tmp_path_factory.mktemp("models")
    biased = make_llama(place / "llama", mlp_bias=True, attention_bias=True)
    tied = make_llama(place / "tied", tied=True)
    return [biased, tied, *(make_family(place / name, name) for name in FAMILIES)]


@pytest.fixture(scope="module")
def workers(folders: list[Path]) -> Iterator[tuple[Worker, Worker]]:
    with Worker() as one, Worker() as two:
        for ranks, worker in enumerate((one, two), 1):
            worker.start(*folders, ranks=ranks, **SIZES)
        yield one, two


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["llama", "tied", *(pytest.param(name, marks=pytest.mark.nightly) for name in FAMILIES)]
)
def test_two_ranks_say_what_one_does(workers: tuple[Worker, Worker], name: str) -> None:
    _check_same(*workers, name)


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
    with Worker() as worker:
        assert isinstance(worker.start(folders[0], ranks=2, **SIZES), Hello)
        (other,) = psutil.Process(worker.process.pid).children()
        other.kill()
        assert worker.process.wait(timeout=SECONDS) == 1


@pytest.mark.slow
def test_heads_that_do_not_divide_are_told(tmp_path: Path) -> None:
    folder = make_llama(tmp_path / "m", heads=3, kv_heads=3, hidden=48)
    with Worker() as worker:
        failed = worker.start(folder, ranks=2, **SIZES)
        assert isinstance(failed, Failed)
        assert "3 attention heads do not divide among 2 ranks" in failed.reason


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


def _plans(model: str) -> Iterator[Plan]:
    """A prompt and decoding, samples that the host does not tell, swaps."""
    lengths = [21, 9]
    count = sum(lengths)
    forward = forward_of(lengths, [*range(21), *range(64, 73)], [[100], [101]])
    positions = ints([*range(21), *range(9)])
    kinds = [Sampler(temperature=0.0), Sampler(top_p=0.9, top_k=20)]
    sampler = set_samplers(kinds, 512, seeds=[[1, 2], [3, 4]])
    yield Plan(
        0, model, [EmbedText(ints(tokens_of(count)), positions, ints(range(count))), forward]
    )
    dist, first = NextDist(ints([100, 101]), ints([7, 5])), sample_of([100, 101], [0, 1], 0, [2, 0])
    yield Plan(1, model, [dist, sampler, first])
    for step in range(4):
        yield Plan(
            2 + step,
            model,
            [
                EmbedSampled(ints([0, 1]), ints([21 + step, 9 + step]), ints([0, 1])),
                forward_of(
                    [1, 1],
                    [21 + step, 64 + 9 + step],
                    [[100], [101]],
                    page_starts=[0, 2, 3],
                    pages=[0, 1, 4],
                    page_used=[16, 5 + step, 9 + step],
                ),
                sample_of([100, 101], [0, 1], 1 + step, top=[2, 0]),
            ],
        )
    yield Plan(9, model, [SwapOut(ints([4]), ints([2])), CopyKv(ints([0, 1]), ints([64, 65]))])
    yield Plan(10, model, [SwapIn(ints([2]), ints([9])), NextDist(ints([5000]), ints([1]))])


def _check_same(one: Worker, two: Worker, model: str) -> None:
    """Runs the plans by both; what they say differs by rounding alone."""
    for plan in _plans(model):
        for found, wanted in zip(two.run(plan), one.run(plan), strict=True):
            assert_near(found, wanted, probabilities=2e-5)
