"""Two ranks on the CPU say what one does."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
import zmq
from support.checkpoints import make_llama
from support.families import make_family
from support.model_rig import ints, offsets, tokens_of

from pie_inference.errors import LoadError
from pie_inference.models.llama import llama
from pie_inference.models.mixtral import mixtral
from pie_inference.models.sharding import part_of, sharded
from pie_inference.parallel.ranks import Ranks
from pie_py.wire.messages import decode, encode
from pie_py.wire.plan import (
    BatchResult,
    CopyKv,
    EmbedSampled,
    EmbedText,
    Failed,
    Forward,
    Hello,
    LoadAdapter,
    NextDist,
    Plan,
    PlanResult,
    Sample,
    SetSampler,
    Stop,
    SwapIn,
    SwapOut,
)

FAMILIES = ("qwen3", "gemma2", "mixtral")  # norms of heads; caps, windows, outer norms; experts
SECONDS = 100
NONE = ints([])


class Worker:
    """A worker process on a socket."""

    def __init__(self, sources: Sequence[Path], ranks: int, **config: Any) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="pie-")
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.RCVTIMEO, SECONDS * 1000)
        self._socket.setsockopt(zmq.LINGER, 0)
        endpoint = f"ipc://{self._folder.name}/worker"
        self._socket.bind(endpoint)
        size = {"kv_pages": 32, "host_pages": 8, "embeds": 256, "max_batch_tokens": 64}
        models = [{"source": str(source), **size, **config} for source in sources]
        options = {"models": models, "threads": 1, "tensor_parallel_size": ranks}
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "pie_inference", "--connect", endpoint),
                *("--config", json.dumps(options)),
            ]
        )
        self.first = decode(self._socket.recv())

    def run(self, plan: Plan) -> list[BatchResult]:
        self._socket.send(encode(plan))
        results: list[BatchResult] = []
        while True:
            part = decode(self._socket.recv())
            assert isinstance(part, PlanResult)
            results += part.results
            if part.last:
                return results

    def ask(self, message: LoadAdapter) -> Any:
        self._socket.send(encode(message))
        return decode(self._socket.recv())

    def stop(self) -> int:
        self._socket.send(encode(Stop()))
        return self.process.wait(timeout=SECONDS)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._socket.close()
        self._context.term()
        self._folder.cleanup()


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


def plans(model: str) -> Iterator[Plan]:
    """A prompt and decoding, samples that the host does not tell, swaps."""
    lengths = [21, 9]
    count = sum(lengths)
    forward = Forward(
        input_starts=offsets(lengths),
        inputs=ints(range(count)),
        page_starts=ints([0, 0, 0]),
        pages=NONE,
        page_used=NONE,
        has_masked=ints([0, 0]),
        output_slots=ints([*range(21), *range(64, 73)]),
        output_starts=ints([0, 1, 2]),
        outputs=ints([100, 101]),
        mask_starts=ints([0, 0, 0]),
        mask=NONE,
    )
    positions = ints([*range(21), *range(9)])
    sampler = SetSampler(
        samplers=ints([0, 1]),
        numbers=np.array([[0, 1, 0], [1, 0.9, 0]], np.float32),
        top_k=ints([0, 20]),
        seeds=np.array([[1, 2], [3, 4]], np.uint32),
        rows=ints([-1, -1]),
    )
    yield Plan(
        0, model, [EmbedText(ints(tokens_of(count)), positions, ints(range(count))), forward]
    )
    yield Plan(1, model, [NextDist(ints([100, 101]), ints([7, 5])), sampler, sample(0, [100, 101])])
    for step in range(4):
        yield Plan(
            2 + step,
            model,
            [
                EmbedSampled(ints([0, 1]), ints([21 + step, 9 + step]), ints([0, 1])),
                Forward(
                    input_starts=ints([0, 1, 2]),
                    inputs=ints([0, 1]),
                    page_starts=ints([0, 2, 3]),
                    pages=ints([0, 1, 4]),
                    page_used=ints([16, 5 + step, 9 + step]),
                    has_masked=ints([0, 0]),
                    output_slots=ints([21 + step, 64 + 9 + step]),
                    output_starts=ints([0, 1, 2]),
                    outputs=ints([100, 101]),
                    mask_starts=ints([0, 0, 0]),
                    mask=NONE,
                ),
                sample(1 + step, [100, 101]),
            ],
        )
    yield Plan(9, model, [SwapOut(ints([4]), ints([2])), CopyKv(ints([0, 1]), ints([64, 65]))])
    yield Plan(10, model, [SwapIn(ints([2]), ints([9])), NextDist(ints([5000]), ints([1]))])


def sample(step: int, embeds: list[int]) -> Sample:
    return Sample(
        embeds=ints(embeds),
        samplers=ints([0, 1]),
        steps=np.full(2, step, np.uint32),
        top=ints([2, 0]),
        masked=ints([-1, -1]),
        masks=np.zeros((0, 0), np.uint32),
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "tied", *FAMILIES])
def test_two_ranks_say_what_one_does(workers: tuple[Worker, Worker], name: str) -> None:
    one, two = workers
    for plan in plans(name):
        for found, wanted in zip(two.run(plan), one.run(plan), strict=True):
            assert found.error == wanted.error
            if wanted.distributions is not None:
                assert found.distributions is not None
                np.testing.assert_allclose(
                    found.distributions.probabilities,
                    wanted.distributions.probabilities,
                    atol=2e-5,
                )
            if wanted.samples is not None:
                assert found.samples is not None
                np.testing.assert_array_equal(found.samples.tokens, wanted.samples.tokens)
                np.testing.assert_allclose(
                    found.samples.logprobs, wanted.samples.logprobs, atol=1e-3
                )


@pytest.mark.slow
def test_what_two_ranks_are_described_as(workers: tuple[Worker, Worker]) -> None:
    one, two = (worker.first for worker in workers)
    assert isinstance(one, Hello)
    assert isinstance(two, Hello)
    for alone, shared in zip(one.models, two.models, strict=True):
        assert (shared.heads, shared.kv_pages) == (alone.heads, alone.kv_pages)
        assert set(alone.traits) - set(shared.traits) == {"adapter", "introspect"}
    answer = workers[1].ask(LoadAdapter("llama", 0, "/nowhere"))
    assert "tensor_parallel_size" in answer.error


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
