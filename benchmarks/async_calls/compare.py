"""`async`: asynchronous function calls beside synchronous ones (AsyncLM, section 6).

The baselines are the paper's: Sync, Sync-Parallel and Async-Naive serve the same requests in turns
with Async.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click

from benchmarks import options
from benchmarks.async_calls import bfcl
from benchmarks.async_calls.drawn import draw
from benchmarks.async_calls.jobs import Job
from benchmarks.async_calls.measure import FORCED_OPTIONS, SIDES, Side, measure
from benchmarks.async_calls.tables import reports
from benchmarks.benchmark import Benchmark, Progress
from pie_py.bench.report import Report
from pie_py.config.model import ModelConfig

PARTS = ("model", "script")
DRAWN = ("parallel", "multi-step", "interrupts")
BFCL = ("v1-parallel", "live-parallel", "multi-turn-base", "multi-step-parallel")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Asynchronous function calls against synchronous ones: latency, correctness, overheads."""

    model: ModelConfig = options.model()
    adapter: str | None = options.option(
        "--adapter",
        type=click.Path(exists=True, file_okay=False),
        metavar="FOLDER",
        help="A LoRA for CML that the model gets, as inferlets/async_function_calling has.",
    )
    parts: tuple[str, ...] = options.some_of(
        "--part",
        PARTS,
        PARTS,
        "The model decides everything, or calls are forced; both by default.",
    )
    workloads: tuple[str, ...] = options.some_of(
        "--workload",
        DRAWN + BFCL,
        DRAWN,
        "Repeatable. The first three, the default, are drawn; the others are BFCL's, always"
        " forced.",
    )
    orders: tuple[str, ...] = options.some_of(
        "--order",
        ("lpt", "given", "random"),
        ("lpt", "random"),
        "Of forced calls that are ready, by the first one on all sides and by each of them on"
        " `async`. Repeatable; LPT and random by default.",
    )
    requests: int = options.count("--requests", 12, "Requests of each workload.")
    longest: int = options.option(
        "--longest", type=click.IntRange(1, 5), default=5, help="Calls of a chain, at most."
    )
    seed: int = options.option("--seed", type=int, default=1)
    folder: str | None = options.option(
        "--bfcl",
        type=click.Path(exists=True, file_okay=False),
        metavar="FOLDER",
        help="Where bfcl-eval is installed, if not beside this program.",
    )
    rounds: int = options.rounds(1)

    @property
    def served(self) -> ModelConfig:
        """The model with its adapter."""
        if self.adapter is None:
            return self.model
        return self.model.model_copy(update={"adapters": {"cml": Path(self.adapter)}})

    @property
    def decided(self) -> list[Side]:
        """Sides on which the model decides everything."""
        return list(SIDES) if "model" in self.parts else []

    @property
    def forced(self) -> list[Side]:
        """Sides whose calls are forced: each mode by the first order, and `async` by all orders."""
        if "script" not in self.parts:
            return []
        return [
            replace(side, order=order)
            for side in SIDES
            for order in (self.orders if side.mode == "async" else self.orders[:1])
        ]


def compare(settings: Settings, progress: Progress) -> list[Report]:
    """Measures the parts that are asked for.

    Raises:
        RuntimeError: if BFCL's sets are asked for and no calls are forced.
    """
    decided, forced = settings.decided, settings.forced
    runs = bool(decided or forced) * len(settings.workloads) * settings.requests * settings.rounds
    progress.expect(runs)
    drawn, taken = _drawn(settings), _taken(settings)
    if taken and not forced and decided:
        raise RuntimeError("the calls of BFCL's sets are always forced: add --part script")
    found = []
    if drawn and (decided or forced):
        found += _measured(settings, drawn, [*decided, *forced], progress)
    if taken and forced:
        sides = [replace(side, options=(*side.options, *FORCED_OPTIONS)) for side in forced]
        found += _measured(settings, taken, sides, progress)
    return found


def _measured(
    settings: Settings, jobs: dict[str, list[Job]], sides: Sequence[Side], progress: Progress
) -> list[Report]:
    runs = measure(settings.served, jobs, sides, settings.rounds, progress)
    return reports(settings.model, runs)


def _drawn(settings: Settings) -> dict[str, list[Job]]:
    """Requests of the workloads that are drawn, by workload."""
    numbers = range(settings.requests)
    return {
        name: [draw(name, settings.seed, number, settings.longest) for number in numbers]
        for name in settings.workloads
        if name in DRAWN
    }


def _taken(settings: Settings) -> dict[str, list[Job]]:
    """Requests of BFCL's sets, by set."""
    place = None if settings.folder is None else Path(settings.folder)
    return {
        name: bfcl.load(name, place, settings.seed, settings.requests)
        for name in settings.workloads
        if name in BFCL
    }


BENCHMARK = Benchmark(Settings, compare)
