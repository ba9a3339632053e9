"""`pie-py bench intercept`: what becomes of memory while requests wait for tools (InferCept, section 6).

Six kinds of augmentation, Poisson arrivals, less memory than all requests want. Two parts: the real
system, programs on a server; and a simulator with the server's own policies, in the time that a cost
model says, for ranges of load that the machine at hand cannot show.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from pie_py.bench.intercept_load import Job, jobs
from pie_py.bench.programs import GUESTS
from pie_py.bench.report import Report, percentile
from pie_py.bench.server import bench_server
from pie_py.client import Client, InferletFailed
from pie_py.config import ModelConfig

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
    seed: int,
    progress: Callable[[str], None],
) -> Report:
    """Serves the load at each rate by each system, on servers of their own."""
    program = (GUESTS / "intercept.py").read_bytes()
    rows: list[list[object]] = []
    for rate in rates:
        for system in SYSTEMS:
            if system.name not in systems:
                continue
            settings = {"policy": system.server}
            with bench_server(
                model, interception=settings, prefix_cache={"enabled": False}
            ) as server:
                run = partial(_serve, server.endpoint, program, system, load(rate), seed)
                found = anyio.run(run)
            moved = found.stats["interception"].get("pages_evicted", 0)
            rows.append(
                [
                    system.name,
                    rate,
                    statistics.mean(found.latencies) * 1e3,
                    percentile(found.latencies, 0.9) * 1e3,
                    len(found.latencies) / found.seconds,
                    found.restarted,
                    found.stats["commands"]["swap_out"],
                    moved,
                ]
            )
            progress(f"{system.name} at {rate:g}/s")
    return Report(
        f"Interception, the real system: {Path(model.source).name}, {model.kv_pages} pages",
        [
            "system",
            "arrivals/s",
            "ms a token",
            "p90",
            "completed/s",
            "restarted",
            "swaps asked for",
            "pages lent",
        ],
        rows,
        [
            "ms a token: from arrival to end, without the calls, over the tokens generated. restarted:"
            " requests that were ended for want of pages and began anew.",
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
    rows: list[list[object]] = []
    for rate in rates:
        requests = [_plain(job) for job in load(rate)]
        for system in SIMULATED:
            if system not in systems:
                continue
            told = {
                "costs": costs,
                "memory": memory,
                "host": host,
                "runs": [{"system": system, "requests": requests}],
            }
            command = [sys.executable, "-m", "pie_control.interception.simulate"]
            run = subprocess.run(command, input=json.dumps(told), capture_output=True, text=True)
            if run.returncode:
                raise RuntimeError(f"the simulator failed: {run.stderr.strip().splitlines()[-1]}")
            (out,) = json.loads(run.stdout)
            rows.append(_row(system, rate, out))
            progress(f"{system} at {rate:g}/s, simulated")
    return Report(
        f"Interception, simulated: memory of {memory} tokens, {host} beside it",
        [
            "system",
            "arrivals/s",
            "ms a token",
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
            "memory wasted: held by those who wait, by chunks whose rest is still computed, and by those"
            " who are slowed by that. by discard: without the first. recomputing: of the steps' time.",
        ],
    )


def _plain(job: Job) -> dict[str, Any]:
    plain = asdict(job)
    plain["segments"] = [(p["tokens"], p["seconds"], p["answer"]) for p in plain.pop("parts")]
    return plain


def _row(system: str, rate: float, out: dict[str, Any]) -> list[object]:
    latencies = [one["latency"] for one in out["finished"]]
    whole = out["preserved"] + out["recomputed"] + out["stalled"]
    wasted = 100 * out["wasted"]
    return [
        system,
        rate,
        statistics.mean(latencies) * 1e3 if latencies else None,
        percentile(latencies, 0.9) * 1e3 if latencies else None,
        len(latencies) / out["seconds"] if out["seconds"] else None,
        wasted,
        wasted * out["recomputed"] / whole if whole else 0.0,
        100 * out["recompute_seconds"] / out["seconds"] if out["seconds"] else 0.0,
        out["swapped"],
        out["preemptions"],
    ]


# Both


def plot(reports: Sequence[Report], path: Path) -> None:
    """Draws latency and completed requests against the rate, a row a report.

    Raises:
        RuntimeError: if matplotlib is not there.
    """
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        raise RuntimeError("a plot needs matplotlib: pip install matplotlib") from None
    figure, axes = pyplot.subplots(
        len(reports), 2, figsize=(10, 4 * len(reports)), squeeze=False, layout="constrained"
    )
    for (left, right), report in zip(axes, reports, strict=True):
        for system in dict.fromkeys(str(row[0]) for row in report.rows):
            rows = [row for row in report.rows if row[0] == system]
            rates = [row[1] for row in rows]
            left.plot(rates, [row[2] for row in rows], marker="o", label=system)
            right.plot(rates, [row[4] for row in rows], marker="o", label=system)
        left.set(xlabel="arrivals a second", ylabel="ms a token", title=report.title, yscale="log")
        right.set(xlabel="arrivals a second", ylabel="completed a second")
        left.legend()
    figure.savefig(path)
    pyplot.close(figure)


def load_maker(
    count: int, seed: int, time_scale: float, token_scale: float, most_tokens: int
) -> Callable[[float], list[Job]]:
    """What makes the requests for a rate: the same ones at each, in the same order."""
    return lambda rate: jobs(
        count,
        rate,
        seed,
        time_scale=time_scale,
        token_scale=token_scale,
        most_tokens=most_tokens,
    )
