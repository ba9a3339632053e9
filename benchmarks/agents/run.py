"""`agents`: whole sessions of agents over HTTP, with memory for a part of them, beside vLLM.

Sessions are those of AgentX's figures (43 turns, 142 000 tokens, subagents in 44 %), scaled to what
a small model on two cores can hold, or a recorded one's. All sides get the same requests, and KV
pages of the same bytes.
"""

from __future__ import annotations

import random
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, median
from typing import Any

import anyio
import click
import openai

from benchmarks import options
from benchmarks.agents.sessions import (
    OUTPUT,
    WORDS,
    Session,
    Shape,
    Turn,
    drawn,
    longest,
    read_trace,
    traced,
)
from benchmarks.agents.simulated import simulated
from benchmarks.benchmark import Benchmark, Progress
from benchmarks.http.gateway import http_gateway
from benchmarks.http.vllm import NAME, vllm_program, vllm_serve
from benchmarks.peers import vllm_python
from pie_py.bench.report import Goal, Report, percentile
from pie_py.bench.server import bench_server
from pie_py.config.model import ModelConfig

PAGE = 32  # slots: vLLM's on a CPU are multiples of it
VLLM = """--no-enforce-eager --enable-prompt-tokens-details --max-model-len 4096
--enable-auto-tool-choice --tool-call-parser hermes"""
TURN = 64  # tokens of a turn beside the words of its tool's result
TRACED = 2400  # words of the last prompt of a recorded session, as it is played


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Whole sessions of agents over HTTP: times, and what of their prompts was cached."""

    model: ModelConfig = options.model()
    vllm: str | None = vllm_python()
    sessions: int = options.count("--sessions", 6, "At once.")
    turns: int = options.count("--turns", 12, "Of each.")
    words: int = options.count("--words", 150, "That each tool's result has.")
    fast: float = options.real("--fast", 0.3, "Seconds that the fast tool takes, in the mean.")
    slow: float = options.real("--slow", 5.0, "Seconds that the slow one takes.")
    memory: float = options.real("--memory", 0.5, "KV pages, of those of sessions at their ends.")
    host: float = options.real("--host", 0.2, "Host pages of ours, likewise.")
    rounds: int = options.count("--rounds", 3, "Of each side, in turns.")
    trace: str | None = options.option(
        "--trace",
        type=click.Path(exists=True, dir_okay=False),
        help="A recorded session, whose sizes and times all have: claude_code.json, codex.json.",
    )
    simulated: bool = options.option(
        "--simulated", is_flag=True, default=False, help="43 turns on a simulated GPU, per policy."
    )

    def session(self, seed: str) -> Session:
        """One of them."""
        if self.trace is None:
            return drawn(seed, Shape(self.turns, self.words, self.fast, self.slow))
        trace = read_trace(self.trace)
        whole = longest(traced(seed, trace, 1.0)) + TURN * len(trace["turns"])
        return traced(seed, trace, TRACED / whole)


@dataclass
class _Side:
    """A server, and what sessions have seen of it."""

    name: str
    url: str
    first: list[float] = field(default_factory=list)  # seconds to the first token of later turns
    between: list[float] = field(default_factory=list)  # seconds between tokens, of each turn
    whole: list[float] = field(default_factory=list)  # seconds of sessions
    asked: int = 0  # tokens of later turns' prompts
    cached: int = 0

    def row(self) -> list[Any]:
        ms = [median(self.first), percentile(self.first, 0.95), median(self.between)]
        hits, whole = self.cached / self.asked, mean(self.whole)
        return [self.name, hits, *(1e3 * each for each in ms), whole, max(self.whole)]


async def _session(client: openai.AsyncOpenAI, side: _Side, session: Session) -> None:
    """One session, the same for all sides."""
    messages: list[Any] = [
        {"role": "system", "content": session.system},
        {"role": "user", "content": session.ask},
    ]
    for number, turn in enumerate(session.turns):
        tools = [_described(name) for name in session.tools]
        call = await _turn(client, side, messages, tools, turn, later=number > 0)
        messages += [
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call["id"], "content": turn.result},
        ]
        if turn.task is not None:
            await _session(client, side, turn.task)
        else:
            await anyio.sleep(turn.seconds)


async def _turn(
    client: openai.AsyncOpenAI,
    side: _Side,
    messages: list[Any],
    tools: list[Any],
    turn: Turn,
    *,
    later: bool,
) -> dict[str, Any]:
    """One turn, which calls a tool; without one it is the last."""
    tool = turn.tool
    begun, first, at = time.perf_counter(), 0.0, 0.0
    call: dict[str, Any] = {"id": "", "type": "function"}
    arguments, usage = "", None
    stream: Any = await client.chat.completions.create(
        model=NAME,
        messages=messages,
        tools=tools,
        tool_choice={"type": "function", "function": {"name": tool}} if tool else "none",
        max_tokens=OUTPUT,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    async for chunk in stream:
        at = time.perf_counter() if chunk.choices else at
        first = first or at
        for choice in chunk.choices:
            for piece in choice.delta.tool_calls or []:
                call["id"] = piece.id or call["id"]
                arguments += piece.function.arguments or ""
        usage = chunk.usage or usage
    assert usage is not None
    if later:
        side.first.append(first - begun)
        side.asked += usage.prompt_tokens
        side.cached += getattr(usage.prompt_tokens_details, "cached_tokens", 0) or 0
    side.between.append((at - first) / max(1, usage.completion_tokens - 1))
    return {**call, "function": {"name": tool, "arguments": arguments}}


def _described(name: str) -> dict[str, Any]:
    texts = [" ".join(random.Random(at).choices(WORDS, k=20)) for at in range(2)]
    form = {"type": "object", "properties": {"what": {"enum": texts}}, "required": ["what"]}
    return {"type": "function", "function": {"name": name, "parameters": form}}


async def _round(settings: Settings, side: _Side, seed: str, sessions: int) -> None:
    async def one(number: int) -> None:
        await anyio.sleep(0.5 * number)
        begun = time.perf_counter()
        await _session(client, side, settings.session(f"{seed} {number}"))
        side.whole.append(time.perf_counter() - begun)

    async with (
        openai.AsyncOpenAI(base_url=f"{side.url}/v1", api_key="none", timeout=3600) as client,
        anyio.create_task_group() as tasks,
    ):
        for number in range(sessions):
            tasks.start_soon(one, number)


async def _measure(settings: Settings, sides: list[_Side], pause: Any, progress: Progress) -> None:
    for number in range(1 + settings.rounds):
        for side in sides if number % 2 else sides[::-1]:
            pause(side.name != "vllm")
            # What comes first does not count; tools' times are learned.
            seen = side if number else _Side(side.name, side.url)
            await _round(settings, seen, str(number), settings.sessions if number else 2)
            progress(f"{side.name}: {mean(seen.whole):.1f} s a session")


def agents(settings: Settings, progress: Progress) -> Report:
    """Measures on one server of each side."""
    if settings.simulated:
        return simulated(settings, progress)
    progress.expect((1 + settings.rounds) * (1 + bool(settings.vllm)))
    tokens = settings.sessions * (Shape.first + settings.turns * (settings.words + TURN))
    if settings.trace is not None:
        tokens = settings.sessions * TRACED
    pages, host = (round(share * tokens / PAGE) for share in (settings.memory, settings.host))
    given = {"name": NAME, "page_size": PAGE, "kv_pages": pages, "host_pages": host}
    with ExitStack() as stack:
        server = stack.enter_context(bench_server(settings.model.model_copy(update=given)))
        sides = [_Side("pie_py", stack.enter_context(http_gateway(server.endpoint)).url)]
        pause: Any = lambda wanted: None  # noqa: E731
        if settings.vllm:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="pie-"))
            size = ["--num-gpu-blocks-override", str(pages), "--block-size", str(PAGE)]
            program, at = vllm_program(settings.vllm), Path(folder)
            serving = vllm_serve(program, settings.model, at, more=[*VLLM.split(), *size])
            url, pause = stack.enter_context(serving)
            sides.append(_Side("vllm", url))
        anyio.run(_measure, settings, sides, pause, progress)
    columns = ["side", "of prompts cached", "ms to the first token", "p95", "ms between tokens"]
    note = (
        f"{settings.sessions} sessions of {settings.turns} turns; {pages} pages of {PAGE} tokens,"
        f" {host} of the host beside ours; first tokens are those of later turns."
    )
    rows = [side.row() for side in sides]
    columns += ["s of a session", "longest"]
    report = Report("Whole sessions of agents, vLLM compiled", columns, rows, [note])
    for row in rows[1:]:
        least = 1.5 if settings.memory < 1 else 1.0
        what = "seconds of a session, vLLM's over ours"
        report.goals.append(Goal(what, row[-2] / rows[0][-2], least, at_most=False))
    return report


BENCHMARK = Benchmark(Settings, agents)
