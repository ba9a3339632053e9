"""`pie-py bench fairness`: what those that decode notice of long prompts that arrive meanwhile.

Some inferlets decode; once alone, and once while others, one after the other, fill in long prompts. What
counts is the time between two tokens of one inferlet, and most of all its longest ones. How much of a
prompt shares a step with the others' tokens is the model's `max_batch_tokens`.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import anyio

from pie_py.bench.decoding import Decoded, decode_together
from pie_py.bench.programs import bench_programs
from pie_py.bench.report import Report, percentile
from pie_py.bench.server import bench_server, with_room
from pie_py.client import Client
from pie_py.config.server import ModelConfig


@dataclass
class Beside:
    """What decoding was like while prompts arrived."""

    decoded: Decoded
    prompts_ms: list[float] = field(default_factory=list)  # from launch to the prompt's end


async def _decode(
    endpoint: str, program: bytes, count: int, prompt: int, tokens: int, long: int
) -> Beside:
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
            decoded = await decode_together(client, digest, count, prompt, tokens)
            tasks.cancel_scope.cancel()
    return Beside(decoded, prompts_ms)


def fairness(
    model: ModelConfig,
    count: int,
    language: str,
    batch_tokens: Sequence[int],
    prompt: int,
    long: int,
    tokens: int,
    progress: Callable[[str], None],
) -> Report:
    """Measures the time between tokens, without and with long prompts, for each `max_batch_tokens`."""
    program = bench_programs([language])[language]
    report = Report(
        f"Time between tokens of {count} {language} inferlets, ms",
        [
            *("max_batch_tokens", "long prompts", "p50", "p99", "longest"),
            *("prompts done", "ms a long prompt"),
        ],
        notes=[f"Long prompts have {long} tokens; one arrives when the one before it is done."],
    )
    for limit in batch_tokens:
        limited = with_room(model, count, prompt + tokens + 2 * long)
        limited = limited.model_copy(update={"max_batch_tokens": limit})
        with bench_server(limited) as server:
            for length in (0, long):
                run = anyio.run(_decode, server.endpoint, program, count, prompt, tokens, length)
                gaps = run.decoded.gaps_ms
                report.rows.append(
                    [
                        limit,
                        "arrive" if length else "none",
                        statistics.median(gaps),
                        percentile(gaps, 0.99),
                        max(gaps),
                        len(run.prompts_ms),
                        statistics.median(run.prompts_ms) if run.prompts_ms else None,
                    ]
                )
                progress(f"{limit} a batch, {'with' if length else 'without'} long prompts")
    return report
