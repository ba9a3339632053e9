"""The tables of the runs: latencies, and what they cost."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.async_calls import formulas
from benchmarks.async_calls.jobs import Verdict
from benchmarks.async_calls.measure import Run, Side
from pie_py.bench.report import Goal, Report, percentile
from pie_py.config.model import ModelConfig

LATENCY = [
    "side",
    "all",
    "right",
    "wrong",
    "missing",
    "p10",
    "median",
    "p90",
    "mean",
    "× sync",
    "of",
    "× stateless",
    "calls",
    "formula",
]
PAPER = {  # AsyncLM, figures 5, 6 and 8
    **dict.fromkeys(("parallel", "v1-parallel", "live-parallel"), "1.6× (local) to 2.1× (cloud)"),
    **dict.fromkeys(("multi-step", "multi-step-parallel"), "up to 5.4×"),
    "interrupts": "2.4×",
}
COST = ["side", "ms per token", "written", "put in", "recomputed", "largest", "KV token·s"]
FORCED = (
    "FORCED: the model runs and chooses at every step, then the ground truth's token takes the"
    " place of its choice. Times, tokens and memory are those of the real pipeline; that calls"
    " are right is not the model's merit."
)


def reports(model: ModelConfig, runs: Mapping[tuple[str, Side], list[Run]]) -> list[Report]:
    """Tables: one of latencies and calls, one of what they cost.

    For each workload, and apart from each other where the model decides and where calls are forced.
    """
    told = []
    for workload, forced in dict.fromkeys((w, side.order is not None) for w, side in runs):
        how = f"{'FORCED' if forced else 'the model decides'}, {Path(model.source).name}"
        own = {
            side: found
            for (name, side), found in runs.items()
            if (name, side.order is not None) == (workload, forced)
        }
        count = len(next(iter(own.values())))
        if not count:
            told.append(Report(f"{workload}: no request fits into the context, {how}", LATENCY))
            continue
        latency = Report(f"{workload}: {count} requests, {how}", LATENCY)
        latency.rows = _latencies(workload, own)
        latency.notes = [*([FORCED] if forced else []), *_notes(workload, own), LATENCY_NOTE]
        latency.goals = _goals(own)
        cost = Report(f"{workload}: what a request costs, {how}", COST, _costs(own))
        cost.notes = [*_overheads(own), COST_NOTE]
        told += [latency, cost]
    return told


LATENCY_NOTE = (
    "Milliseconds. p10, median, p90, mean: of all requests, from the first token to the last"
    " (AsyncLM, section 6.1); of interrupts, from the first task's arrival. all: requests done"
    " all right; right, wrong, missing: calls. × sync: of the means, over so many requests (`of`)"
    " as sync and the side did all right; sync keeps its KV cache over the turns. × stateless:"
    " over the paper's Sync, whose every turn is a new request. calls, formula: over those that"
    " all sides did all right. calls: from the first token to the end of the last call; formula:"
    " what AsyncLM, section 6.3, says of that for independent calls, from the times between calls"
    " in sync_parallel's turn and the measured times of calls."
)
COST_NOTE = (
    "Tokens per request: written by the model, put in as results and tasks, recomputed because"
    " the KV cache was given up, in the context at its largest; and in the KV cache, over time."
)


def _latencies(workload: str, own: dict[Side, list[Run]]) -> list[list[Any]]:
    shared = _all_right(own)
    sync, stateless = (
        next((f for side, f in own.items() if side.mode == "sync" and side.stateless == new), None)
        for new in (False, True)
    )
    rows: list[list[Any]] = []
    for side, found in own.items():
        verdict = Verdict()
        for run in found:
            verdict.add(run.verdict)
        times = [run.seconds * 1e3 for run in found]
        both = [] if sync is None else _all_right({"sync": sync, "side": found})
        ends = [e * 1e3 for at in shared if (e := found[at].calls_seconds) is not None]
        rows.append(
            [
                str(side),
                sum(run.verdict.all_right for run in found),
                verdict.right,
                verdict.wrong,
                verdict.missing,
                percentile(times, 0.1),
                statistics.median(times),
                percentile(times, 0.9),
                statistics.mean(times),
                _times_faster(found, sync),
                len(both),
                _times_faster(found, stateless),
                statistics.mean(ends) if ends else None,
                _formula(workload, side, own, shared),
            ]
        )
    return rows


def _times_faster(found: list[Run], base: list[Run] | None) -> float | None:
    """The base's mean latency over the side's, of requests that both did all right."""
    both = [] if base is None else _all_right({"base": base, "side": found})
    return _mean(base, both) / _mean(found, both) if base and both else None


def _goals(own: dict[Side, list[Run]]) -> list[Goal]:
    """Async is never slower than Sync-Parallel (AsyncLM, section 6.3)."""
    ours, other = (
        next((found for side, found in own.items() if side.mode == mode), None)
        for mode in ("async", "sync_parallel")
    )
    if ours is None or other is None:
        return []
    both = _all_right({"ours": ours, "other": other})
    if not both:
        return []
    what = f"async's latency over sync_parallel's, {len(both)} requests"
    return [Goal(what, _mean(ours, both) / _mean(other, both), 1.0)]


def _costs(own: dict[Side, list[Run]]) -> list[list[Any]]:
    keys = "generated_tokens", "injected_tokens", "recomputed_tokens"
    return [
        [
            str(side),
            statistics.mean(r["token_seconds"] * 1e3 for run in found for r in run.records),
            *(statistics.mean(run.total(key) for run in found) for key in keys),
            statistics.mean(run.peak for run in found),
            statistics.mean(run.total("kv_token_seconds") for run in found),
        ]
        for side, found in own.items()
    ]


def _all_right(own: Mapping[Any, list[Run]]) -> list[int]:
    """Numbers of the runs that every one of these sides did all right: only their times compare."""
    return [
        at
        for at, runs in enumerate(zip(*own.values(), strict=True))
        if all(run.verdict.all_right for run in runs)
    ]


def _mean(found: list[Run], shared: list[int]) -> float:
    return statistics.mean(found[at].seconds for at in shared)


def _parallel_turns(own: dict[Side, list[Run]], shared: list[int]) -> list[dict[str, Any]]:
    """Records of `sync_parallel` in which all calls were made in one turn."""
    for side, found in own.items():
        if side.mode == "sync_parallel":
            records = [found[at].records[0] for at in shared]
            return [r for r in records if sum(kind == "turn" for _, kind, _ in r["timeline"]) <= 2]
    return []


def _formula(
    workload: str, side: Side, own: dict[Side, list[Run]], shared: list[int]
) -> float | None:
    """Milliseconds by the paper's formula, in the mean; None where it has none."""
    if not _independent(workload) or side.order in ("random", "given") or side.stateless:
        return None
    formula = formulas.FORMULAS.get(side.mode)
    records = _parallel_turns(own, shared)
    if formula is None or not records:
        return None
    return statistics.mean(
        1e3 * formula(formulas.generated(record), formulas.executed(record)) for record in records
    )


def _notes(workload: str, own: dict[Side, list[Run]]) -> list[str]:
    shared = _all_right(own)
    notes = [f"{len(shared)} requests were done all right by all sides."]
    if workload in PAPER:
        notes.append(f"The paper, of Async over Sync: {PAPER[workload]}.")
    failed = sum(c["failed"] for runs in own.values() for run in runs for c in run.calls)
    if failed:
        notes.append(f"{failed} calls of all sides together had an error as their result.")
    records = _parallel_turns(own, shared)
    if records and _independent(workload):
        generation = statistics.mean(t for r in records for t in formulas.generated(r))
        execution = statistics.mean(t for r in records for t in formulas.executed(r))
        notes.append(
            f"A call takes {generation * 1e3:.0f} ms to write (G) and {execution * 1e3:.0f}"
            f" ms to run (E): 1 + E/G = {1 + execution / generation:.2f}."
        )
    for side, found in own.items():
        if cut := sum(record["ended"] != "done" for run in found for record in run.records):
            notes.append(f"{side}: {cut} generations were ended at the limit of their length.")
    arrived = [
        at
        for side, found in own.items()
        if side.mode in ("async", "async_naive")
        for run in found
        for at, kind, _ in run.records[0]["timeline"]
        if kind == "message"
    ]
    if arrived:
        own_times = json.dumps([round(1e3 * statistics.mean(arrived[n::2])) for n in range(2)])
        notes.append(f"Further tasks arrived at {own_times} ms, in the mean.")
    other, ours = _of(own, "async", "random"), _of(own, "async", "lpt")
    if other is not None and ours is not None and shared:
        notes.append(
            f"async: random order over LPT: {_mean(other, shared) / _mean(ours, shared):.3f}"
        )
    return notes


def _independent(workload: str) -> bool:
    """True if its calls do not depend on each other."""
    return "parallel" in workload and "multi" not in workload


def _of(own: dict[Side, list[Run]], mode: str, order: str) -> list[Run] | None:
    return next((runs for s, runs in own.items() if (s.mode, s.order) == (mode, order)), None)


def _overheads(own: dict[Side, list[Run]]) -> list[str]:
    """The cost of asynchronous calls beside synchronous ones (AsyncLM, section 6.4), if forced."""
    shared = _all_right(own)
    base, ours = _of(own, "sync", "lpt"), _of(own, "async", "lpt")
    if base is None or ours is None or not shared:
        return []

    def mean(found: list[Run], *keys: str) -> float:
        return statistics.mean(found[at].total(*keys) for at in shared)

    count = "generated_tokens", "injected_tokens"
    more = mean(ours, *count) - mean(base, *count)
    written = mean(ours, "generated_tokens") - mean(base, "generated_tokens")
    token = statistics.mean(r["token_seconds"] for at in shared for r in ours[at].records)
    peak = statistics.mean(ours[at].peak - base[at].peak for at in shared)
    kept = mean(ours, "kv_token_seconds"), mean(base, "kv_token_seconds")
    return [
        f"async over sync, a request: {more:+.1f} tokens, {written:+.1f} of them written, which"
        f" takes {1e3 * token * written:+.0f} ms; {peak:+.1f} tokens of KV cache at its largest;"
        f" {kept[0]:.1f} KV token·s against {kept[1]:.1f}."
    ]
