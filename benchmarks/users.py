"""`users`: what it costs that users share a server fairly: the same work of one user, and of many.

The same instances run over the same number of connections; once all belong to one user, once each
connection has a user of its own. Beside others a user's turns, batches and prompts are measured
and charged, and long prompts run in parts.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

import anyio

from pie_py.bench import options
from pie_py.bench.benchmark import Benchmark, Progress
from pie_py.bench.programs import bench_programs, random_prompt
from pie_py.bench.report import Goal, Report
from pie_py.bench.server import users_server, with_room
from pie_py.client import Client
from pie_py.config.keys import ClientKey
from pie_py.config.model import ModelConfig
from pie_py.config.scheduling import SchedulerConfig

MOST_LOST = 0.02  # of throughput and launches
LONG_TOKENS = 4  # that are generated after a long prompt


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Throughput and launches of many users, as ratios to the same work of one user."""

    model: ModelConfig = options.model()
    language: str = options.language()
    users: int = options.count("--users", 4, "Users, or connections of one.", least=2)
    instances: int = options.count("--instances", 32, "Inferlets at the same time.")
    launches: int = options.count("--launches", 800, "Of each round.")
    tokens: int = options.tokens(128)
    prompt: int = options.prompt()
    long: int = options.count("--long", 1500, "Tokens of a long prompt.")
    prompt_ms: float = options.prompt_ms()
    rounds: int = options.rounds(5)


Launch = Callable[[Client, str, int], Coroutine[None, None, None]]  # of a number


async def _seconds(clients: Sequence[Client], program: str, count: int, one: Launch) -> float:
    """From the first launch to the last result."""
    start = time.perf_counter()
    async with anyio.create_task_group() as tasks:
        for number in range(count):
            tasks.start_soon(one, clients[number % len(clients)], program, number)
    return time.perf_counter() - start


def _complete(prompt: int, tokens: int, vocabulary: int) -> Launch:
    async def one(client: Client, program: str, number: int) -> None:
        text = random_prompt(prompt, vocabulary, time.perf_counter() + number)
        await (await client.launch(program, ["complete", text, str(tokens)])).result()

    return one


async def _measure(
    endpoint: str, keys: Sequence[ClientKey], data: bytes, settings: Settings, progress: Progress
) -> dict[tuple[str, bool], list[float]]:
    """Seconds of each round, by kind of work and whether the users are several."""
    found: dict[tuple[str, bool], list[float]] = {}
    async with AsyncExitStack() as stack:
        sides = {}
        for several in (False, True):
            of = keys if several else [keys[0]] * len(keys)
            sides[several] = [await stack.enter_async_context(Client(endpoint, key)) for key in of]
        for client in sides[True]:
            program = await client.upload(data, name="bench")
        vocabulary = (await sides[True][0].models())[0]["vocab_size"]
        kinds = {
            "decoding": (
                settings.instances,
                _complete(settings.prompt, settings.tokens, vocabulary),
            ),
            "prompts": (settings.instances, _complete(settings.long, LONG_TOKENS, vocabulary)),
            "launches": (settings.launches, _complete(16, 1, vocabulary)),
        }
        for turn in range(-1, settings.rounds):
            for kind, (count, one) in kinds.items():
                for several in (turn % 2 == 0, turn % 2 != 0):
                    seconds = await _seconds(sides[several], program, count, one)
                    if turn >= 0:
                        found.setdefault((kind, several), []).append(seconds)
                    progress(f"{kind} of {'several users' if several else 'one user'}")
    return found


def users(settings: Settings, progress: Progress) -> Report:
    """Measures both in turns, on a server of its own."""
    progress.expect(6 * (settings.rounds + 1))
    data = bench_programs([settings.language])[settings.language]
    model = with_room(settings.model, settings.instances, settings.long + settings.tokens)
    scheduler = SchedulerConfig(prompt_ms=settings.prompt_ms)
    with users_server(settings.users, model, scheduler=scheduler) as (endpoint, keys):
        found = anyio.run(_measure, endpoint, keys, data, settings, progress)
    report = Report(
        f"The same work of {settings.users} users and of one",
        ["work", "one user, s", "several, s", "ratio", "ratios of the rounds"],
        notes=["Throughput of several users as a ratio to that of one; medians of the rounds."],
    )
    for kind in ("decoding", "prompts", "launches"):
        alone, several = found[kind, False], found[kind, True]
        ratios = [one / many for one, many in zip(alone, several, strict=True)]
        ratio = statistics.median(ratios)
        shown = " ".join(f"{each:.3f}" for each in sorted(ratios))
        row = [kind, statistics.median(alone), statistics.median(several), ratio, shown]
        report.rows.append(row)
        report.goals.append(Goal(f"{kind}: ratio", ratio, 1 - MOST_LOST, at_most=False))
    return report


BENCHMARK = Benchmark(Settings, users)
