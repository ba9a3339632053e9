"""The load on the simulator: the server's own policies in the time that a cost model says."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import anyio

from benchmarks.interception.load import Request, requests
from benchmarks.interception.settings import GUEST, SIMULATED, Settings, milliseconds
from benchmarks.interception.simulation import Machine, Outcome, simulate, wasted
from pie_control.interception.costs import Costs
from pie_control.interception.policy import load_policy
from pie_py.bench.benchmark import Progress
from pie_py.bench.report import Goal, Report
from pie_py.bench.server import bench_server
from pie_py.client import Client
from pie_py.config.model import ModelConfig

WARM_UP = 1 / 3  # of the time of arrivals, in which completed requests are not counted yet

# A model of 6 billion parameters (GPT-J's shape) in 16 bits on an A100, reckoned from what the
# hardware is specified to do, not measured: 0.4 of the peak in prefill, 20 GB/s to the host.
GPTJ_A100: dict[str, Any] = {
    "page_bytes": 16 * 28 * 2 * 4096 * 2,
    "page_size": 16,
    "swap_out": {"seconds": 5e-5, "bytes_per_second": 2e10},
    "swap_in": {"seconds": 5e-5, "bytes_per_second": 2e10},
    "prefill": {
        "tokens": [16, 64, 128, 256, 512, 1024, 2048],
        "seconds": [0.018, 0.0228, 0.0297, 0.0436, 0.072, 0.13, 0.254],
        "fit": [0.016, 1.0e-4, 8e-9],
    },
    "decode": {"sequences": [1, 8, 32, 128], "seconds": [0.0105, 0.0135, 0.024, 0.066]},
}


def measured_costs(model: ModelConfig) -> dict[str, Any]:
    """What the worker measures of a model on this machine."""

    async def ask(endpoint: str) -> dict[str, Any]:
        async with Client(endpoint) as client:
            digest = await client.upload(GUEST.read_bytes(), name="intercept")
            answer = await (await client.launch(digest, ["costs"])).result()
            found: dict[str, Any] = json.loads(answer)
            return found

    with bench_server(model) as server:
        return anyio.run(ask, server.endpoint)


def machine_of(system: str, costs: Costs, settings: Settings) -> Machine:
    """The simulated machine as a system uses it.

    In `vllm` and `discard`, which differ in the order alone (InferCept's *ImprovedDiscard*), a step
    computes whole contexts or decodes; in the others it does both, in chunks.
    """
    return Machine(
        costs,
        settings.sim_memory,
        settings.sim_host,
        tail=system == "vllm",
        chunked=system not in ("vllm", "discard"),
        within_budget=system != "swap",
    )


def simulated(settings: Settings, progress: Progress) -> Report:
    """The load at each rate under each system, in simulated time."""
    costs = simulated_costs(settings)
    rows = []
    for rate in settings.sim_rates:
        count = math.ceil(settings.sim_seconds * rate)
        most = settings.sim_memory // 4  # tokens of a context
        load = requests(count, rate, settings.seed, most_tokens=most)
        for system in SIMULATED:
            if system in settings.systems:
                rows.append([system, rate, *_figures(system, costs, settings, load)])
                progress(f"{system} at {rate:g}/s, simulated")
    return Report(
        f"Interception, simulated: memory of {settings.sim_memory} tokens, {settings.sim_host}"
        " beside it",
        [
            *("system", "arrivals/s", "ms per token", "median", "p90", "completed/s"),
            *("memory wasted %", "by discard %", "recomputing %", "tokens swapped", "preempted"),
        ],
        rows,
        [
            "ms per token: from arrival to end, without the calls, over the tokens generated, in"
            " the mean over all requests. completed/s: while requests arrive, after the first"
            " third of that time. memory wasted: held by requests that wait, by chunks whose rest"
            " is still computed, and by requests that are slowed by that. by discard: without the"
            " first. recomputing: of the steps' time.",
            *same_latency(rows),
        ],
        simulated_goals(rows),
    )


def simulated_costs(settings: Settings) -> Costs:
    """The costs that the simulated machine has."""
    measured = settings.sim_costs == "measured"
    return Costs.measured(measured_costs(settings.model) if measured else GPTJ_A100)


def simulated_latencies(
    system: str, costs: Costs, settings: Settings, load: Sequence[Request]
) -> list[float]:
    """Seconds per generated token, without the calls, of each request."""
    out = _outcome(system, machine_of(system, costs, settings), load)
    return [one["latency"] for one in out.finished]


def _outcome(system: str, machine: Machine, load: Sequence[Request]) -> Outcome:
    return simulate(list(load), machine, load_policy("discard" if system == "vllm" else system))


def _figures(
    system: str, costs: Costs, settings: Settings, load: list[Request]
) -> list[float | int | None]:
    """A row of the table, from `ms per token` on."""
    machine = machine_of(system, costs, settings)
    out = _outcome(system, machine, load)
    last_arrival = load[-1].arrival
    start = WARM_UP * last_arrival
    completed = sum(start < one["end"] <= last_arrival for one in out.finished)
    whole = out.preserved + out.recomputed + out.stalled
    waste = 100 * wasted(out, machine)
    return [
        *milliseconds([one["latency"] for one in out.finished]),
        completed / (last_arrival - start) if last_arrival else None,
        waste,
        waste * out.recomputed / whole if whole else 0.0,
        100 * out.recompute_seconds / out.seconds if out.seconds else 0.0,
        out.swapped,
        out.preemptions,
    ]


def same_latency(rows: Sequence[Sequence[Any]]) -> list[str]:
    """The load that each system sustains at one latency, in words."""
    limit = _limit(rows)
    if limit is None:
        return []
    told = []
    for system in SIMULATED:
        rate = _sustained(rows, system, limit)
        if rate is not None:
            told.append(f"{system} {rate:.2f}/s")
    return [f"At {limit:.0f} ms per token, twice vllm's at the lowest rate: {', '.join(told)}."]


def simulated_goals(rows: Sequence[Sequence[Any]]) -> list[Goal]:
    """The blog's figures: 1.6 to 2 times the load at the same latency, twice as many requests
    completed.
    """
    limit = _limit(rows)
    if limit is None:
        return []
    base, ours = (_sustained(rows, system, limit) for system in ("vllm", "min-waste"))
    completed = {row[0]: row[5] for row in rows if row[1] == max(row[1] for row in rows)}
    goals = []
    if base and ours:
        goals.append(Goal("min-waste's load over vllm's at that latency", ours / base, 1.6, False))
    if completed.get("vllm") and completed.get("min-waste"):
        ratio = completed["min-waste"] / completed["vllm"]
        goals.append(Goal("as many requests completed at the highest rate", ratio, 2.0, False))
    return goals


def _limit(rows: Sequence[Sequence[Any]]) -> float | None:
    """Twice the latency, in milliseconds, that vLLM's way has at the lowest rate."""
    rates = {row[1]: row[2] for row in rows if row[0] == "vllm" and row[2] is not None}
    return (
        2 * float(rates[min(rates)])
        if len(rates) > 1 and "min-waste" in {row[0] for row in rows}
        else None
    )


def _sustained(rows: Sequence[Sequence[Any]], system: str, limit: float) -> float | None:
    """The highest rate within the latency limit, interpolated logarithmically between two rates."""
    points = sorted((row[1], row[2]) for row in rows if row[0] == system and row[2] is not None)
    found = None
    for at, (rate, latency) in enumerate(points):
        if latency <= limit:
            found = rate
            continue
        if found is not None:
            before, below = points[at - 1]
            share = math.log(limit / below) / math.log(latency / below)
            found = before + share * (rate - before)
        break
    return found
