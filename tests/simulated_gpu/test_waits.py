"""The host hands a plan to the GPU without waiting for it: what makes it wait is named here."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.checkpoints import make_llama
from support.engine_plans import (
    BUILT_IN,
    VOCABULARY,
    begin,
    decoding,
    engine_of,
    forward,
    landed,
    sample,
    samplers,
)
from support.model_rig import ints
from support.programs_read import set_samplers

from inferlet import Sampler
from pie_inference.serving.engine import Engine
from pie_py.wire.plan import (
    Batch,
    Clear,
    CopyEmbed,
    CopyKv,
    EmbedSampled,
    FeedSampler,
    MaskKv,
    NextDist,
    Plan,
    PlanResult,
    SetSampler,
    SwapIn,
    SwapOut,
)
from simulated_gpu.driver import device

NONE = ints([])


@pytest.fixture(scope="module", params=[("bfloat16", True), ("float32", True), ("float32", False)])
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """With FlashInfer's attention and graphs, and with PyTorch's; with Triton's sampling, and
    PyTorch's.
    """
    dtype, fused = request.param
    folder = make_llama(tmp_path_factory.mktemp("model") / "llama", head_dim=64, deviation=0.05)
    options = {"dtype": dtype, "fused_sampling": fused, "graph_batch": 8}
    found = engine_of(folder, device="cuda", **options)
    assert (found.served("m").graphs is not None) == (dtype == "bfloat16")
    return found


def waits(engine: Engine, *batches: Batch) -> list[str]:
    """What made the host wait while it handed a plan over. The plan is then carried out."""
    before = len(device.asked)
    flight = engine.start(Plan(1, "m", list(batches)))
    assert not isinstance(flight, PlanResult)
    while flight.has_more:
        engine.go_on(flight)
    found = device.asked[before:]
    while (part := flight.take(wait=True)) is None or not part.last:
        assert part is None or not any(result.error for result in part.results)
    assert not any(result.error or result.refused for result in part.results)
    return found


def alike(count: int, temperature: float = 0, top_p: float = 1, top_k: int = 0) -> SetSampler:
    kind = Sampler(temperature=temperature, top_p=top_p, top_k=top_k)
    return set_samplers([kind] * count, VOCABULARY, seeds=np.arange(2 * count).reshape(count, 2))


def test_prompts_and_distributions(engine: Engine) -> None:
    assert not waits(engine, *forward(0, 40, 0, output=1000), NextDist(ints([1000]), ints([10])))


def test_steps_that_decode(engine: Engine) -> None:
    begin(engine, alike(3))
    for batches in decoding(3):
        assert not waits(engine, *batches)


@pytest.mark.parametrize("engine", [("bfloat16", True)], indirect=True)
@pytest.mark.parametrize(
    "how",
    [{}, {"temperature": 0.7}, {"temperature": 1, "top_p": 0.9, "top_k": 20}],
    ids=["greedy", "free", "filtered"],
)
def test_a_step_that_decodes_is_few_launches(engine: Engine, how: dict[str, Any]) -> None:
    """Whatever its tokens are chosen by: each launch costs the host and the device microseconds."""
    begin(engine, alike(3, **how))
    for batches in decoding(2):
        before = device.launches
        landed(engine, Plan(5, "m", batches))
        assert device.launches - before <= 18


@pytest.mark.parametrize("top_p", [0.1, 0.7])
def test_sampling_of_every_kind(engine: Engine, top_p: float) -> None:
    landed(engine, Plan(1, "m", forward(0, 40, 0, output=1000)))
    chosen = samplers(8, top_p)  # the second is of more tokens than a CPU sorts
    assert not waits(engine, chosen)
    for step in range(2):
        fed = FeedSampler(ints([5]), ints([0]), np.zeros(1, np.uint32), ints([0, 1]), ints([7]))
        assert not waits(engine, sample(8, step, 1000), sample(BUILT_IN, step, 1000), fed)
    assert not waits(engine, EmbedSampled(ints(range(3)), ints([40] * 3), ints(range(3))))


def test_moving(engine: Engine) -> None:
    landed(engine, Plan(1, "m", forward(0, 48, 0, output=1000)))
    assert not waits(
        engine,
        CopyKv(ints(range(16)), ints(range(160, 176))),
        CopyEmbed(ints([1000]), ints([-1]), ints([7])),
        MaskKv(ints([0]), np.array([5], np.uint32)),
        SwapOut(ints([0, 1, 2]), ints([3, 9, 10])),
        Clear(ints(range(48)), ints([1000]), NONE),
        SwapIn(ints([3, 9, 10]), ints([0, 1, 2])),
    )
