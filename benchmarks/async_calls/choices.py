"""The trap handler's choices over context length and wait (AsyncLM, figure 7)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio

from benchmarks.async_calls.measure import HOST_PAGES, KV_PAGES
from pie_py.bench.report import Report
from pie_py.bench.server import bench_server
from pie_py.client import Client
from pie_py.config.model import ModelConfig

TOKENS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
WAITS_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500)


def choices(model: ModelConfig, tokens: Sequence[int], waits_ms: Sequence[int]) -> Report:
    """The server's advice for each context length, from the costs measured by its worker."""

    async def ask(endpoint: str) -> list[dict[str, Any]]:
        async with Client(endpoint) as client:
            source = (Path(__file__).parent / "guest.py").read_bytes()
            digest = await client.upload(source, name="trap_choices")
            given = {
                "policy": "cheapest",
                "tokens": tokens,
                "seconds": [wait / 1e3 for wait in waits_ms],
            }
            instance = await client.launch(digest, [json.dumps(given)])
            found: list[dict[str, Any]] = json.loads(await instance.result())
            return found

    sized = {
        "kv_pages": model.kv_pages or KV_PAGES,
        "host_pages": model.host_pages or HOST_PAGES,
    }
    with bench_server(model.model_copy(update=sized)) as server:
        found = anyio.run(ask, server.endpoint)
    rows = [
        [
            row["tokens"],
            *(_ms(row[way]) for way in ("swap", "recompute")),
            *(choice[0].upper() for choice in row["choices"]),
        ]
        for row in found
    ]
    return Report(
        f"What a trap does with the KV cache: {Path(model.source).name}",
        ["tokens", "swap ms", "recompute ms", *map(str, waits_ms)],
        rows,
        [
            "Rows: tokens of the context, and what it costs to move its pages out and back and to"
            " compute them again, as measured by the worker; columns: the wait that is expected,"
            " in ms. P, preserve, where both take longer than that, else the quicker of the two:"
            " S, swap, or D, discard and recompute: the server's advice by its policy `cheapest`"
            " (AsyncLM, section 5.4)."
        ],
    )


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else 1e3 * seconds
