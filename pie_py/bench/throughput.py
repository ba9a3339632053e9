"""`pie-py bench throughput`: programs that generate at the same time, and how fast."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import anyio

from pie_py.bench.decoding import decode_in
from pie_py.bench.report import Report, percentile
from pie_py.bench.server import bench_server, with_room
from pie_py.config.model import ModelConfig

PROGRAM = Path(__file__).parent / "guests" / "decode.py"


def throughput(model: ModelConfig, at_once: Sequence[int], prompt: int, tokens: int) -> Report:
    """Measures a server of its own, one number of programs after the other."""
    report = Report(
        f"{model.name or model.source}: {prompt} prompt and {tokens} new tokens each",
        [
            *("at once", "tokens/s", "ms a token", "p50", "p99"),
            *("ms from the first launch to the last end",),
        ],
        notes=["p50 and p99: between two tokens of one program, while all generate."],
    )
    program = PROGRAM.read_bytes()
    with bench_server(with_room(model, max(at_once), prompt + tokens)) as server:
        anyio.run(decode_in, server.endpoint, program, 1, prompt, tokens)  # it is compiled once
        for count in at_once:
            start = time.perf_counter()
            found = anyio.run(decode_in, server.endpoint, program, count, prompt, tokens)
            whole = (time.perf_counter() - start) * 1e3
            gaps = found.gaps_ms
            report.rows.append(
                [
                    *(count, found.tokens / found.seconds, found.ms_a_token),
                    *(statistics.median(gaps), percentile(gaps, 0.99), whole),
                ]
            )
    return report
