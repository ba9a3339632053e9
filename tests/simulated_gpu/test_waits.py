"""The host hands a plan to the GPU without waiting for it: what makes it wait is named here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.checkpoints import make_adapter, make_llama
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
from support.families import make_family
from support.image_batches import embed_image
from support.image_checkpoints import as_file, make_image_checkpoint, picture
from support.model_rig import Rig, ints
from support.programs_read import set_samplers

from inferlet import Sampler
from pie_inference.serving.engine import Engine
from pie_inference.serving.flight import Flight
from pie_py.wire.plan import (
    Again,
    Batch,
    BatchResult,
    Clear,
    CopyEmbed,
    CopyKv,
    EmbedSampled,
    FeedSampler,
    Forward,
    LoadAdapter,
    MaskKv,
    NextDist,
    Plan,
    PlanResult,
    SetSampler,
    SwapIn,
    SwapOut,
)
from simulated_gpu import kernels
from simulated_gpu.driver import device

NONE = ints([])
# Families of which each has a kernel, or a way of choosing experts, that no other one here has.
DIFFERENT = ("llama-yarn", "gemma2", "gemma3", "qwen2-window", "mixtral", "qwen3-moe")


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


def test_further_steps_of_a_plan(engine: Engine) -> None:
    """The next one is handed over without a wait for the one before, and can be left out."""
    steps = list(decoding(4))
    again = [Again(batch.output_slots) for _, batch, _ in steps[1:] if isinstance(batch, Forward)]

    begin(engine, alike(3))
    alone = [landed(engine, Plan(5, "m", step))[-1].samples for step in steps]
    begin(engine, alike(3))
    assert not waits(engine, *steps[0], *again)
    begin(engine, alike(3))
    flight = engine.start(Plan(6, "m", [*steps[0], *again]))
    assert isinstance(flight, Flight)
    engine.go_on(flight)
    assert flight.has_more
    flight.cut()
    found: list[BatchResult] = []
    while (part := flight.take(wait=True)) is None or not part.last:
        found += part.results if part is not None else []
    found += part.results
    tokens = [result.samples.tokens.tolist() for result in found if result.samples is not None]
    assert tokens == [samples.tokens.tolist() for samples in alone[:2] if samples is not None]


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


def test_masks(engine: Engine) -> None:
    """FlashInfer packs them on the device, and asks for offsets that it has computed there."""
    rule = ints([2, 0, 2, 2, 1, 1])
    found = waits(engine, *forward(1, 2, 4, output=1001, mask=rule, mask_starts=ints([0, 6])))
    assert not found or engine.served("m").graphs is not None


def test_adapters_and_observed_attention(engine: Engine, tmp_path: Path) -> None:
    folder = Path(engine.served("m").description.folder)
    adapter = make_adapter(folder, tmp_path / "a", target_modules=["q_proj", "down_proj"])
    assert engine.load_adapter(LoadAdapter("m", 3, str(adapter))).error is None
    assert not waits(engine, *forward(0, 5, 0, output=1000, adapters=ints([3])))
    observed: dict[str, Any] = {"observed": ints([3]), "detail": ints([2])}
    assert not waits(engine, *forward(0, 5, 0, output=1000, **observed))


@pytest.mark.parametrize("family", DIFFERENT)
def test_families(family: str, tmp_path: Path) -> None:
    folder = make_family(tmp_path / "model", family, head_dim=64)
    before = set(kernels.loaded)  # by tests that compile nothing ahead
    engine = engine_of(folder, device="cuda", dtype="bfloat16", graph_batch=4)
    asked = waits(engine, *forward(0, 40, 0, output=1000))
    asked += waits(engine, *forward(1, 1, 0, used=40, output=1001))
    assert not asked
    assert engine.served("m").graphs is not None
    # Nothing is compiled while somebody waits for it.
    assert kernels.loaded - before <= kernels.compiled


@pytest.mark.parametrize("kind", ["clip-llama", "idefics3", "qwen3-vl"])
def test_images(kind: str, tmp_path: Path) -> None:
    rig = Rig(make_image_checkpoint(tmp_path / kind, kind), device="cuda")
    before = len(device.asked)
    with torch.inference_mode():
        embed_image(rig, as_file(picture(100, 40)), 0)
    assert device.asked[before:] == []
