"""`kernels`: what the worker's C kernels of each kind of CPU save, on one that runs several."""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from time import process_time

import numpy as np
import torch

from benchmarks import options
from benchmarks.benchmark import Benchmark, Progress
from pie_inference import handlers
from pie_inference.handlers.base import ServedModel
from pie_inference.layers import native
from pie_inference.layers.variants import VARIANTS, variant_flags
from pie_inference.loading.assembly import load_models
from pie_py.bench.report import Goal, Report
from pie_py.config.model import ModelConfig
from pie_py.wire.plan import EmbedText, Forward

PROMPT, TOKENS, PAGE = 256, 32, 16
WORK = ("prefill", "decode")
# PyTorch's products as on a CPU that has no more.
_OLD = {"MKL_CBWR": "COMPATIBLE", "ATEN_CPU_CAPABILITY": "default"}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The kernels of each kind of CPU that this one includes, and none, in turns."""

    model: ModelConfig = options.model("smollm2")
    rounds: int = options.rounds(3)


def kernels(settings: Settings, progress: Progress) -> Report:
    """Measures prompts and steps of one sequence, each time in a new process."""
    flags = set(Path("/proc/cpuinfo").read_text().split())
    mine = [name for name, needed in VARIANTS.items() if flags.issuperset(needed)]
    found: dict[tuple[str, bool], list[list[float]]] = {
        side: [] for side in product(mine, (True, False))
    }
    progress.expect(settings.rounds * len(found))
    for _, side in product(range(settings.rounds), found):
        with ProcessPoolExecutor(1, get_context("spawn")) as child:
            found[side].append(child.submit(_times, settings.model, *side).result())
        progress(side[0] if side[1] else f"none on {side[0]}")
    columns = ["kernels", *(f"{work}{of}" for work in WORK for of in ("", ", none"))]
    report = Report(f"Kernels, {PROMPT} tokens, CPU ms, one thread", columns)
    for name in mine:
        own, none = (
            [*map(median, zip(*found[name, with_it], strict=True))] for with_it in (True, False)
        )
        report.rows.append([name, *(ms for pair in zip(own, none, strict=True) for ms in pair)])
        for work, ms, without in zip(WORK, own, none, strict=True):
            report.goals.append(Goal(f"{work} of {name} over none", ms / without, 1))
    return report


@torch.inference_mode()
def _times(config: ModelConfig, variant: str, with_it: bool) -> list[float]:
    """Of a prompt, and of a step behind it."""
    os.environ.update({} if with_it else {"CC": "none"}, **_OLD if variant == "sse2" else {})
    vars(native).update(FLAGS=variant_flags(variant))
    torch.set_num_threads(1)
    dtype = "bfloat16" if "avx512_bf16" in VARIANTS[variant] else "float32"
    served = {"dtype": dtype, "kv_pages": 32, "page_size": PAGE, "embeds": 1024}
    model = load_models([config.model_copy(update=served)])[0]
    found: list[list[float]] = [[], []]
    for first, count in [(0, PROMPT)] * 3 + [(PROMPT + i, 1) for i in range(TOKENS)]:
        begin = process_time()
        _forward(model, count, first)
        found[count == 1].append((process_time() - begin) * 1e3)
    return [median(each) for each in found]


def _forward(model: ServedModel, count: int, first: int) -> None:
    """Runs so many tokens from a place on, to the last one's logits; page `i` is sequence's `i`."""
    places = np.arange(first, first + count, dtype=np.int32)
    inputs = np.arange(count, dtype=np.int32)
    held = -(-first // PAGE)
    used = np.minimum(PAGE, first - np.arange(held, dtype=np.int32) * PAGE).astype(np.int32)
    none = np.zeros(2, np.int32)
    text = EmbedText(np.full(count, 100, np.int32), places, inputs)
    handlers.embeds.embed_text(model, text)
    handlers.forward.forward(
        model,
        Forward(
            input_starts=np.array([0, count], np.int32),
            inputs=inputs,
            page_starts=np.array([0, held], np.int32),
            pages=np.arange(held, dtype=np.int32),
            page_used=used,
            has_masked=none[:1],
            output_slots=places,
            output_starts=np.array([0, 1], np.int32),
            outputs=inputs[-1:],
            mask_starts=none,
            mask=none[:0],
        ),
    )
    model.network.logits(model.embeds.read(inputs[-1:]))


BENCHMARK = Benchmark(Settings, kernels)
