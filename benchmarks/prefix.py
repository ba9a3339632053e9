"""`prefix`: many requests whose prompts share a prefix, with prefix caches and without.

All requests come at once. *First*: the shared prefix is not cached yet. *Again*: further requests
with the same prefix come later. Ours keep nothing by hand: the SDK's contexts find what others have
computed.
"""

from __future__ import annotations

import json
import random
import statistics
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import anyio

from benchmarks import peers
from benchmarks.compare import VLLM, checkpoint_facts
from pie_py.bench import options
from pie_py.bench.benchmark import Benchmark, Progress
from pie_py.bench.decoding import complete_all, rest
from pie_py.bench.programs import bench_programs
from pie_py.bench.report import Goal, Report
from pie_py.bench.server import bench_server, with_room
from pie_py.client import Client
from pie_py.config.model import ModelConfig
from pie_py.config.scheduling import PrefixCacheConfig

Prompts = list[list[int]]
Side = Callable[[Prompts, int], float]  # prompts, new tokens -> seconds until all are done
Case = tuple[str, bool]  # a side's name, and whether its cache is on


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Requests whose prompts begin alike: ours and vLLM's prefix caches, on and off."""

    model: ModelConfig = options.model("tiny")
    languages: tuple[str, ...] = options.languages()
    requests: int = options.count("--requests", 32, "Requests at the same time.")
    shared: int = options.count("--shared", 512, "Tokens that all prompts begin with.")
    own: int = options.count("--own", 16, "Tokens of each prompt behind these.")
    tokens: int = options.tokens(16)
    rounds: int = options.rounds(5)
    rest: float = options.rest()
    vllm_python: str | None = peers.vllm_python()


@dataclass
class Times:
    """Seconds of the rounds."""

    first: list[float] = field(default_factory=list)
    again: list[float] = field(default_factory=list)


def _ours(endpoint: str, program: bytes, pause: float) -> Side:
    async def run(prompts: Prompts, tokens: int) -> float:
        async with Client(endpoint) as client:
            digest = await client.upload(program, name="bench")
            other = json.dumps(prompts[0][-1:])
            await rest(client, digest, other, pause)
            seconds = await complete_all(client, digest, [json.dumps(p) for p in prompts], tokens)
            await rest(client, digest, other, pause)
            return seconds

    return lambda prompts, tokens: anyio.run(run, prompts, tokens)


def _theirs(peer: peers.Peer) -> Side:
    return lambda prompts, tokens: peer.measure(prompts, tokens, steps=False).seconds


def prefix(settings: Settings, progress: Progress) -> Report:
    """Measures requests that share `shared` tokens and have `own` ones behind, in turns."""
    sides = 2 * (len(settings.languages) + (settings.vllm_python is not None))
    progress.expect(1 + sides * (settings.rounds + 1))
    times: dict[Case, Times] = {}
    with _sides(settings) as (loaded, vocabulary):
        progress("all sides are loaded")

        def some(count: int) -> list[int]:
            return random.choices(range(16, vocabulary), k=count)

        for turn in range(-1, settings.rounds):  # the first one warms all sides up
            for case, side in loaded.items():
                prefix = some(settings.shared)
                batches = [
                    [prefix + some(settings.own) for _ in range(settings.requests)]
                    for _ in range(2)
                ]
                first, again = (side(batch, settings.tokens) for batch in batches)
                if turn >= 0:
                    found = times.setdefault(case, Times())
                    found.first.append(first)
                    found.again.append(again)
                progress(f"{case[0]}, {'with' if case[1] else 'without'} a cache")
    return _report(times, settings)


@contextmanager
def _sides(settings: Settings) -> Iterator[tuple[dict[Case, Side], int]]:
    """All sides, loaded, and how many tokens the checkpoint knows."""
    programs = bench_programs(settings.languages)
    longest = settings.shared + settings.own + settings.tokens
    model = with_room(settings.model, 4 * settings.requests, longest)
    sides: dict[Case, Side] = {}
    with ExitStack() as stack:
        for cached in (True, False):
            config = PrefixCacheConfig(enabled=cached)
            server = stack.enter_context(bench_server(model, prefix_cache=config))
            folder, vocabulary = checkpoint_facts(server.endpoint)
            for language, program in programs.items():
                sides[language, cached] = _ours(server.endpoint, program, settings.rest)
        if (python := settings.vllm_python) is not None:
            for cached in (True, False):
                flags = ["--prefix-caching"] if cached else []
                peer = stack.enter_context(peers.vllm(python, folder, longest, *flags))
                peer.wait_ready()
                sides[VLLM, cached] = _theirs(peer)
        yield sides, vocabulary


def _report(times: dict[Case, Times], settings: Settings) -> Report:
    report = Report(
        f"{settings.requests} requests at once: {settings.shared} tokens shared, {settings.own} of"
        f" their own, {settings.tokens} new",
        ["side", "cache", "first, s", "again, s", "first, gain", "again, gain"],
        notes=[
            f"Medians of {settings.rounds} rounds in turns; gains are over the same side's without."
        ],
    )
    medians = {
        case: (statistics.median(found.first), statistics.median(found.again))
        for case, found in times.items()
    }
    for (side, cached), own_times in medians.items():
        base = medians[side, False]
        gains = [b / t if cached else None for b, t in zip(base, own_times, strict=True)]
        report.rows.append([side, "on" if cached else "off", *own_times, *gains])
    peer = medians.get((VLLM, True))
    if peer is not None:
        for (side, cached), own_times in medians.items():
            if cached and side != VLLM:
                for when, ours, theirs in zip(("first", "again"), own_times, peer, strict=True):
                    what = f"{side}, {when}: seconds over vLLM's with its cache"
                    report.goals.append(Goal(what, ours / theirs, 1.0))
    return report


BENCHMARK = Benchmark(Settings, prefix)
