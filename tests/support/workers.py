"""A worker's process on a socket, and plans that tell whether two say the same."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import zmq

from inferlet import Sampler
from pie_py.wire.messages import decode, encode
from pie_py.wire.plan import (
    BatchResult,
    CopyKv,
    EmbedSampled,
    EmbedText,
    LoadAdapter,
    NextDist,
    Plan,
    PlanResult,
    Sample,
    Stop,
    SwapIn,
    SwapOut,
)
from support.model_rig import forward_of, ints, tokens_of
from support.programs_read import set_samplers

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
        options: dict[str, Any] = {
            "models": models,
            "threads": 1,
            "tensor_parallel_size": ranks,
        }
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "pie_inference", "--connect", endpoint),
                *("--config", json.dumps(options)),
            ],
            stdin=subprocess.PIPE,
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


def plans(model: str) -> Iterator[Plan]:
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
    yield Plan(1, model, [NextDist(ints([100, 101]), ints([7, 5])), sampler, sample(0, [100, 101])])
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


def check_same(one: Worker, two: Worker, model: str) -> None:
    """Runs the plans by both; what they say differs by rounding alone."""
    for plan in plans(model):
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
