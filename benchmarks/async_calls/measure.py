"""Runs of jobs by each side."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio

from benchmarks.async_calls.drawn import draw
from benchmarks.async_calls.forced import forced_program
from benchmarks.async_calls.jobs import Job, Verdict, judge
from pie_py.bench.server import bench_server
from pie_py.client import Client, InferletFailed
from pie_py.client.functions import Mode
from pie_py.config.model import ModelConfig

STATELESS = "--stateless"  # each turn is a new request, as over a chat API: the paper's Sync
KV_PAGES, HOST_PAGES = 512, 512  # enough for one request at a time
# Of BFCL's sets, whose types are not those of JSON schemas and whose results are long.
FORCED_OPTIONS = ("--strictness", "calls", "--most-value-tokens", "64")


@dataclass
class Run:
    """One job by one side.

    Attributes:
        seconds: from the first token, or of tasks in turn from the first one's arrival, to the last
            token.
        records: of each generation: of one, or of one a task where tasks are done one by one.
        verdict: on its calls.
    """

    seconds: float
    records: list[dict[str, Any]]
    verdict: Verdict = field(default_factory=Verdict)

    def total(self, *keys: str) -> float:
        """The sum of these numbers of the records."""
        return float(sum(record[key] for record in self.records for key in keys))

    @property
    def calls(self) -> list[dict[str, Any]]:
        """All calls that were made."""
        return [call for record in self.records for call in record["calls"]]

    @property
    def peak(self) -> int:
        """Tokens of the largest context."""
        return max(int(record["peak_tokens"]) for record in self.records)

    @property
    def calls_seconds(self) -> float | None:
        """From the first token until the last result was there; None of tasks done one by one."""
        if len(self.records) > 1:
            return None
        ends = [c["ended"] for r in self.records for c in r["calls"] if c["ended"] is not None]
        return max(ends) - self.records[0]["first_token"] if ends else None


@dataclass(frozen=True)
class Side:
    """One way to serve a job.

    Attributes:
        mode: of `async_function_calling`.
        order: of forced calls; None lets the model decide.
        options: further ones of the inferlet.
    """

    mode: Mode
    order: str | None = None
    options: tuple[str, ...] = ()

    @property
    def stateless(self) -> bool:
        """True if it computes the whole KV cache for each turn."""
        return STATELESS in self.options

    def __str__(self) -> str:
        if self.stateless:
            return f"{self.mode}, stateless"
        return f"{self.mode}, {self.order}" if self.order and self.mode == "async" else self.mode


SIDES = (
    Side("sync"),
    Side("sync", options=(STATELESS,)),
    Side("sync_parallel"),
    Side("async_naive"),
    Side("async"),
)


async def serve(client: Client, job: Job, side: Side, seed: int) -> Run:
    """Runs a job.

    Synchronous sides do tasks that arrive later one by one, as in the paper (section 6.6): the next
    begins when it has arrived and the one before is done. Launches between them are not counted.
    """
    if job.arrivals and side.mode in ("sync", "sync_parallel"):
        now, records, verdict = 0.0, [], Verdict()
        for arrival, part in zip((0.0, *job.arrivals), job.one_by_one(), strict=True):
            record = await _generate(client, part, side, seed)
            now = max(now, arrival) + (record["last_token"] or record["seconds"])
            records.append(record)
            verdict.add(judge(part.calls, record["calls"]))
        return Run(now, records, verdict)
    record = await _generate(client, job, side, seed)
    last = record["last_token"] or record["seconds"]
    start = 0.0 if job.arrivals else record["first_token"] or 0.0
    return Run(last - start, [record], judge(job.calls, record["calls"]))


async def _generate(client: Client, job: Job, side: Side, seed: int) -> dict[str, Any]:
    options = ["--declared-times", *side.options]
    if side.order is not None:
        options += ["--script", job.script(side.order, seed)]
    return await client.answer(
        job.tasks[0],
        job.functions(),
        tools=job.tools,
        mode=side.mode,
        options=options,
        program=forced_program(),
        tasks=_later(job) if job.arrivals else None,
    )


async def _later(job: Job) -> AsyncIterator[str]:
    """The further tasks, each at its time; the clock starts when the inferlet has been launched."""
    start = anyio.current_time()
    for arrival, task in zip(job.arrivals, job.tasks[1:], strict=True):
        await anyio.sleep_until(start + arrival)
        yield task


async def _in_turns(client: Client, job: Job, sides: Sequence[Side], seed: int) -> dict[Side, Run]:
    """A job by all sides; nothing if its prompt is longer than the model's context."""
    try:
        return {side: await serve(client, job, side, seed) for side in sides}
    except InferletFailed as error:
        if "leaves no room in a context" not in str(error):
            raise
        return {}


def measure(
    model: ModelConfig,
    workloads: Mapping[str, Sequence[Job]],
    sides: Sequence[Side],
    rounds: int,
    progress: Callable[[str], None],
) -> dict[tuple[str, Side], list[Run]]:
    """All jobs by all sides, in turns on one server; a first run of each mode is not counted.

    Returns:
        The runs of each workload and side, round after round, of jobs that fit into the model's
        context.

    Raises:
        InferletFailed: a generation failed.
    """
    found: dict[tuple[str, Side], list[Run]] = {(w, s): [] for w in workloads for s in sides}

    async def run(endpoint: str) -> None:
        async with Client(endpoint) as client:
            for mode in dict.fromkeys(side.mode for side in sides):
                await serve(client, draw("parallel", 0, 0), Side(mode, "lpt"), 0)
            for workload, jobs in workloads.items():
                for seed in range(rounds):
                    for number, job in enumerate(jobs):
                        runs = await _in_turns(client, job, sides, seed)
                        for side, one in runs.items():
                            found[workload, side].append(one)
                        fits = "" if runs else ", does not fit into the context"
                        progress(f"{workload}, request {number + 1}{fits}")

    sized = {
        "kv_pages": model.kv_pages or KV_PAGES,
        "host_pages": model.host_pages or HOST_PAGES,
    }
    with bench_server(model.model_copy(update=sized), prefix_cache={"enabled": False}) as server:
        anyio.run(run, server.endpoint)
    return found
