"""Every kind of batch on a GPU beside the same on the CPU, in float32: results must be the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.checkpoints import make_adapter, make_llama
from support.engine_plans import (
    BUILT_IN,
    NONE,
    begin,
    decoding,
    engine_of,
    forward,
    landed,
    sample,
    samplers,
)
from support.model_rig import assert_near, ints
from support.programs_read import set_samplers

from inferlet import Sampler
from pie_inference.serving.engine import Engine
from pie_py.config.model import ModelConfig
from pie_py.wire.plan import (
    Batch,
    BatchResult,
    Clear,
    CopyEmbed,
    CopyKv,
    EmbedSampled,
    FeedSampler,
    LoadAdapter,
    MaskKv,
    NextDist,
    Plan,
    SwapIn,
    SwapOut,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llama(tmp_path_factory.mktemp("model") / "llama", head_dim=64)


class Both:
    """One worker's engine on the CPU and one on the GPU, which are given the same plans."""

    def __init__(self, folder: Path, **config: Any) -> None:
        self.cpu, self.gpu = (
            engine_of(folder, device=device, **{"dtype": "float32", **config})
            for device in ("cpu", "cuda")
        )
        self._number = 0

    def run(self, *batches: Batch) -> list[BatchResult]:
        """Results of the CPU, which those of the GPU are near."""
        self._number += 1
        plan = Plan(self._number, "m", list(batches))
        wanted, found = self.cpu.run(plan).results, landed(self.gpu, plan)
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            assert_near(one, other)
        return wanted


@pytest.mark.parametrize("fused_sampling", [True, False])
def test_every_kind_of_batch(folder: Path, fused_sampling: bool) -> None:
    both = Both(folder, fused_sampling=fused_sampling)
    assert (both.gpu.served("m").fused_sampling is not None) == fused_sampling
    both.run(*forward(0, 40, 0, output=1000), NextDist(ints([1000, 1000]), ints([10, 3])))
    both.run(samplers(8))
    for step in range(4):
        both.run(
            sample(8, step, 1000),
            sample(BUILT_IN, step, 1000),
            FeedSampler(ints([5]), ints([0]), np.zeros(1, np.uint32), ints([0, 2]), ints([7, 8])),
        )
    sampled = EmbedSampled(ints(range(8)), ints(range(40, 48)), ints(range(500, 508)))
    step_two = forward(
        1,
        8,
        0,
        used=40,
        output=1001,
        inputs=ints(range(500, 508)),
        observed=ints([3]),
        detail=ints([2]),
    )[1]
    both.run(sampled, step_two, NextDist(ints([1001]), ints([5])))
    both.run(MaskKv(ints([0]), np.array([0b1011], np.uint32)))
    both.run(*forward(2, 1, 0, used=48, output=1002), NextDist(ints([1002]), ints([5])))
    both.run(
        CopyKv(ints(range(16)), ints(range(160, 176))),
        CopyEmbed(ints([1002]), ints([-1]), ints([7])),
    )
    both.run(SwapOut(ints([10, 1]), ints([3, 9])))
    both.run(Clear(ints(range(160, 176)), ints([1000]), NONE))
    both.run(SwapIn(ints([3]), ints([12])), *forward(3, 2, 12, used=16, output=1003))
    both.run(NextDist(ints([1003, 7]), ints([5, 5])))


def test_masks_and_a_failing_batch_amid_others(folder: Path) -> None:
    both = Both(folder)
    rule = ints([2, 0, 1, 2, 1, 1])
    both.run(
        *forward(0, 2, 0, output=1000, mask=ints([2, 0, 2, 2, 1, 1]), mask_starts=ints([0, 6])),
        NextDist(ints([1000]), ints([5])),
    )
    found = both.run(
        *forward(1, 2, 4, output=1001, mask=rule, mask_starts=ints([0, 6])),
        NextDist(ints([5000]), ints([5])),
        *forward(2, 3, 8, output=1002),
        NextDist(ints([1002]), ints([5])),
    )
    assert found[1].error
    assert found[2].error
    assert not found[5].error


def test_adapters(folder: Path, tmp_path: Path) -> None:
    adapter = make_adapter(folder, tmp_path / "a", target_modules=["q_proj", "down_proj"])
    both = Both(folder)
    order = LoadAdapter("m", 3, str(adapter))
    assert both.cpu.load_adapter(order).error is None
    assert both.gpu.load_adapter(order).error is None
    plain = both.run(*forward(0, 5, 0, output=1000), NextDist(ints([1000]), ints([5])))
    changed = both.run(
        *forward(0, 5, 0, output=1000, adapters=ints([3])), NextDist(ints([1000]), ints([5]))
    )
    first, second = plain[-1].values, changed[-1].values
    assert first is not None
    assert second is not None
    assert not np.allclose(first.probabilities, second.probabilities, atol=1e-3)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_many_plans_in_flight(folder: Path, dtype: str) -> None:
    """As the scheduler sends them, and more: the result is that of one after the other."""
    settings = {"source": str(folder), "name": "m", "device": "cuda", "kv_pages": 64}
    sizes = {"embeds": 2048, "dtype": dtype, "graph_batch": 8}
    engine = Engine([ModelConfig.model_validate({**settings, **sizes})])
    chosen = set_samplers([Sampler(temperature=0.0)] * 3, 512)
    texts = []
    for most in (0, 2, 10):
        begin(engine, chosen)
        flights: list[Any] = []
        tokens: list[list[int]] = []
        for number, batches in enumerate(decoding(12)):
            flights.append(engine.start(Plan(10 + number, "m", batches)))
            while len(flights) > most:
                tokens.append(_tokens(flights.pop(0)))
        tokens += [_tokens(flight) for flight in flights]
        texts.append(tokens)
    assert texts[0] == texts[1] == texts[2]


def _tokens(flight: Any) -> list[int]:
    results: list[BatchResult] = []
    while not (part := flight.take(wait=True)) or not part.last:
        results += part.results if part else []
    results += part.results
    assert results[-1].values is not None
    found: list[int] = results[-1].values.tokens.tolist()
    return found
