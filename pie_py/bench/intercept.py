"""`pie-py bench intercept`: what becomes of memory while requests wait for tools (InferCept, section 6).

Six kinds of augmentation, Poisson arrivals, less memory than all requests want. Two parts: the real
system, programs on a server; and a simulator with the server's own policies, in the time that a cost
model says, for ranges of load that the machine at hand cannot show.
"""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import anyio

from pie_py.bench.intercept_load import Job, jobs
from pie_py.bench.plots import pyplot, save
from pie_py.bench.programs import GUESTS
from pie_py.bench.report import Goal, Report, percentile
from pie_py.bench.server import bench_server
from pie_py.client import Client, InferletFailed
from pie_py.config.server import ModelConfig

WARM_UP = 1 / 3  # of the time of arrivals, in which completed requests are not counted yet
RETRY_SECONDS = 0.02  # before a request that lost its pages starts again


@dataclass(frozen=True)
class System:
    """One side of the comparison, as a whole."""

    name: str
    server: str  # the server's policy under memory pressure
    program: str | None  # the policy that programs ask for; None if they do nothing
    restarts: bool = False  # whether a request ends at each call, and comes back as a new one


SYSTEMS = (
    System("vllm", "preserve", None, restarts=True),
    System("discard", "preserve", "discard"),
    System("preserve", "preserve", "preserve"),
    System("swap", "swap", "swap"),
    System("min-waste", "min-waste", "min-waste"),
    System("unaware", "min-waste", None),
)
SIMULATED = ("vllm", "discard", "preserve", "swap", "min-waste")

# A model of 6 billion parameters (GPT-J's shape) in 16 bits on an A100, reckoned from what the hardware
# is specified to do, not measured: 0.4 of the peak in prefill, 20 GB/s to the host.
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


# The real system


@dataclass
class _Served:
    latencies: list[float]  # seconds a generated token, without the calls
    restarted: int
    seconds: float
    stats: dict[str, Any]


async def _serve(
    endpoint: str, program: bytes, system: System, load: Sequence[Job], seed: int
) -> _Served:
    latencies: list[float] = []
    restarted = 0
    async with Client(endpoint) as client:
        digest = await client.upload(program, name="intercept")
        await (await client.launch(digest, ["costs"])).result()  # what is compiled once
        vocabulary = (await client.models())[0]["vocab_size"]
        start = time.monotonic()

        async def one(number: int, job: Job) -> None:
            nonlocal restarted
            await anyio.sleep(job.arrival)
            began = time.monotonic()
            tokens = [
                16 + (seed + number * 7919 + at * 31) % (vocabulary - 16)
                for at in range(job.prompt)
            ]
            at = 0
            while at < len(job.parts):
                try:
                    at, tokens = await _go_on(client, digest, system, job, at, tokens)
                except InferletFailed as error:
                    if "out-of-resources" not in str(error):
                        raise
                    restarted += 1
                    await anyio.sleep(RETRY_SECONDS)
            lasted = time.monotonic() - began
            latencies.append((lasted - job.outside) / job.generated)

        async with anyio.create_task_group() as tasks:
            for number, job in enumerate(load):
                tasks.start_soon(one, number, job)
        seconds = time.monotonic() - start
        (stats,) = (await client.stats()).values()
    return _Served(latencies, restarted, seconds, stats)


async def _go_on(
    client: Client, digest: str, system: System, job: Job, at: int, tokens: list[int]
) -> tuple[int, list[int]]:
    """Runs a request from a part on, to its end or that of the part; where it is then.

    Raises:
        InferletFailed: if it loses its pages; what it had reached by then is lost with them.
    """
    parts = job.parts[at : at + 1] if system.restarts else job.parts[at:]
    given = {
        "tokens": tokens,
        "parts": [
            (part.tokens, 0.0 if system.restarts else part.seconds, part.answer) for part in parts
        ],
        "policy": system.program,
        "tool": job.kind,
        "tell": system.restarts,
    }
    instance = await client.launch(digest, [json.dumps(given)])
    reached = at + len(parts)
    async for message in instance:
        _, tokens = json.loads(message)
    await instance.result()
    if system.restarts and job.parts[at].seconds:
        await anyio.sleep(job.parts[at].seconds)
    return reached, tokens


def real(
    model: ModelConfig,
    systems: Sequence[str],
    rates: Sequence[float],
    load: Callable[[float], list[Job]],
    scales: str,
    seed: int,
    progress: Callable[[str], None],
) -> Report:
    """Serves the load at each rate by each system, on servers of their own.

    Args:
        model: with few pages.
        systems: names of sides.
        rates: arrivals a second.
        load: makes the requests for a rate.
        scales: says in words how these differ from the paper's.
        seed: of the prompts.
        progress: told of each run.
    """
    program = (GUESTS / "intercept.py").read_bytes()
    rows: list[list[object]] = []
    count = 0
    for rate in rates:
        coming = load(rate)
        count = len(coming)
        for system in SYSTEMS:
            if system.name not in systems:
                continue
            settings = {"policy": system.server}
            with bench_server(
                model, interception=settings, prefix_cache={"enabled": False}
            ) as server:
                run = partial(_serve, server.endpoint, program, system, coming, seed)
                found = anyio.run(run)
            moved = found.stats["interception"].get("pages_evicted", 0)
            rows.append(
                [
                    system.name,
                    rate,
                    *_milliseconds(found.latencies),
                    len(found.latencies) / found.seconds,
                    found.restarted,
                    found.stats["commands"]["swap_out"],
                    moved,
                ]
            )
            progress(f"{system.name} at {rate:g}/s")
    return Report(
        f"Interception, the real system: {Path(model.source).name}, {model.kv_pages} pages, {count} requests",
        [
            "system",
            "arrivals/s",
            "ms a token",
            "median",
            "p90",
            "completed/s",
            "restarted",
            "swaps asked for",
            "pages lent",
        ],
        rows,
        [
            "ms a token: from arrival to end, without the calls, over the tokens generated, in the mean."
            " completed/s: of all requests, until the last one is done. restarted: requests that were"
            " ended for want of pages and began anew.",
            scales,
        ],
    )


# The simulator


def measured_costs(model: ModelConfig) -> dict[str, Any]:
    """What the worker measures of a model on this machine."""

    async def ask(endpoint: str) -> dict[str, Any]:
        async with Client(endpoint) as client:
            digest = await client.upload((GUESTS / "intercept.py").read_bytes(), name="intercept")
            found: dict[str, Any] = json.loads(
                await (await client.launch(digest, ["costs"])).result()
            )
            return found

    with bench_server(model) as server:
        return anyio.run(ask, server.endpoint)


def simulated(
    costs: dict[str, Any],
    memory: int,
    host: int,
    systems: Sequence[str],
    rates: Sequence[float],
    load: Callable[[float], list[Job]],
    progress: Callable[[str], None],
) -> Report:
    """The load at each rate under each system, in simulated time.

    Raises:
        RuntimeError: if the simulator fails, with what it says.
    """
    loads = {rate: load(rate) for rate in rates}
    sides = [(rate, system) for rate in rates for system in SIMULATED if system in systems]
    runs = [
        {"system": system, "requests": [_plain(job) for job in loads[rate]]}
        for rate, system in sides
    ]
    told = {"costs": costs, "memory": memory, "host": host, "runs": runs}
    rows = []
    for (rate, system), out in zip(sides, _simulate(told), strict=True):
        rows.append(_row(system, rate, loads[rate][-1].arrival, out))
        progress(f"{system} at {rate:g}/s, simulated")
    return Report(
        f"Interception, simulated: memory of {memory} tokens, {host} beside it",
        [
            "system",
            "arrivals/s",
            "ms a token",
            "median",
            "p90",
            "completed/s",
            "memory wasted %",
            "by discard %",
            "recomputing %",
            "tokens swapped",
            "preempted",
        ],
        rows,
        [
            "ms a token: from arrival to end, without the calls, over the tokens generated, in the mean over"
            " all requests. completed/s: while requests arrive, after the first third of that time."
            " memory wasted: held by those who wait, by chunks whose rest is still computed, and by those"
            " who are slowed by that. by discard: without the first. recomputing: of the steps' time.",
            *_same_latency(rows),
        ],
        _simulated_goals(rows),
    )


def _same_latency(rows: Sequence[Sequence[Any]]) -> list[str]:
    """The load that each system sustains at one latency, in words."""
    limit = _limit(rows)
    if limit is None:
        return []
    told = []
    for system in SIMULATED:
        rate = _sustained(rows, system, limit)
        if rate is not None:
            told.append(f"{system} {rate:.2f}/s")
    return [f"At {limit:.0f} ms a token, twice vllm's at the lowest rate: {', '.join(told)}."]


def _simulated_goals(rows: Sequence[Sequence[Any]]) -> list[Goal]:
    """The blog's figures: 1.6 to 2 times the load at the same latency, twice as many requests completed."""
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
        2 * float(rates[min(rates)]) if len(rates) > 1 and "min-waste" in _systems(rows) else None
    )


def _systems(rows: Sequence[Sequence[Any]]) -> list[str]:
    return list(dict.fromkeys(str(row[0]) for row in rows))


def _sustained(rows: Sequence[Sequence[Any]], system: str, limit: float) -> float | None:
    """The highest rate whose latency is within the limit; between two rates, in proportion of logarithms."""
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


def _simulate(told: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Outcomes of the simulator's runs, as they end."""
    command = [sys.executable, "-m", "pie_control.interception.simulate"]
    with TemporaryFile("w+") as given, TemporaryFile("w+") as errors:
        json.dump(told, given)
        given.seek(0)
        with subprocess.Popen(
            command, stdin=given, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process:
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    yield json.loads(line)
            finally:
                process.kill()
        if process.returncode > 0:
            errors.seek(0)
            lines = errors.read().strip().splitlines()
            raise RuntimeError(
                f"the simulator failed: {lines[-1] if lines else process.returncode}"
            )


def _plain(job: Job) -> dict[str, Any]:
    plain = asdict(job)
    plain["segments"] = [(p["tokens"], p["seconds"], p["answer"]) for p in plain.pop("parts")]
    return plain


def _row(system: str, rate: float, last_arrival: float, out: dict[str, Any]) -> list[Any]:
    latencies = [one["latency"] for one in out["finished"]]
    start = WARM_UP * last_arrival
    completed = sum(start < one["end"] <= last_arrival for one in out["finished"])
    whole = out["preserved"] + out["recomputed"] + out["stalled"]
    wasted = 100 * out["wasted"]
    return [
        system,
        rate,
        *_milliseconds(latencies),
        completed / (last_arrival - start) if last_arrival else None,
        wasted,
        wasted * out["recomputed"] / whole if whole else 0.0,
        100 * out["recompute_seconds"] / out["seconds"] if out["seconds"] else 0.0,
        out["swapped"],
        out["preemptions"],
    ]


# Both


def _milliseconds(latencies: Sequence[float]) -> tuple[float | None, float | None, float | None]:
    """Mean, median and 90th percentile of seconds."""
    if not latencies:
        return None, None, None
    middle, high = statistics.median(latencies), percentile(latencies, 0.9)
    return 1e3 * statistics.mean(latencies), 1e3 * middle, 1e3 * high


def plot(reports: Sequence[Report], path: Path) -> None:
    """Draws latency, completed requests and wasted memory against the rate, a row of plots a report.

    Raises:
        RuntimeError: if matplotlib is not there, or the file can't be written.
    """
    figure, axes = pyplot().subplots(
        len(reports), 3, figsize=(14, 4 * len(reports)), squeeze=False, layout="constrained"
    )
    for row, report in zip(axes, reports, strict=True):
        wasted = "memory wasted %" if "memory wasted %" in report.columns else "restarted"
        for axis, column in zip(row, ("ms a token", "completed/s", wasted), strict=True):
            at = report.columns.index(column)
            for system in _systems(report.rows):
                points = [(one[1], one[at]) for one in report.rows if one[0] == system]
                axis.plot(*zip(*points, strict=True), marker="o", markersize=4, label=system)
            axis.set(xlabel="arrivals a second", ylabel=column)
        row[0].set(title=report.title, yscale="log")
        row[0].title.set_fontsize("medium")
        row[0].legend()
    save(figure, path)


def load_maker(
    count: Callable[[float], int],
    seed: int,
    time_scale: float,
    token_scale: float,
    most_tokens: int,
) -> Callable[[float], list[Job]]:
    """What makes the requests for a rate: the same ones at each, in the same order."""
    return lambda rate: jobs(
        count(rate),
        rate,
        seed,
        time_scale=time_scale,
        token_scale=token_scale,
        most_tokens=most_tokens,
    )
