"""`pie-py bench prefix`: many requests whose prompts begin alike, with prefix caches and without.

All requests come at once. *First*: nobody has computed the shared beginning before. *Again*: others with
the same beginning come later. Ours keep nothing by hand: the SDK's contexts find what others have computed.
"""

from __future__ import annotations

import json
import random
import statistics
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import anyio

from pie_py.bench import peers
from pie_py.bench.compare import VLLM, checkpoint_facts
from pie_py.bench.decoding import complete_all, rest
from pie_py.bench.programs import bench_programs
from pie_py.bench.report import Goal, Report
from pie_py.bench.server import bench_server, with_room
from pie_py.client import Client
from pie_py.config.server import ModelConfig, PrefixCacheConfig

Prompts = list[list[int]]
Side = Callable[[Prompts, int], float]  # prompts, new tokens -> seconds until all are done


@dataclass
class Times:
    """Seconds of the rounds."""

    first: list[float] = field(default_factory=list)
    again: list[float] = field(default_factory=list)


def _ours(endpoint: str, program: bytes) -> Side:
    async def run(prompts: Prompts, tokens: int) -> float:
        async with Client(endpoint) as client:
            digest = await client.upload(program, name="bench")
            other = json.dumps(prompts[0][-1:])
            await rest(client, digest, other)
            seconds = await complete_all(client, digest, [json.dumps(p) for p in prompts], tokens)
            await rest(client, digest, other)
            return seconds

    return lambda prompts, tokens: anyio.run(run, prompts, tokens)


def _theirs(peer: peers.Peer) -> Side:
    return lambda prompts, tokens: peer.measure(prompts, tokens, steps=False).seconds


def prefix(
    model: ModelConfig,
    languages: Sequence[str],
    requests: int,
    shared: int,
    own: int,
    tokens: int,
    rounds: int,
    vllm_python: str | None,
    progress: Callable[[str], None],
) -> Report:
    """Measures requests that share `shared` tokens and have `own` ones behind, in turns."""
    programs = bench_programs(languages)
    sides: dict[tuple[str, bool], Side] = {}
    times: dict[tuple[str, bool], Times] = {}
    model = with_room(model, 4 * requests, shared + own + tokens)
    with ExitStack() as stack:
        for cached in (True, False):
            config = PrefixCacheConfig(enabled=cached)
            server = stack.enter_context(bench_server(model, prefix_cache=config))
            folder, vocabulary = checkpoint_facts(server.endpoint)
            for language, program in programs.items():
                sides[language, cached] = _ours(server.endpoint, program)
        if vllm_python is not None:
            for cached in (True, False):
                options = ["--prefix-caching"] if cached else []
                most = shared + own + tokens
                peer = stack.enter_context(peers.vllm(vllm_python, folder, most, *options))
                peer.wait_ready()
                sides[VLLM, cached] = _theirs(peer)
        progress("all sides are loaded")

        def some(count: int) -> list[int]:
            return random.choices(range(16, vocabulary), k=count)

        for turn in range(-1, rounds):  # the first one warms everybody up
            for case, side in sides.items():
                beginning = some(shared)
                batches = [[beginning + some(own) for _ in range(requests)] for _ in range(2)]
                first, again = (side(batch, tokens) for batch in batches)
                if turn >= 0:
                    found = times.setdefault(case, Times())
                    found.first.append(first)
                    found.again.append(again)
                progress(f"{case[0]}, {'with' if case[1] else 'without'} a cache")
    return _report(times, requests, shared, own, tokens, rounds)


def _report(
    times: dict[tuple[str, bool], Times],
    requests: int,
    shared: int,
    own: int,
    tokens: int,
    rounds: int,
) -> Report:
    report = Report(
        f"{requests} requests at once: {shared} tokens shared, {own} of their own, {tokens} new",
        ["side", "cache", "first, s", "again, s", "first, gain", "again, gain"],
        notes=[f"Medians of {rounds} rounds in turns; gains are over the same side's without."],
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
