"""`compare`: completions beside an ideal loop and vLLM, on the same checkpoint, in one run.

All sides are loaded, then measured in turns, round after round; those that are not measured sleep.
Prompts are random tokens, decoding is greedy, there is no stop token. Two figures of each: the time
per output token while all decode, in which there is no prefill; and tokens per second from the
first request to the last token of all, prefill (and of ours the launch of the inferlets) included.
With `--busy`, ours once more while other processes compute on half of the cores. It is held to the
ideal loop with half of the cores, and nothing beside it.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio

from benchmarks import options
from benchmarks import peers as peer_processes
from benchmarks.benchmark import Benchmark, Progress
from benchmarks.decoding import complete_all, rest
from benchmarks.programs import bench_programs
from pie_py.bench.decoding import WARM_TOKENS, decode_together
from pie_py.bench.report import Goal, Report
from pie_py.bench.server import bench_server, with_room
from pie_py.client import Client
from pie_py.config.model import ModelConfig

IDEAL, VLLM = "ideal", "vllm"
HALF, BUSY = "ideal, half the cores", ", busy machine"
HALF_THE_CORES = max(1, (os.cpu_count() or 1) // 2)
BUSY_GOAL = 1.3  # time per token over that of the ideal loop with half of the cores
COMPUTING = "while True: pass"
VLLM_FLAGS = {VLLM: (), "vllm-compiled": ("--compile",)}  # as its users run it: compiled
PEERS = (IDEAL, *VLLM_FLAGS)
# Time per token over that of the ideal loop, by checkpoint and how many decode at once.
IDEAL_GOALS = {
    "tiny": {1: 1.15, 8: 1.1, 32: 1.0},
    "small": {1: 1.05, 8: 1.0, 32: 0.7},
}
LANGUAGE_GOAL, LANGUAGE_GOAL_AT = 1.10, 32  # Python guests over Rust guests, time per token


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Time per token and throughput beside an ideal loop and vLLM, in one run on one checkpoint."""

    models: tuple[ModelConfig, ...] = options.models("tiny")
    peers: tuple[str, ...] = options.some_of(
        "--peer",
        PEERS,
        (IDEAL,),
        "What else is measured, in turns; `ideal` unless given. `vllm` runs eagerly. Repeatable.",
    )
    languages: tuple[str, ...] = options.languages()
    busy: bool = options.option("--busy", is_flag=True, help="Also while half the cores compute.")
    at_once: tuple[int, ...] = options.at_once("1,8,32")
    rounds: int = options.rounds(5)
    rest: float = options.rest()
    prompt: int = options.prompt()
    tokens: int = options.tokens(64)
    vllm_python: str | None = peer_processes.vllm_python()

    def prompts(self, batch: int, vocabulary: int) -> list[list[int]]:
        """New random prompts, without the special tokens at the vocabulary's start."""
        return [random.choices(range(16, vocabulary), k=self.prompt) for _ in range(batch)]


@dataclass
class Figures:
    """The figures of all rounds for one side."""

    ms_a_token: list[float] = field(default_factory=list)
    tokens_a_second: list[float] = field(default_factory=list)

    @property
    def ms(self) -> float:
        """Median time per token, ms."""
        return statistics.median(self.ms_a_token)

    @property
    def rate(self) -> float:
        """Median tokens per second."""
        return statistics.median(self.tokens_a_second)


Side = Callable[[int], tuple[float, float]]  # batch -> ms per token, tokens per second


@contextmanager
def _sides(
    model: ModelConfig, programs: dict[str, bytes], work: Settings, versions: dict[str, str]
) -> Iterator[dict[str, Side]]:
    """All sides, loaded, by name."""
    sides: dict[str, Side] = {}
    with ExitStack() as stack:
        server = stack.enter_context(bench_server(model))
        folder, vocabulary = _checkpoint_facts(server.endpoint)
        started = []
        most = work.prompt + work.tokens
        if IDEAL in work.peers:
            started.append(peer_processes.ideal(folder, most))
        if work.busy:
            half = "--threads", str(HALF_THE_CORES)
            started.append(peer_processes.ideal(folder, most, *half, name=HALF))
        for name, flags in VLLM_FLAGS.items():
            if name in work.peers:
                if work.vllm_python is None:
                    raise RuntimeError(f"the peer {name} needs --vllm-python: a Python with vLLM")
                started.append(
                    peer_processes.vllm(work.vllm_python, folder, most, *flags, name=name)
                )
        for peer in started:
            stack.enter_context(peer)
        for peer in started:
            peer.wait_ready()
            versions[peer.name] = peer.version
            sides[peer.name] = _peer_side(peer, work, vocabulary)
        for language, program in programs.items():
            side = _our_side(server.endpoint, program, work, vocabulary)
            sides[language] = side
            if work.busy:
                sides[language + BUSY] = _beside_others(side)
        yield sides


def _peer_side(peer: peer_processes.Peer, work: Settings, vocabulary: int) -> Side:
    def measure(batch: int) -> tuple[float, float]:
        prompts = work.prompts(batch, vocabulary)
        measured = peer.measure(prompts, work.tokens)
        assert measured.ms_a_token is not None
        return measured.ms_a_token, batch * work.tokens / measured.seconds

    return measure


def _beside_others(side: Side) -> Side:
    def measure(batch: int) -> tuple[float, float]:
        with ExitStack() as stack:
            for _ in range(HALF_THE_CORES):
                process = stack.enter_context(subprocess.Popen([sys.executable, "-c", COMPUTING]))
                stack.callback(process.kill)
            return side(batch)

    return measure


def _our_side(endpoint: str, program: bytes, work: Settings, vocabulary: int) -> Side:
    async def run(batch: int) -> tuple[float, float]:
        async with Client(endpoint) as client:
            digest = await client.upload(program, name="bench")
            decoded = await decode_together(
                client, digest, batch, work.prompt, work.tokens + WARM_TOKENS
            )
            other, *prompts = (json.dumps(p) for p in work.prompts(batch + 1, vocabulary))
            await rest(client, digest, other, work.rest)
            seconds = await complete_all(client, digest, prompts, work.tokens)
            await rest(client, digest, other, work.rest)
            return decoded.ms_a_token, batch * work.tokens / seconds

    return lambda batch: anyio.run(run, batch)


def _checkpoint_facts(endpoint: str) -> tuple[str, int]:
    """Where the served checkpoint lies, and how many tokens it knows."""

    async def ask() -> tuple[str, int]:
        async with Client(endpoint) as client:
            facts = (await client.models())[0]
            return facts["folder"], facts["vocab_size"]

    return anyio.run(ask)


def compare(settings: Settings, progress: Progress) -> Report:
    """Measures pie_py and its peers in turns."""
    progress.expect(len(settings.models) * (1 + len(settings.at_once) * (settings.rounds + 1)))
    versions: dict[str, str] = {}
    report = Report(
        f"Completion: {settings.prompt} prompt and {settings.tokens} new tokens, greedy",
        [
            "model",
            "at once",
            "side",
            "ms per token",
            "× ideal",
            "tokens/s",
            *map("× {}".format, VLLM_FLAGS),
        ],
    )
    for model in settings.models:
        for batch, row in _measure(model, settings, versions, progress).items():
            _add_rows(report, model_name(model), batch, row)
    report.notes = [
        f"Medians of {settings.rounds} rounds in turns. ms per token: while all decode; tokens/s:"
        " all of it.",
        *(f"{name}: {text}" for name, text in versions.items()),
    ]
    return report


def _measure(
    model: ModelConfig, settings: Settings, versions: dict[str, str], progress: Progress
) -> dict[int, dict[str, Figures]]:
    """Figures of one model, by how many decode at once and by side; adds the peers' versions."""
    figures: dict[int, dict[str, Figures]] = {}
    programs = bench_programs(settings.languages)
    roomy = with_room(model, max(settings.at_once), settings.prompt + settings.tokens)
    with _sides(roomy, programs, settings, versions) as sides:
        progress("all sides are loaded")
        for turn in range(-1, settings.rounds):  # the first one warms all sides up
            for batch in settings.at_once:
                row = figures.setdefault(batch, {})
                for name, side in sides.items():
                    ms, rate = side(batch)
                    if turn >= 0:
                        row.setdefault(name, Figures()).ms_a_token.append(ms)
                        row[name].tokens_a_second.append(rate)
                progress(f"{model_name(model)}, {batch} at once")
    return figures


def model_name(model: ModelConfig) -> str:
    """The checkpoint's name, less the dtype that those of the benchmarks have in theirs."""
    return Path(model.source).name.removesuffix("-bfloat16").removesuffix("-float32")


def _add_rows(report: Report, model: str, batch: int, figures: dict[str, Figures]) -> None:
    """Adds the rows of one batch size, and the goals that they can be held to."""
    base = figures.get(IDEAL)
    for name, own in figures.items():
        to_base = own.ms / base.ms if base is not None else None
        to_peers = {p: own.rate / figures[p].rate if p in figures else None for p in VLLM_FLAGS}
        report.rows.append([model, batch, name, own.ms, to_base, own.rate, *to_peers.values()])
        if name in PEERS or name == HALF:
            continue
        if name.endswith(BUSY):
            what = f"{model}, {batch} at once, {name}: time per token over {HALF}"
            report.goals.append(Goal(what, own.ms / figures[HALF].ms, BUSY_GOAL))
            continue
        what = f"{model}, {batch} at once, {name}"
        limit = IDEAL_GOALS.get(model, {}).get(batch)
        if limit is not None and to_base is not None:
            report.goals.append(
                Goal(f"{what}: time per token over the ideal loop's", to_base, limit)
            )
        for peer, ratio in to_peers.items():
            if ratio is not None:
                goal = Goal(f"{what}: tokens/s over {peer}'s", ratio, 1.0, at_most=False)
                report.goals.append(goal)
    if batch == LANGUAGE_GOAL_AT and {"rust", "python"} <= figures.keys():
        ratio = figures["python"].ms / figures["rust"].ms
        what = f"{model}, {batch} at once: Python guests' time per token over Rust guests'"
        report.goals.append(Goal(what, ratio, LANGUAGE_GOAL))


BENCHMARK = Benchmark(Settings, compare)
