"""Measurements of one model, each in a process of its own."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.machine import ceilings
from benchmarks.gpu.shapes import kv_bytes, parameters, write_shape
from benchmarks.gpu.steps import Decoding, prompt
from benchmarks.gpu.timing import seconds_of, settle
from pie_inference.cuda.decode_graphs import POSITIONS, GraphCapture
from pie_inference.handlers.base import ServedModel
from pie_inference.serving.engine import Engine
from pie_inference.serving.flight import Flight
from pie_py.config.model import ModelConfig
from pie_py.wire.plan import Batch, Plan, PlanResult, SwapIn, SwapOut

NAME = "measured"
WARM = 8  # steps that do not count
IN_FLIGHT = 2  # plans, as the scheduler keeps them
# What sequences choose by: the most likely token, and as many models advise.
GREEDY: dict[str, Any] = {}
DRAWN: dict[str, Any] = {"temperature": 0.7, "top_k": 20, "top_p": 0.9}


def engine_for(shape: str, folder: Path, **config: Any) -> Engine:
    """A worker's engine with a model of random weights."""
    source = str(write_shape(shape, folder / shape))
    return Engine([ModelConfig(source=source, name=NAME, load_format="dummy", **config)])


def fly(
    engine: Engine,
    plans: Iterator[list[Batch]],
    most: int = IN_FLIGHT,
    handed: list[float] | None = None,
) -> list[PlanResult]:
    """Runs plans, so many in flight at a time; their last results, in order.

    Args:
        engine: that runs them.
        plans: their batches.
        most: in flight while another is handed over.
        handed: takes the microseconds in which the host handed each over.
    """
    flights: deque[Flight] = deque()
    results: list[PlanResult] = []

    def land() -> None:
        flight = flights.popleft()
        while (part := flight.take(wait=True)) is None or not part.last:
            pass
        results.append(part)

    for number, batches in enumerate(plans):
        start = time.perf_counter()
        started = engine.start(Plan(number, NAME, batches))
        if handed is not None:
            handed.append((time.perf_counter() - start) * 1e6)
        if isinstance(started, PlanResult):
            results.append(started)
            continue
        flights.append(started)
        while len(flights) > most:
            land()
    while flights:
        land()
    for result in results:
        for one in result.results:
            if one.error or one.refused:
                raise RuntimeError(f"a batch failed: {one.error or one.refused}")
    return results


def decode(
    shape: str, folder: Path, counts: Sequence[int], context: int, steps: int, **config: Any
) -> dict[str, Any]:
    """Time per token of sequences that decode together, beside a loop over the same kernels.

    Returns:
        For each count `ms` a step, `ideal_ms`, `over` (a share), `idle_us` (median and 99th
        percentile between steps on the device), `host_us` in which the host hands a step over (more
        than a step's time, and the device waits within it, which `idle_us` does not tell),
        `one_in_flight_ms`, `drawn_ms` where tokens are drawn by chance, and `bandwidth`: bytes per
        second that weights and contexts come to.
    """
    engine = engine_for(shape, folder, **config)
    model = engine.served(NAME)
    layers, head = parameters(shape)
    found: dict[str, Any] = {}
    for count in counts:
        try:
            found[str(count)] = _decode(engine, model, count, context, steps)
        except ValueError as error:  # the pool is too small
            found[str(count)] = {"error": str(error)}
            continue
        read = 2 * (layers + head) + count * context * kv_bytes(shape)
        found[str(count)]["bandwidth"] = read / (found[str(count)]["ms"] / 1e3)
        found[str(count)]["bytes"] = read
    return found


def _decode(
    engine: Engine, model: ServedModel, count: int, context: int, steps: int
) -> dict[str, Any]:
    decoding = Decoding(model, count, context, context + 3 * (WARM + steps) + WARM)
    figures: dict[str, Any] = {}
    for name, most, chosen in (
        ("ms", IN_FLIGHT, GREEDY),
        ("one_in_flight_ms", 0, GREEDY),
        ("drawn_ms", IN_FLIGHT, DRAWN),
    ):
        fly(engine, iter([decoding.begin(**chosen)]))
        fly(engine, (decoding.step() for _ in range(WARM)), most)
        settle(model.device)
        start = time.perf_counter()
        handed: list[float] = []
        results = fly(engine, (decoding.step() for _ in range(steps)), most, handed)
        settle(model.device)
        figures[name] = (time.perf_counter() - start) / steps * 1e3
        if name == "ms":
            idle = sorted(result.idle_ns / 1e3 for result in results[1:])
            figures["idle_us"] = [median(idle), idle[int(len(idle) * 0.99)]]
            figures["host_us"] = median(handed)
            kinds = zip(*(result.results for result in results), strict=True)
            names = ("embed_us", "forward_us", "sample_us")
            for part, of in zip(names, kinds, strict=True):
                figures[part] = median(one.nanoseconds / 1e3 for one in of)
        if name == "drawn_ms":
            figures["draw_us"] = median(one.results[2].nanoseconds / 1e3 for one in results)
    ideal = _ideal(model, count, steps)
    if ideal is not None:
        figures["ideal_ms"] = ideal
        figures["over"] = figures["ms"] / ideal - 1
    return figures


def _ideal(model: ServedModel, count: int, steps: int) -> float | None:
    """Milliseconds a step of a loop that replays one graph: embedding, layers, head, the best
    token.

    Its contexts do not grow: the last step's page table stays.
    """
    if model.graphs is None or count not in model.graphs.steps:
        return None
    step = model.graphs.steps[count]
    tokens = torch.zeros(count, dtype=torch.int64, device=model.device)

    def run() -> None:
        hidden = model.network.embed(tokens)
        found = model.network.forward(hidden, step.rows[POSITIONS], step, None)
        tokens.copy_(model.network.logits(found).argmax(1))

    with torch.inference_mode():
        replay = GraphCapture.on(model.device)(run)

        def loop() -> None:
            for _ in range(steps):
                replay()

        return seconds_of(loop, model.device, 3) / steps * 1e3


def prefill(shape: str, folder: Path, lengths: Sequence[int], **config: Any) -> dict[str, Any]:
    """Prompts of one sequence: `seconds`, `tokens_per_second`, and `matrix` operations a second."""
    most = max(lengths)
    engine = engine_for(shape, folder, max_batch_tokens=most, embeds=most, **config)
    model = engine.served(NAME)
    layers, _ = parameters(shape)
    s = model.network.shape
    found = {}
    for length in lengths:
        results = fly(engine, (prompt(model, length) for _ in range(5)))
        seconds = median(result.results[1].nanoseconds for result in results[1:]) / 1e9
        attention = 2 * 2 * s.layers * s.heads * s.head_dim * length * (length + 1) // 2
        found[str(length)] = {
            "seconds": seconds,
            "tokens_per_second": length / seconds,
            "matrix": (2 * layers * length + attention) / seconds,
        }
    return found


def swap(
    shape: str, folder: Path, count: int, context: int, steps: int, **config: Any
) -> dict[str, Any]:
    """Rates of moving pages, and what moving some in every step costs sequences that decode.

    Returns:
        `out` and `in`, bytes per second; `ms` per step without and `swapping_ms` with swaps of
        `pages` each way; `hidden`, the share of the transfers' time that does not show.
    """
    engine = engine_for(shape, folder, host_memory=4 << 30, **config)
    model = engine.served(NAME)
    host = model.host
    most = min(host.pages, model.cache.pages, 1024)
    ids = np.arange(most, dtype=np.int32)
    found: dict[str, Any] = {"page_bytes": host.page_bytes}
    with torch.inference_mode():
        for name, move in (("out", host.swap_out), ("in", host.swap_in)):
            times = []
            for _ in range(5):
                settle(model.device)
                start = time.perf_counter()
                move(ids, ids)
                settle(model.device)
                times.append(time.perf_counter() - start)
            found[name] = most * host.page_bytes / min(times)
    decoding = Decoding(model, count, context, context + 3 * (WARM + steps))
    free = np.setdiff1d(np.arange(model.cache.pages), decoding.pages).astype(np.int32)
    fly(engine, iter([decoding.begin()]))
    plain = _timed(engine, model, [decoding.step() for _ in range(WARM + steps)])
    # As many pages each way as take half a step.
    pages = max(1, int(plain / 1e3 / 2 * found["in"] / host.page_bytes))
    pages = min(pages, host.pages // 2, free.size // 2)
    out, back = free[:pages], free[pages : 2 * pages]
    hosts = np.arange(2 * pages, dtype=np.int32)
    swaps: list[Batch] = [SwapOut(out, hosts[:pages]), SwapIn(hosts[pages:], back)]
    swapping = _timed(engine, model, [[*swaps, *decoding.step()] for _ in range(WARM + steps)])
    transfer = pages * host.page_bytes * (1 / found["in"] + 1 / found["out"]) * 1e3
    found |= {"pages": pages, "ms": plain, "swapping_ms": swapping}
    found["hidden"] = 1 - max(0.0, swapping - plain) / transfer
    return found


def _timed(engine: Engine, model: ServedModel, plans: list[list[Batch]]) -> float:
    """Milliseconds a plan, without the first ones."""
    fly(engine, iter(plans[:WARM]))
    settle(model.device)
    start = time.perf_counter()
    fly(engine, iter(plans[WARM:]))
    settle(model.device)
    return (time.perf_counter() - start) / (len(plans) - WARM) * 1e3


__all__ = ["ceilings", "decode", "prefill", "swap"]
