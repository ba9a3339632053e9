"""Inferlets in a whole server whose worker has a GPU."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from support.checkpoints import make_llama

from benchmarks.decoding import complete_all
from benchmarks.programs import bench_programs
from pie_py.bench.decoding import decode_in, random_prompt
from pie_py.bench.server import bench_server
from pie_py.build import BuildError
from pie_py.client import Client
from pie_py.config.model import ModelConfig


@pytest.fixture(scope="module")
def program() -> bytes:
    try:
        return bench_programs(["rust"])["rust"]
    except BuildError as error:
        pytest.skip(f"set PIE_BENCH_PROGRAM to the component: {error}")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llama(tmp_path_factory.mktemp("model") / "llama", head_dim=64, dtype="bfloat16")


def test_256_inferlets_at_once(folder: Path, program: bytes) -> None:
    model = ModelConfig(source=str(folder), device="cuda", kv_memory=2 << 30)

    async def run(endpoint: str) -> None:
        decoded = await decode_in(endpoint, program, 256, 40, 48)
        assert len(decoded.times) == 256
        assert all(len(times) == 48 for times in decoded.times)

    with bench_server(model) as server:
        anyio.run(run, server.endpoint)


def test_more_pages_than_there_are(folder: Path, program: bytes) -> None:
    """Some wait or are swapped, all come to their end."""
    model = ModelConfig(
        source=str(folder), device="cuda", kv_pages=40, host_pages=200, graph_batch=16
    )

    async def run(endpoint: str) -> None:
        async with Client(endpoint) as client:
            digest = await client.upload(program, name="bench")
            vocabulary = (await client.models())[0]["vocab_size"]
            prompts = [random_prompt(60, vocabulary, seed) for seed in range(10)]  # of 5 pages
            await complete_all(client, digest, prompts, 4)

    with bench_server(model) as server:
        anyio.run(run, server.endpoint)
