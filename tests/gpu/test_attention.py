"""FlashInfer's kernels, and graphs of them, beside PyTorch's attention on the same GPU."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
import torch
from support.checkpoints import make_llama
from support.families import FAMILIES, make_family
from support.model_rig import Rig, Step, Stream, runs_of, tokens_of

from pie_inference.attention.flashinfer import FlashInferAttention
from pie_inference.cuda.decode_graphs import DecodeGraphs, GraphCapture
from pie_inference.cuda.kernels import flashinfer_kernels
from pie_py.config.model import FlashInferConfig

Pair: TypeAlias = tuple[Stream, Stream]  # one sequence in both rigs

# bfloat16 has 8 bits: rounding must not decide. The simulated GPU computes in float32, too.
IS_SIMULATED = torch.cuda.is_available() and torch.cuda.get_device_name() == "a simulated GPU"
DEVIATION = 0.2 if IS_SIMULATED else 0.05
SERVED: dict[str, Any] = {"device": "cuda", "dtype": "float32" if IS_SIMULATED else "bfloat16"}
TOLERANCE = 2e-4 if IS_SIMULATED else 4e-2  # of the largest logit
ROUTED = TOLERANCE if IS_SIMULATED else 0.4  # where rounding may choose another expert


class Twins:
    """Two rigs of one model with the same pages: PyTorch's attention, and FlashInfer's."""

    def __init__(
        self,
        folder: Path,
        graphs: bool = False,
        *,
        tolerance: float,
        served: dict[str, Any],
        **config: object,
    ) -> None:
        """Loads a model twice.

        Args:
            folder: its checkpoint.
            graphs: whether decoding steps are recorded.
            tolerance: of logits, relative to the largest of them.
            served: further fields of both models' `ModelConfig`.
            config: fields of `FlashInferConfig`.
        """
        library = pytest.importorskip("flashinfer")
        self._tolerance = tolerance
        settings = {**served, "attention": "torch"}
        self.plain = Rig(folder, page_size=8, pages=200, **settings)
        self.paged = Rig(folder, page_size=8, pages=200, **settings)
        model = self.paged.model
        shape = model.network.shape
        options = FlashInferConfig.model_validate(config)
        attention = FlashInferAttention(model.cache, shape.heads, shape.attention, options, library)
        with torch.inference_mode():
            model.network.use(flashinfer_kernels(options, library))
        recorded = None
        if graphs and model.network.graphable:
            with torch.inference_mode():
                recorded = DecodeGraphs(
                    model.network,
                    model.embeds,
                    attention,
                    [1, 2, 4, 8],
                    GraphCapture.on(model.device),
                )
        self.paged.model = dataclasses.replace(model, attention=attention, graphs=recorded)
        self.replayed = 0
        if recorded is not None:
            run = recorded.run

            def counting(*arguments: Any) -> bool:
                done = run(*arguments)
                self.replayed += done
                return done

            recorded.run = counting  # type: ignore[method-assign,assignment]  # counts its calls

    def sequence(self, tokens: int) -> Pair:
        return self.plain.sequence(tokens), self.paged.sequence(tokens)

    def forward(self, *steps: tuple[Pair, list[int], dict[str, Any]]) -> None:
        """Runs steps in both and compares logits."""
        found = [
            rig.forward(*(Step(pair[side], tokens, **options) for pair, tokens, options in steps))
            for side, rig in enumerate((self.plain, self.paged))
        ]
        for wanted, logits in zip(*found, strict=True):
            assert logits.isfinite().all()
            largest = max([1.0, *wanted.abs().flatten().tolist()])
            torch.testing.assert_close(logits, wanted, atol=self._tolerance * largest, rtol=0)

    def mask(self, pair: Pair, hidden: list[int]) -> None:
        self.plain.mask(pair[0], hidden)
        self.paged.mask(pair[1], hidden)


def twins_of(folder: Path, **options: Any) -> Twins:
    return Twins(
        folder,
        tolerance=ROUTED if any(name in folder.name for name in ("mixtral", "moe")) else TOLERANCE,
        **{"served": SERVED, **options},
    )


def mixed_batches(twins: Twins) -> None:
    rng = np.random.default_rng(0)
    pairs = [twins.sequence(100) for _ in range(4)]
    for turn in range(10):
        chosen = [i for i in range(4) if turn > 5 or rng.random() < 0.7] or [0]
        steps: list[tuple[Pair, list[int], dict[str, Any]]] = []
        for i in chosen:
            count = 1 if turn > 5 else int(rng.choice([1, 1, 2, 9, 17]))
            outputs = int(rng.integers(0, count + 1))
            keep = rng.random() < 0.8
            steps.append(
                (pairs[i], tokens_of(count, seed=turn * 8 + i), {"outputs": outputs, "keep": keep})
            )
        twins.forward(*steps)


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("model") / request.param
    return make_family(place, request.param, head_dim=64, initializer_range=DEVIATION)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama") / "model"
    return make_llama(folder, head_dim=128, heads=8, kv_heads=2, deviation=DEVIATION)


@pytest.mark.parametrize("graphs", [False, True])
def test_every_family_in_mixed_batches(folder: Path, graphs: bool) -> None:
    found = twins_of(folder, graphs=graphs)
    mixed_batches(found)
    assert (found.replayed > 0) == (graphs and found.paged.model.network.graphable)


def test_rules_of_every_kind_in_one_batch(folder: Path) -> None:
    twins = twins_of(folder)
    rng = np.random.default_rng(1)
    plain, masked, odd, ruled, single, jumbled = (twins.sequence(100) for _ in range(6))
    twins.forward(*((p, tokens_of(30, seed=i), {}) for i, p in enumerate((plain, masked, odd))))
    twins.forward(*((p, tokens_of(21, seed=9 + i), {}) for i, p in enumerate((ruled, single))))
    twins.mask(masked, [0, 5, 8, 9, 29])
    for turn in range(3):
        rows = rng.random((5, 21 + 5 * turn + 5)) < 0.6
        rows[2] = False  # sees nothing
        one = rng.random((1, 22 + turn)) < 0.5
        far = list(range(200 + 40 * turn, 204 + 40 * turn))
        twins.forward(
            (plain, tokens_of(1, seed=turn), {}),
            (masked, tokens_of(1 + turn, seed=20 + turn), {"masked": True, "outputs": 1}),
            (odd, tokens_of(4, seed=30 + turn), {"positions": far, "outputs": 4}),
            (ruled, tokens_of(5, seed=40 + turn), {"mask": runs_of(rows), "outputs": 5}),
            (single, tokens_of(1, seed=50 + turn), {"mask": runs_of(one)}),
            (jumbled, tokens_of(3, seed=60 + turn), {"positions": [9, 3, 5], "outputs": 3}),
        )
    twins.forward((single, tokens_of(1), {"mask": runs_of(np.zeros((1, 25), np.bool_))}))
    twins.forward((odd, tokens_of(1), {"positions": [500]}), (plain, tokens_of(1), {}))


def test_pages_that_are_not_full_amid_the_context(llama: Path) -> None:
    twins = twins_of(llama, graphs=True)
    first, second = twins.sequence(50), twins.sequence(50)
    twins.forward((first, tokens_of(13), {}), (second, tokens_of(9), {}))
    for side in (0, 1):  # the second goes on from the first's pages, the last of them with a gap
        stream, other = second[side], first[side]
        pages, used = other.page_list()
        own_pages, own_used = stream.page_list()
        joined = (pages + own_pages, used + own_used)
        stream.page_list = functools.partial(lambda both: both, joined)  # type: ignore[method-assign]  # of both streams
    twins.forward((second, tokens_of(4, seed=3), {"outputs": 4}), (first, tokens_of(1), {}))
    assert not twins.replayed


def test_steps_of_every_size_share_buffers(llama: Path) -> None:
    twins = twins_of(llama, graphs=True)
    pairs = [twins.sequence(60) for _ in range(8)]
    twins.forward(*((p, tokens_of(3 + i, seed=i), {}) for i, p in enumerate(pairs)))
    rng = np.random.default_rng(0)
    for turn in range(12):
        chosen = rng.permutation(8)[: int(rng.integers(1, 9))]
        twins.forward(*((pairs[i], tokens_of(1, seed=turn * 8 + i), {}) for i in chosen))
    assert twins.replayed == 12


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
    found = twins_of(llama, graphs=True, **options)
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
        deviation=DEVIATION,
    )
    mixed_batches(twins_of(folder, graphs=True))


def test_8_bit_keys(llama: Path) -> None:
    capability = torch.cuda.get_device_capability()
    if capability < (8, 9):
        pytest.skip("this GPU has no 8-bit floats")
    mixed_batches(twins_of(llama, graphs=True, served={**SERVED, "kv_dtype": "fp8"}))
