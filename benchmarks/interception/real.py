"""The load on the real system: programs on a server."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio

from benchmarks.interception.load import Request, requests
from benchmarks.interception.settings import GUEST, Settings, milliseconds
from pie_py.bench.benchmark import Progress
from pie_py.bench.report import Report
from pie_py.bench.server import bench_server
from pie_py.client import Client, InferletFailed, RpcError
from pie_py.config.model import ModelConfig

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


@dataclass
class Served:
    """What a system made of a load."""

    latencies: list[float]  # seconds a generated token, without the calls
    restarted: int
    seconds: float
    stats: dict[str, Any]


async def _serve(
    endpoint: str, program: bytes, system: System, load: Sequence[Request], seed: int
) -> Served:
    latencies: list[float] = []
    restarted = 0
    async with Client(endpoint) as client:
        digest = await client.upload(program, name="intercept")
        await (await client.launch(digest, ["costs"])).result()  # what is compiled once
        vocabulary = (await client.models())[0]["vocab_size"]
        start = time.monotonic()

        async def one(number: int, job: Request) -> None:
            nonlocal restarted
            await anyio.sleep(job.arrival)
            began = time.monotonic()
            tokens = [
                16 + (seed + number * 7919 + at * 31) % (vocabulary - 16)
                for at in range(job.prompt)
            ]
            at = 0
            while at < len(job.segments):
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
    return Served(latencies, restarted, seconds, stats)


async def _go_on(
    client: Client, digest: str, system: System, job: Request, at: int, tokens: list[int]
) -> tuple[int, list[int]]:
    """Runs a request from a part on, to its end or that of the part; where it is then.

    Raises:
        InferletFailed: if it loses its pages; what it had reached by then is lost with them.
    """
    segments = job.segments[at : at + 1] if system.restarts else job.segments[at:]
    given = {
        "tokens": tokens,
        "parts": [
            (part.tokens, part.seconds > 0 and not system.restarts, part.answer)
            for part in segments
        ],
        "policy": system.program,
        "tool": job.kind,
        "tell": system.restarts,
    }
    instance = await client.launch(digest, [json.dumps(given)])
    reached = at + len(segments)
    async for message in instance:
        match json.loads(message):
            case ["call", number]:  # the tool runs here, for as long as the load says
                await anyio.sleep(segments[number].seconds)
                with suppress(RpcError):  # it was ended for want of pages, as its result says
                    await instance.send("done")
            case ["done", _, text]:
                tokens = text
    await instance.result()
    if system.restarts and job.segments[at].seconds:
        await anyio.sleep(job.segments[at].seconds)
    return reached, tokens


def real(settings: Settings, progress: Progress) -> Report:
    """Serves the load at each rate by each system, on servers of their own."""
    model = small_memory(settings)
    most = settings.kv_pages * model.page_size // 4  # tokens of a context
    rows: list[list[object]] = []
    for rate in settings.rates:
        coming = requests(
            settings.requests,
            rate,
            settings.seed,
            time_scale=settings.time_scale,
            token_scale=settings.token_scale,
            most_tokens=most,
        )
        for system in SYSTEMS:
            if system.name in settings.systems:
                served = serve(model, system, coming, settings.seed)
                rows.append([system.name, rate, *_figures(served)])
                progress(f"{system.name} at {rate:g}/s")
    return Report(
        f"Interception, the real system: {Path(model.source).name}, {model.kv_pages} pages,"
        f" {settings.requests} requests",
        [
            *("system", "arrivals/s", "ms per token", "median", "p90", "completed/s"),
            *("restarted", "swaps asked for", "pages lent"),
        ],
        rows,
        [
            "Calls run at the client; the server is told when one has ended, never when it will."
            " ms per token: from arrival to end, without the calls, over the tokens generated, in"
            " the mean. completed/s: of all requests, until the last one is done. restarted:"
            " requests that were ended for want of pages and began again.",
            f"Calls take {settings.time_scale:g} of their times and texts have"
            f" {settings.token_scale:g} of their lengths, with {most} tokens per context at the"
            " most: this model is that much faster, or smaller.",
        ],
    )


def small_memory(settings: Settings) -> ModelConfig:
    """The model, with as little memory as is wanted."""
    pools = {"kv_pages": settings.kv_pages, "host_pages": settings.host_pages}
    return settings.model.model_copy(update=pools)


def serve(model: ModelConfig, system: System, load: Sequence[Request], seed: int) -> Served:
    """What one system makes of the load, on a server of its own."""
    program = GUEST.read_bytes()
    interception = {"policy": system.server}
    with bench_server(model, interception=interception, prefix_cache={"enabled": False}) as server:
        return anyio.run(_serve, server.endpoint, program, system, load, seed)


def _figures(served: Served) -> list[object]:
    """A row of the table, from `ms per token` on."""
    return [
        *milliseconds(served.latencies),
        len(served.latencies) / served.seconds,
        served.restarted,
        served.stats["commands"]["swap_out"],
        served.stats["interception"].get("pages_evicted", 0),
    ]
