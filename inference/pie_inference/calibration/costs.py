"""Costs of holding, moving and recomputing pages on this machine, measured when a model is loaded:
the prior of what the control process learns while it serves.

InferCept (Abhyankar et al. 2024, section 4) weighs these against each other: keeping the pages of a
program that waits outside, swapping them, or discarding and computing them again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from pie_inference.calibration import run_trial
from pie_inference.handlers.base import ServedModel

SECONDS = 0.3  # after this long only what is under way is finished
SWAP_BYTES = 8 << 20  # moved at once, at most
REPEATS = 3  # the fastest counts
REPEAT_SECONDS = 0.04  # of one trial's repeats, after which there is no further one
PREFILLS = (16, 64, 256, 1024, 4096)  # tokens of one sequence
LEAST = 3  # of these, even if the time is up, unless one takes longer than this
LONG_SECONDS = 0.5
DECODES = (1, 8, 32, 128)  # sequences


def measure(
    model: ServedModel, settle: Callable[[int, int], None] = lambda inputs, sequences: None
) -> dict[str, Any]:
    """Measures a model before it serves; it overwrites what is in the pools. `settle` is called
    before a forward of so many inputs of so many sequences.

    Returns:
        `page_bytes`, `page_size`; `out_beside_kernels`: whether the device goes on while pages
        leave, so that what a batch of them takes is not their time; `swap_out` and `swap_in`,
        either `{seconds, bytes_per_second}` (a fixed part and a rate) or None without host memory;
        `prefill`, `{tokens, seconds, fit}`: times of one sequence without context, and
        `[c, a, b]` of `c + a·n + b·n²`, which comes near them; `decode`, `{sequences, seconds}`:
        times of a step of as many sequences.
    """
    shape, description = model.network.shape, model.description
    most = min(description.max_batch_tokens, model.embeds.size, shape.max_position)
    with torch.inference_mode():
        swaps = _measure_swaps(model)
        end = time.perf_counter() + SECONDS
        steps = [[1] * n for n in DECODES if n <= most]
        decodes = _series(model, steps, end - SECONDS / 2, settle)
        prompts = [[n] for n in PREFILLS if n <= most] or [[most]]
        prefills = _series(model, prompts, end, settle, LEAST)
    tokens = [lengths[0] for lengths, _ in prefills]
    seconds = [taken for _, taken in prefills]
    return {
        "page_bytes": model.host.page_bytes,
        "page_size": model.cache.page_size,
        "out_beside_kernels": model.device.type == "cuda",
        **swaps,
        "prefill": {"tokens": tokens, "seconds": seconds, "fit": fit(tokens, seconds)},
        "decode": {
            "sequences": [len(lengths) for lengths, _ in decodes],
            "seconds": [taken for _, taken in decodes],
        },
    }


def fit(tokens: list[int], seconds: list[float]) -> list[float]:
    """`[c, a, b]`, none negative, so that `c + a·n + b·n²` comes near the times, relative to each.

    Of too few points, or noisy ones, fewer terms are made: the linear one is always there.
    """
    n, wanted = np.array(tokens, np.float64), np.array(seconds, np.float64)
    terms = np.stack([np.ones_like(n), n, n * n], axis=1) / wanted[:, None]
    for chosen in ([0, 1, 2], [1, 2], [0, 1], [1]):
        if len(chosen) > len(tokens):
            continue
        found = np.linalg.lstsq(terms[:, chosen], np.ones_like(n), rcond=None)[0]
        if (found >= 0).all() and found[chosen.index(1)] > 0:
            coefficients = np.zeros(3)
            coefficients[chosen] = found
            return [float(c) for c in coefficients]
    return [0.0, float((wanted / n).mean()), 0.0]


def _measure_swaps(model: ServedModel) -> dict[str, Any]:
    host = model.host
    most = min(host.pages, model.cache.pages, max(2, SWAP_BYTES // host.page_bytes))
    if not most:
        return {"swap_out": None, "swap_in": None}
    ids = np.arange(most, dtype=np.int32)
    return {
        "swap_out": _rate(model, most, lambda n: host.swap_out(ids[:n], ids[:n])),
        "swap_in": _rate(model, most, lambda n: host.swap_in(ids[:n], ids[:n])),
    }


def _rate(model: ServedModel, most: int, swap: Callable[[int], None]) -> dict[str, float]:
    """The fixed part and the rate of moving pages, from the times of one page and of many."""
    size = model.host.page_bytes
    one, many = _fastest(model, lambda: swap(1)), _fastest(model, lambda: swap(most))
    if most == 1 or many <= one:  # too few to say
        return {"seconds": 0.0, "bytes_per_second": most * size / many}
    rate = (most - 1) * size / (many - one)
    return {"seconds": max(0.0, one - size / rate), "bytes_per_second": rate}


def _series(
    model: ServedModel,
    trials: list[list[int]],
    end: float,
    settle: Callable[[int, int], None],
    least: int = 1,
) -> list[tuple[list[int], float]]:
    """Times of steps of growing size, until the time is up; the first is always there."""
    found: list[tuple[list[int], float]] = []
    for lengths in trials:
        last = found[-1][1] if found else 0.0
        enough = len(found) >= least or last > LONG_SECONDS
        late = enough and time.perf_counter() + 4 * last > end
        if model.ranks.agree(late, model.device):
            break
        settle(sum(lengths), len(lengths))
        found.append((lengths, _fastest(model, lambda: run_trial(model, lengths), end)))  # noqa: B023
    return found


def _fastest(model: ServedModel, run: Callable[[], None], end: float = float("inf")) -> float:
    """The shortest of a few times, or the first if there is no time for more: memory of its size is
    mapped then.
    """
    times: list[float] = []
    for _ in range(REPEATS + 1):
        start = time.perf_counter()
        run()
        if model.device.type == "cuda":
            torch.cuda.synchronize(model.device)
        times.append(time.perf_counter() - start)
        late = time.perf_counter() > end or sum(times[1:]) > REPEAT_SECONDS
        if model.ranks.agree(late, model.device):
            break
    return min(times[1:] or times)
