"""`pie-py bench launch`: from the request to launch to the first message, at the client.

As in the paper (Pie, section 7, figure 9): the inferlet is text completion that sends an
acknowledgement before it generates; many are requested at the same time. *Cold* includes the upload
and compilation of a program that the server has never seen; *warm* ones are known.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import anyio

from pie_py.bench import options
from pie_py.bench.benchmark import Benchmark, Progress
from pie_py.bench.programs import bench_programs, fresh_copy, random_prompt
from pie_py.bench.report import Report, percentile
from pie_py.bench.server import bench_server, with_room
from pie_py.client import Client
from pie_py.config.model import ModelConfig

PAPER = "Paper, 32 cores, Rust: cold 35–81 ms, warm 10–50 ms for 1 to 896 launches."


@dataclass(frozen=True, kw_only=True)
class Settings:
    """From the request to launch to the first message at the client, cold and warm."""

    model: ModelConfig = options.model()
    languages: tuple[str, ...] = options.languages()
    at_once: tuple[int, ...] = options.at_once("1,64,256,896")
    rounds: int = options.rounds(3)
    tokens: int = options.count("--tokens", 4, "New tokens of each inferlet.")


async def _launch_all(
    client: Client, program: str, count: int, args: Sequence[str]
) -> tuple[list[float], float]:
    """Launches at once; milliseconds to each first message, and to the last instance's end."""
    latencies: list[float] = []

    async def one() -> None:
        start = time.perf_counter()
        instance = await client.launch(program, args)
        if await instance.receive() != "launched":
            raise RuntimeError("the inferlet did not acknowledge its launch")
        latencies.append((time.perf_counter() - start) * 1e3)
        await instance.result()

    start = time.perf_counter()
    async with anyio.create_task_group() as tasks:
        for _ in range(count):
            tasks.start_soon(one)
    return latencies, (time.perf_counter() - start) * 1e3


async def _cold(
    client: Client, program: bytes, language: str, count: int, args: Sequence[str]
) -> list[float]:
    """As `_launch_all`, with the upload of a program never seen before in the measured time."""
    start = time.perf_counter()
    digest = await client.upload(fresh_copy(program, language), name="bench")
    uploaded = (time.perf_counter() - start) * 1e3
    latencies, _ = await _launch_all(client, digest, count, args)
    return [uploaded + latency for latency in latencies]


async def _measure(
    endpoint: str, programs: dict[str, bytes], settings: Settings, progress: Progress
) -> list[list[object]]:
    rows: list[list[object]] = []
    async with Client(endpoint) as client:
        vocabulary = (await client.models())[0]["vocab_size"]
        args = ["launch", random_prompt(16, vocabulary, seed=0), str(settings.tokens)]
        for language, program in programs.items():
            warm = await client.upload(program, name="bench")
            await _launch_all(client, warm, 2, args)
            for count in settings.at_once:
                cold_ms: list[float] = []
                warm_ms: list[float] = []
                all_ms: list[float] = []
                for _ in range(settings.rounds):
                    cold_ms += await _cold(client, program, language, count, args)
                    latencies, whole = await _launch_all(client, warm, count, args)
                    warm_ms += latencies
                    all_ms.append(whole)
                    progress(f"{language}, {count} at once")
                rows.append(
                    [
                        language,
                        count,
                        statistics.median(cold_ms),
                        percentile(cold_ms, 0.99),
                        statistics.median(warm_ms),
                        percentile(warm_ms, 0.99),
                        statistics.median(all_ms),
                    ]
                )
    return rows


def launch(settings: Settings, progress: Progress) -> Report:
    """Measures launch latency against a server of its own."""
    tokens = settings.tokens
    progress.expect(1 + len(settings.languages) * len(settings.at_once) * settings.rounds)
    programs = bench_programs(settings.languages)
    model = with_room(settings.model, 2 * max(settings.at_once), 16 + tokens)
    with bench_server(model) as server:
        progress("the server runs")
        rows = anyio.run(_measure, server.endpoint, programs, settings, progress)
    return Report(
        "Launch: request to first message, ms",
        ["source", "at once", "cold p50", "cold p99", "warm p50", "warm p99", "all done"],
        rows,
        [
            f"Each then completes {tokens} tokens; `all done` is when the last warm one has ended.",
            PAPER,
        ],
    )


BENCHMARK = Benchmark(Settings, launch)
