"""`fairness`: what those that decode notice of long prompts that arrive meanwhile.

Some inferlets decode; alone, and while others, one after the other, fill in long prompts: once of
the same user, and once of another one: `scheduler.prompt_ms` bounds their parts differently.
What counts is the time between two tokens of one inferlet, and most of all its longest ones. How
much of a prompt shares a step with the others' tokens is the model's `max_batch_tokens`.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio

from benchmarks import options
from benchmarks.benchmark import Benchmark, Progress
from benchmarks.programs import bench_programs
from pie_py.bench.decoding import Decoded, decode_together
from pie_py.bench.report import Goal, Report, percentile
from pie_py.bench.server import with_room
from pie_py.client import Client
from pie_py.config.keys import ClientKey, KeyStore
from pie_py.config.limits import Quota
from pie_py.config.logs import LogConfig
from pie_py.config.model import ModelConfig
from pie_py.config.scheduling import SchedulerConfig
from pie_py.config.server import ServerConfig
from pie_py.config.server_process import ServerProcess


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Time between tokens, median to longest, while long prompts of others arrive."""

    model: ModelConfig = options.model("tiny")
    language: str = options.language()
    instances: int = options.count("--instances", 8, "Inferlets that decode.")
    batch_tokens: tuple[int, ...] = options.number_list(
        "--max-batch-tokens",
        str(ModelConfig().max_batch_tokens),
        "Values of the model's setting to compare.",
    )
    prompt: int = options.prompt()
    long: int = options.count("--long", 8192, "Tokens of a long prompt.")
    tokens: int = options.tokens(1000)
    prompt_ms: float = options.prompt_ms()


@dataclass
class Beside:
    """Decoding while prompts arrived."""

    decoded: Decoded
    prompts_ms: list[float] = field(default_factory=list)  # from launch to the prompt's end


async def _decode(
    endpoint: str, key: ClientKey, other: ClientKey | None, program: bytes, settings: Settings
) -> Beside:
    """Decodes while long prompts of a user arrive; alone without one."""
    prompts_ms: list[float] = []
    async with Client(endpoint, key) as client, Client(endpoint, other or key) as beside:
        digest = await client.upload(program, name="bench")
        await beside.upload(program, name="bench")

        async def arrive() -> None:
            while True:
                instance = await beside.launch(digest, ["prefill", str(settings.long)])
                try:
                    prompts_ms.append(json.loads(await instance.result()))
                except anyio.get_cancelled_exc_class():
                    with anyio.CancelScope(shield=True):
                        await instance.cancel()
                    raise

        async with anyio.create_task_group() as tasks:
            if other:
                tasks.start_soon(arrive)
            decoded = await decode_together(
                client, digest, settings.instances, settings.prompt, settings.tokens
            )
            tasks.cancel_scope.cancel()
    return Beside(decoded, prompts_ms)


def fairness(settings: Settings, progress: Progress) -> Report:
    """Measures the time between tokens, without and with long prompts, for each
    `max_batch_tokens`.
    """
    progress.expect(3 * len(settings.batch_tokens))
    program = bench_programs([settings.language])[settings.language]
    long = settings.long
    report = Report(
        f"Time between tokens of {settings.instances} {settings.language} inferlets, ms",
        [
            *("max_batch_tokens", "long prompts", "p50", "p99", "longest"),
            *("prompts done", "ms a long prompt"),
        ],
        notes=[
            f"Long prompts have {long} tokens; one arrives when the one before it is done."
            f" `scheduler.prompt_ms` is {settings.prompt_ms:g}."
        ],
    )
    scheduler = SchedulerConfig(prompt_ms=settings.prompt_ms)
    for limit in settings.batch_tokens:
        length = settings.prompt + settings.tokens + 2 * long
        limited = with_room(settings.model, settings.instances, length)
        limited = limited.model_copy(update={"max_batch_tokens": limit})
        with users_server(2, limited, scheduler=scheduler) as (endpoint, (key, other)):
            for whose, arriving in (("none", None), ("the user's", key), ("another's", other)):
                run = anyio.run(_decode, endpoint, key, arriving, program, settings)
                gaps = run.decoded.gaps_ms
                report.rows.append(
                    [
                        limit,
                        whose,
                        statistics.median(gaps),
                        percentile(gaps, 0.99),
                        max(gaps),
                        len(run.prompts_ms),
                        statistics.median(run.prompts_ms) if run.prompts_ms else None,
                    ]
                )
                progress(f"{limit} a batch, long prompts: {whose}")
            if settings.prompt_ms:
                what = f"{limit} a batch, prompts of another user: p99, ms"
                report.goals.append(Goal(what, percentile(gaps, 0.99), settings.prompt_ms))
    return report


@contextmanager
def users_server(
    users: int, model: ModelConfig, **settings: Any
) -> Iterator[tuple[str, list[ClientKey]]]:
    """Runs a server with so many users: its address and their keys.

    Raises:
        ServerFailed: with the server's own reason.
    """
    with tempfile.TemporaryDirectory(prefix="pie-") as folder:
        store = KeyStore(Path(folder) / "data")
        keys = [store.add(f"user{number}") for number in range(users)]
        config = ServerConfig(
            endpoint="tcp://0.0.0.0:*",
            data_folder=Path(folder) / "data",
            models=(model,),
            log=LogConfig(level="warning"),
            quota=Quota(launches=1e6, share=1.0),  # a user alone may have all of it
            **settings,
        )
        with ServerProcess(config, Path(folder) / "log") as process:
            yield process.wait_ready().replace("0.0.0.0", "127.0.0.1"), keys


BENCHMARK = Benchmark(Settings, fairness)
