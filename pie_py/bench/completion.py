"""`pie-py bench completion`: time per output token against an ideal loop, and vLLM where it is.

All peers run the same checkpoint in the same run, one after the other, in rounds: prompts of random
tokens, greedy, no stop token. Prefill is in nobody's figure: the time per token is taken while all the
instances decode, from the moment that the last of them has its first token.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import anyio

from pie_py.bench.programs import bench_programs, random_prompt
from pie_py.bench.report import Report
from pie_py.bench.server import bench_server
from pie_py.client import Client
from pie_py.config import ModelConfig


async def _milliseconds_a_token(
    endpoint: str, program: bytes, batch: int, prompt: int, tokens: int
) -> float:
    """Median over the instances of the time per token while all decode, ms."""
    times: list[list[int]] = []
    async with Client(endpoint) as client:
        digest = await client.upload(program, name="bench")
        vocabulary = (await client.models())[0]["vocab_size"]

        async def one(seed: int) -> None:
            text = random_prompt(prompt, vocabulary, seed)
            instance = await client.launch(digest, ["complete", text, str(tokens)])
            times.append(json.loads(await instance.result()))

        async with anyio.create_task_group() as tasks:
            for seed in range(batch):
                tasks.start_soon(one, seed)
    return _decoding(times)


def _decoding(times: list[list[int]]) -> float:
    """Milliseconds a token, of instances' token times in ns, from the last first token on.

    Raises:
        RuntimeError: if some had ended before others began: too few tokens to measure anything.
    """
    start = max(own[0] for own in times)
    figures = []
    for own in times:
        after = sum(time > start for time in own)
        if after < 2:
            raise RuntimeError("the instances hardly overlap: ask for more --tokens")
        figures.append((own[-1] - own[-after]) / (after - 1) / 1e6)
    return statistics.median(figures)


def _ideal(folder: str, batch: int, prompt: int, tokens: int) -> float:
    command = [
        sys.executable,
        "-m",
        "pie_py.bench.ideal_loop",
        folder,
        "--batch",
        str(batch),
        "--prompt",
        str(prompt),
        "--tokens",
        str(tokens),
        "--rounds",
        "2",
    ]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    figure: float = json.loads(run.stdout)[str(batch)]
    return figure


def _vllm(
    python: str, folder: str, batches: Sequence[int], prompt: int, tokens: int
) -> list[float]:
    """Median time per token of vLLM in its own environment, for each batch size."""
    script = Path(__file__).parent / "vllm_loop.py"
    command = [python, str(script), folder, str(prompt), str(tokens), *map(str, batches)]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    figures: dict[str, float] = json.loads(run.stdout.splitlines()[-1])
    return [figures[str(batch)] for batch in batches]


def completion(
    model: ModelConfig,
    batches: Sequence[int],
    languages: Sequence[str],
    rounds: int,
    prompt: int,
    tokens: int,
    vllm_python: str | None,
    progress: Callable[[str], None],
) -> Report:
    """Measures completion against servers of its own and the peers."""
    ideal: dict[int, list[float]] = {batch: [] for batch in batches}
    ours: dict[str, dict[int, list[float]]] = {
        language: {batch: [] for batch in batches} for language in languages
    }
    programs = bench_programs(languages)
    with bench_server(model) as endpoint:
        progress("the server runs")
        folder = _folder(endpoint)
        for _ in range(rounds):
            for batch in batches:
                ideal[batch].append(_ideal(folder, batch, prompt, tokens))
                for language, program in programs.items():
                    ours[language][batch].append(
                        anyio.run(_milliseconds_a_token, endpoint, program, batch, prompt, tokens)
                    )
                progress(f"{batch} at once")
    peer = _vllm(vllm_python, folder, batches, prompt, tokens) if vllm_python else None
    progress("the peer")
    rows: list[list[object]] = []
    for i, batch in enumerate(batches):
        base = statistics.median(ideal[batch])
        row: list[object] = [batch, base]
        for language in languages:
            figure = statistics.median(ours[language][batch])
            row += [figure, f"{figure / base:.2f}×"]
        if peer is not None:
            row += [peer[i], f"{peer[i] / base:.2f}×"]
        rows.append(row)
    columns = ["at once", "ideal loop"]
    for language in languages:
        columns += [f"pie_py, {language}", "ratio"]
    if peer is not None:
        columns += ["vLLM", "ratio"]
    return Report(
        f"Completion: ms per token, {prompt} prompt and {tokens} new tokens, {Path(folder).name}",
        columns,
        rows,
        ["The ideal loop has no server and a static cache; ratios are to it."],
    )


def _folder(endpoint: str) -> str:
    """Where the served checkpoint lies; the server tells clients on its own machine."""

    async def ask() -> str:
        async with Client(endpoint) as client:
            folder: str = (await client.models())[0]["folder"]
            return folder

    return anyio.run(ask)
