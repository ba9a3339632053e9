"""`batching`: requests per second by policy, as in the paper's Table 5.

*Eager* runs each command by itself, *K-only* waits for so many, *T-only* for so long, and
*adaptive* for nothing. Only that differs: all have plans, users' fair shares, long prompts in
parts, and steps sent ahead of results, which the paper's system did not have.

By default a device that only waits stands for the model (`timed_worker.py`), so that the figures
are those of timing alone, on a machine with few cores, too.
"""

from __future__ import annotations

import statistics
import time
from contextlib import ExitStack
from dataclasses import dataclass

import anyio

from pie_py.bench import options
from pie_py.bench.benchmark import Benchmark, Progress
from pie_py.bench.programs import bench_programs, random_prompt
from pie_py.bench.report import Goal, Report
from pie_py.bench.server import bench_server, with_room
from pie_py.client import Client
from pie_py.config.model import ModelConfig
from pie_py.config.scheduling import SchedulerConfig
from pie_py.config.server import ServerConfig

EAGER, ADAPTIVE = "eager", "adaptive"
WAITING = ("k_only_8", "k_only_32", "t_only_2", "t_only_20")  # names in `policies.py`
WORKERS = {"timed": "benchmarks.batching.timed_worker", "real": ServerConfig().worker_module}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Requests per second if batches wait for commands, for time, or for nothing."""

    model: ModelConfig = options.model("tiny")
    language: str = options.language()
    instances: int = options.count("--instances", 128, "Inferlets at the same time.")
    prompt: int = options.prompt()
    tokens: int = options.tokens(32)
    rounds: int = options.rounds(5)
    worker: str = options.one_of(
        "--worker", tuple(WORKERS), "timed", "Waits for as long as a device would, or computes."
    )


async def _requests_per_second(endpoint: str, program: bytes, settings: Settings) -> float:
    """Of inferlets that are launched together, and complete their prompts."""
    async with Client(endpoint) as client:
        digest = await client.upload(program, name="bench")
        vocabulary = (await client.models())[0]["vocab_size"]
        start = time.perf_counter()

        async def complete(number: int) -> None:
            text = random_prompt(settings.prompt, vocabulary, start + number)
            instance = await client.launch(digest, ["complete", text, str(settings.tokens)])
            await instance.result()

        async with anyio.create_task_group() as tasks:
            for number in range(settings.instances):
                tasks.start_soon(complete, number)
    return settings.instances / (time.perf_counter() - start)


def batching(settings: Settings, progress: Progress) -> Report:
    """Measures all policies in turns, each on a server of its own."""
    names = (EAGER, *WAITING, ADAPTIVE)
    progress.expect(len(names) * (settings.rounds + 1))
    program = bench_programs([settings.language])[settings.language]
    model = with_room(settings.model, settings.instances, settings.prompt + settings.tokens)
    found: dict[str, list[float]] = {name: [] for name in names}
    with ExitStack() as stack:
        servers = {}
        for name in names:
            policy = f"benchmarks.batching.policies:{name}" if name in WAITING else ADAPTIVE
            single = {"max_batch_commands": 1} if name == EAGER else {}
            servers[name] = stack.enter_context(
                bench_server(
                    model.model_copy(update=single),
                    scheduler=SchedulerConfig(policy=policy),
                    worker_module=WORKERS[settings.worker],
                )
            )
        for turn in range(-1, settings.rounds):
            for name, server in servers.items():
                rate = anyio.run(_requests_per_second, server.endpoint, program, settings)
                if turn >= 0:
                    found[name].append(rate)
                progress(name)
    report = Report(
        f"Requests per second of {settings.instances} {settings.language} inferlets at once",
        ["policy", "requests/s", "of adaptive", "rounds"],
        notes=[
            f"Medians of {settings.rounds} rounds in turns; {settings.prompt} prompt,"
            f" {settings.tokens} new tokens. The numbers are commands, and milliseconds."
        ],
    )
    adaptive = statistics.median(found[ADAPTIVE])
    for name, rates in found.items():
        rate = statistics.median(rates)
        shown = " ".join(f"{each:.1f}" for each in sorted(rates))
        report.rows.append([name.replace("_", " "), rate, rate / adaptive, shown])
        if name != ADAPTIVE:
            report.goals.append(Goal(f"{name}: of adaptive", rate / adaptive, 1.0))
    return report


BENCHMARK = Benchmark(Settings, batching)
