"""`pie-py bench fairness`: what those that decode notice of long prompts that arrive meanwhile.

Some inferlets decode; once alone, and once while others, one after the other, fill in long prompts.
What counts is the time between two tokens of one inferlet, and most of all its longest ones. How
much of a prompt shares a step with the others' tokens is the model's `max_batch_tokens`.
"""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass, field

import anyio

from pie_py.bench import options
from pie_py.bench.benchmark import Benchmark, Progress
from pie_py.bench.decoding import Decoded, decode_together
from pie_py.bench.programs import bench_programs
from pie_py.bench.report import Report, percentile
from pie_py.bench.server import bench_server, with_room
from pie_py.client import Client
from pie_py.config.model import ModelConfig


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


@dataclass
class Beside:
    """What decoding was like while prompts arrived."""

    decoded: Decoded
    prompts_ms: list[float] = field(default_factory=list)  # from launch to the prompt's end


async def _decode(endpoint: str, program: bytes, settings: Settings, long: int) -> Beside:
    """Decodes while prompts of `long` tokens arrive, or alone if that is 0."""
    prompts_ms: list[float] = []
    async with Client(endpoint) as client:
        digest = await client.upload(program, name="bench")

        async def arrive() -> None:
            while True:
                instance = await client.launch(digest, ["prefill", str(long)])
                try:
                    prompts_ms.append(json.loads(await instance.result()))
                except anyio.get_cancelled_exc_class():
                    with anyio.CancelScope(shield=True):
                        await instance.cancel()
                    raise

        async with anyio.create_task_group() as tasks:
            if long:
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
    progress.expect(2 * len(settings.batch_tokens))
    program = bench_programs([settings.language])[settings.language]
    long = settings.long
    report = Report(
        f"Time between tokens of {settings.instances} {settings.language} inferlets, ms",
        [
            *("max_batch_tokens", "long prompts", "p50", "p99", "longest"),
            *("prompts done", "ms a long prompt"),
        ],
        notes=[f"Long prompts have {long} tokens; one arrives when the one before it is done."],
    )
    for limit in settings.batch_tokens:
        length = settings.prompt + settings.tokens + 2 * long
        limited = with_room(settings.model, settings.instances, length)
        limited = limited.model_copy(update={"max_batch_tokens": limit})
        with bench_server(limited) as server:
            for arriving in (0, long):
                run = anyio.run(_decode, server.endpoint, program, settings, arriving)
                gaps = run.decoded.gaps_ms
                report.rows.append(
                    [
                        limit,
                        "arrive" if arriving else "none",
                        statistics.median(gaps),
                        percentile(gaps, 0.99),
                        max(gaps),
                        len(run.prompts_ms),
                        statistics.median(run.prompts_ms) if run.prompts_ms else None,
                    ]
                )
                progress(f"{limit} a batch, {'with' if arriving else 'without'} long prompts")
    return report


BENCHMARK = Benchmark(Settings, fairness)
