"""`agents`: conversations over HTTP that call a tool in each turn, with too little memory for all.

Half of them have a tool that is fast, half a slow one. Each is a growing chat behind a common
beginning. They run with the ids of calls as the server gives them, by which it knows which
conversation goes on, and, in turns, with ids of the client's own: then waits never seem to end.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from statistics import mean, median
from typing import Any

import anyio
import openai

from benchmarks import options
from benchmarks.benchmark import Benchmark, Progress
from benchmarks.http.gateway import http_gateway
from pie_py.bench.report import Goal, Report, percentile
from pie_py.bench.server import bench_server
from pie_py.config.model import ModelConfig

WORDS = ("the", "dog", "house", "river", "ran", "saw", "red", "old", "small", "with", "and", "then")
RESULT = {"type": "object", "properties": {"topic": {"enum": ["x", "y"]}}, "required": ["topic"]}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Conversations with tools over HTTP, whose calls are known or not: times, hits."""

    model: ModelConfig = options.model()
    sessions: int = options.count("--sessions", 12, "Conversations at once.")
    turns: int = options.count("--turns", 6, "Of each; then another one begins.")
    seconds: float = options.real("--seconds", 25.0, "Of a round, in which the last ones begin.")
    words: int = options.count("--words", 100, "That each tool's result has.")
    fast: float = options.real("--fast", 0.3, "Seconds that the fast tool takes, in the mean.")
    slow: float = options.real("--slow", 6.0, "Seconds that the slow one takes.")
    pages: int = options.count("--pages", 400, "KV pages.")
    rounds: int = options.count("--rounds", 3, "With each policy, in turns.")


@dataclass
class _Seen:
    """What conversations have seen."""

    first: list[float] = field(default_factory=list)  # seconds to the first token of later turns
    whole: list[float] = field(default_factory=list)  # seconds of conversations without tools' time
    asked: int = 0  # tokens of later turns' prompts
    cached: int = 0


async def _talk(
    client: openai.AsyncOpenAI, settings: Settings, number: int, seed: str, seen: _Seen, known: bool
) -> None:
    chance = random.Random(f"{seed} {number}")
    tool, seconds = ("read", settings.fast) if number % 2 else ("build", settings.slow)

    def text() -> str:
        return " ".join(chance.choices(WORDS, k=settings.words))

    function = {"name": tool, "parameters": RESULT}
    messages: list[Any] = [{"role": "user", "content": f"{seed} {number} {text()}"}]
    busy = 0.0
    for turn in range(settings.turns):
        begun, first, cached, prompt = time.perf_counter(), None, 0, 0
        arguments, name = "", f"{seed}-{number}-{turn}"
        stream: Any = await client.chat.completions.create(  # type: ignore[call-overload]
            model="",
            messages=messages,
            tools=[{"type": "function", "function": function}],
            tool_choice="none"
            if turn == settings.turns - 1
            else {"type": "function", "function": {"name": tool}},
            max_tokens=60,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
        async for chunk in stream:
            if first is None:
                first = time.perf_counter() - begun
            for choice in chunk.choices:
                for call in choice.delta.tool_calls or []:
                    name = call.id or name
                    arguments += call.function.arguments
            if chunk.usage is not None:
                prompt, cached = chunk.usage.prompt_tokens, _cached(chunk.usage)
        busy += time.perf_counter() - begun
        if turn:
            seen.first.append(first or 0.0)
            seen.asked, seen.cached = seen.asked + prompt, seen.cached + cached
        if turn == settings.turns - 1:
            break
        if not known:
            name = f"own{seed}-{number}-{turn}"
        call = {"id": name, "type": "function", "function": {"name": tool, "arguments": arguments}}
        messages += [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": name, "content": text()},
        ]
        await anyio.sleep(seconds * chance.uniform(0.7, 1.3))
    seen.whole.append(busy)


def _cached(usage: Any) -> int:
    return usage.prompt_tokens_details.cached_tokens or 0


async def _round(url: str, settings: Settings, seed: str, seen: _Seen, known: bool) -> None:
    async with (
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", timeout=600) as client,
        anyio.create_task_group() as tasks,
    ):
        end = time.perf_counter() + settings.seconds

        async def one_after_the_other(place: int) -> None:
            await anyio.sleep(0.2 * place)
            number = place
            while time.perf_counter() < end:
                await _talk(client, settings, number, seed, seen, known)
                number += 2 * settings.sessions  # with the same tool

        for place in range(settings.sessions):
            tasks.start_soon(one_after_the_other, place)


async def _measure(url: str, settings: Settings, progress: Progress) -> tuple[_Seen, _Seen]:
    found = _Seen(), _Seen()
    await _round(url, settings, "warm", _Seen(), known=True)  # and the tools' times are learned
    progress("warm")
    for number in range(settings.rounds):
        for known in (True, False) if number % 2 else (False, True):
            await _round(url, settings, f"r{number}{known}", found[known], known)
        progress(f"round {number + 1}")
    return found


def agents(settings: Settings, progress: Progress) -> Report:
    """Measures on one server, with both policies in turns."""
    progress.expect(1 + settings.rounds)
    model = settings.model.model_copy(update={"kv_pages": settings.pages})
    with bench_server(model) as server, http_gateway(server.endpoint) as gateway:
        lru, waits = anyio.run(_measure, gateway.url, settings, progress)
    rows: list[list[Any]] = []
    for name, seen in (("ids of the calls", waits), ("ids of the client's own", lru)):
        hits = seen.cached / seen.asked
        first = [median(seen.first), percentile(seen.first, 0.95)]
        rows.append([name, hits, *(1e3 * each for each in first), mean(seen.whole)])
    return Report(
        "Conversations with tools",
        ["policy", "of prompts cached", "ms to the first token", "p95", "s of a conversation"],
        rows,
        [
            f"{settings.sessions} conversations of {settings.turns} turns at once for"
            f" {settings.seconds:g} s, {settings.pages} pages; tools take {settings.fast:g} and"
            f" {settings.slow:g} s.",
            "First tokens are those of later turns; a conversation's seconds lack its tools'.",
        ],
        [
            Goal(
                "share of prompts cached, of those with ids of their own",
                rows[0][1] / rows[1][1],
                1.0,
                at_most=False,
            ),
            Goal(
                "seconds of a conversation, of those with ids of their own",
                rows[0][4] / rows[1][4],
                1.0,
            ),
        ],
    )


BENCHMARK = Benchmark(Settings, agents)
