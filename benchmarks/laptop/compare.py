"""`laptop`: a real model, given as a GGUF, beside llama.cpp and transformers on the same file.

Is it exactly the file's model, when is the first token there, how fast are the next, what memory
does it take? All sides are measured in turns; those that are not measured sleep. Exactness is of
float32, to which the widened weights belong; speed is as everything is served by default.
"""

from __future__ import annotations

import math
import statistics
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch

from benchmarks import options
from benchmarks.benchmark import Benchmark, Progress
from benchmarks.laptop import first_token, perplexity, texts
from benchmarks.laptop.sides import (
    PeerSide,
    Side,
    Text,
    Work,
    by_threads,
    llama_command,
    memory_mb,
    our_side,
    peak_mb,
    started,
    transformers_command,
)
from benchmarks.peers import Peer
from pie_control.models.tokenizer import TextCodec
from pie_py.bench.report import Goal, Report, percentile
from pie_py.config.model import ModelConfig

PIE, LLAMA, TRANSFORMERS = "pie_py", "llama.cpp", "transformers"
GREEDY_TOKENS = 24
DECODE_PROMPT = 16
CLOSE = 0.02  # nats
# Least tokens/s over the best of a peer's numbers of threads.
SPEED_GOALS = {
    LLAMA: {
        "decode × 1": 1.0,
        "decode × 4": 1.2,
        "decode × 16": 2.0,
        "prefill 512": 2.0,
        "prefill 1500": 2.0,
    },
    TRANSFORMERS: {"decode × 1": 1.5, "prefill 512": 1.0},
}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A GGUF served here, beside llama.cpp and transformers: exactness, start, speed, memory."""

    model: str = options.option("--model", required=True, metavar="FILE.gguf", help="The model.")
    llama: str | None = options.option(
        "--llama", metavar="PYTHON", help="The Python of an environment that has llama_cpp."
    )
    installed: str | None = options.option(
        "--installed",
        metavar="PYTHON",
        help="The Python of an environment with pie_py's wheel, whose starts are measured; by"
        " default this one's, which compiles kernels the first time.",
    )
    transformers: bool = options.option(
        "--transformers", is_flag=True, help="Beside transformers, too, in this environment."
    )
    strings: int = options.count("--strings", 10_000, "Odd strings to tokenize.")
    longest: int = options.count("--longest", 8_000, "Tokens of the longest prompt.")
    windows: int = options.count("--windows", 8, f"Of {perplexity.WINDOW} tokens, to score.")
    rounded: bool = options.option(
        "--rounded", is_flag=True, help="Score it as a plain checkpoint, too, and with --quantize."
    )
    starts: int = options.count("--starts", 2, "How often each start is measured.")
    tokens: int = options.tokens(48)
    rounds: int = options.rounds(5)

    @property
    def work(self) -> list[Work]:
        """The work that is measured in turns."""
        decode = [
            Work(f"decode × {batch}", batch, DECODE_PROMPT, self.tokens + 1) for batch in (1, 4, 16)
        ]
        return [*decode, *(Work(f"prefill {tokens}", 1, tokens, 1) for tokens in (512, 1500))]


def compare(settings: Settings, progress: Progress) -> list[Report]:
    """All tables."""
    llama = None
    notes = []
    if settings.llama is not None:
        llama = llama_command(settings.llama, settings.model)
        if subprocess.run([*llama, "--first", "a b c " * 16], capture_output=True).returncode:
            llama.append("--plain")
            notes.append("llama.cpp's kernels for repacked weights crash here: it runs without.")
    exact, wanted = _exactness(settings, llama, progress)
    start = first_token.table(
        settings.model,
        settings.starts,
        settings.installed or sys.executable,
        llama,
        settings.transformers,
        progress,
    )
    speed, memory, scores, said = _speed(settings, llama, progress)
    speed.notes += notes
    for name, found in said.items():
        apart = [abs(p - q) for p, q in zip(found, wanted, strict=True)]
        what = f"documentation by {name} as served by default, {PIE} float32"
        exact.rows.append([what, len(apart), None, *_figures(apart)])
        if name == PIE:
            mean = statistics.mean(apart)
            exact.goals.append(Goal("nats off float32 by default, mean", mean, CLOSE))
    return [exact, start, speed, memory, scores]


def _exactness(
    settings: Settings, llama: list[str] | None, progress: Progress
) -> tuple[Report, list[float]]:
    """Tokens and greedy texts, in float32, beside those of the peers; and the documentation's
    log-probabilities.
    """
    report = Report(
        f"Exactness: {Path(settings.model).name}",
        ["", "of", "differ", "Δ log-probability, median", "p99", "most"],
        notes=[
            f"{GREEDY_TOKENS} greedy tokens; log-probabilities up to the first that differs, nats."
        ],
    )
    model = ModelConfig(source=settings.model, dtype="float32")
    context = max(settings.longest + GREEDY_TOKENS, perplexity.WINDOW + 1)
    with ExitStack() as stack:
        ours = stack.enter_context(our_side(PIE, model, 1, context))
        codec = TextCodec(Path(ours.facts["folder"]))
        prompts = _prompts(codec, min(settings.longest, ours.facts["max_position"] - GREEDY_TOKENS))
        progress("the server runs in float32")
        scores = perplexity.logprobs(ours, Path(ours.facts["folder"]), settings.windows)
        strings = texts.odd_strings(settings.strings)
        tokens = [codec.encode(text) for text in strings]
        if llama is not None:
            peer = stack.enter_context(started(LLAMA, *llama, "--context", str(context)))
            theirs = peer.ask(texts=strings)["tokens"]
            differ = sum(a != b for a, b in zip(tokens, theirs, strict=True))
            report.rows.append(
                [f"tokens of odd strings, {LLAMA}", len(strings), differ, *[None] * 3]
            )
            report.goals.append(Goal("odd strings of other tokens", differ, 0))
            progress("tokens")
        if not settings.transformers:
            return report, scores
        command = transformers_command(settings.model, "float32")
        reference = PeerSide(TRANSFORMERS, stack.enter_context(started(TRANSFORMERS, *command)))
        wanted = [reference.greedy(prompt, GREEDY_TOKENS) for prompt in prompts]
        progress("transformers' greedy texts")
        sides: list[Side] = [ours]
        if llama is not None:
            sides.append(PeerSide(LLAMA, peer))
        for side in sides:
            found = [side.greedy(prompt, GREEDY_TOKENS) for prompt in prompts]
            row = _agreement(found, wanted)
            report.rows.append([f"greedy texts of {side.name}, {TRANSFORMERS} float32", *row])
            progress(f"greedy texts of {side.name}")
            if side is ours:
                report.goals.append(Goal("greedy texts that differ", row[1], 0))
    report.notes.append(f"Prompts of {len(prompts[0])} to {max(map(len, prompts))} tokens.")
    return report, scores


def _prompts(codec: TextCodec, longest: int) -> list[list[int]]:
    ids = codec.encode(texts.passage())
    lengths = [*(length for length in texts.LENGTHS if length < longest), longest]
    return [*map(codec.encode, texts.PROMPTS), *(ids[-length:] for length in lengths)]


def _agreement(found: Sequence[Text], wanted: Sequence[Text]) -> list[Any]:
    """How many texts there are, how many differ, and how far log-probabilities are apart."""
    apart = []
    for a, b in zip(found, wanted, strict=True):
        for x, y, p, q in zip(a.tokens, b.tokens, a.logprobs, b.logprobs, strict=True):
            if x != y:
                break
            apart.append(abs(p - q))
    differ = sum(a.tokens != b.tokens for a, b in zip(found, wanted, strict=True))
    return [len(wanted), differ, *_figures(apart)]


def _figures(apart: Sequence[float]) -> list[float]:
    return [statistics.median(apart), percentile(apart, 0.99), max(apart)]


def _speed(
    settings: Settings, llama: list[str] | None, progress: Progress
) -> tuple[Report, Report, Report, dict[str, list[float]]]:
    """Tokens per second in turns, memory before and after, and perplexity of a passage, with what
    each side says of it.
    """
    work = settings.work
    most = max(each.prompt + each.tokens for each in work)
    batch = max(each.batch for each in work)
    with ExitStack() as stack:
        model = ModelConfig(source=settings.model)
        ours = stack.enter_context(our_side(PIE, model, batch, most))
        peers: dict[str, Peer] = {}
        if llama is not None:
            room = ["--context", "2048", "--sequences", str(batch)]
            peers[LLAMA] = stack.enter_context(started(LLAMA, *llama, *room))
        if settings.transformers:
            command = transformers_command(settings.model, ours.facts["dtype"])
            peers[TRANSFORMERS] = stack.enter_context(started(TRANSFORMERS, *command))
        progress("all sides are loaded")
        idle = _memory([ours, *(PeerSide(name, peer) for name, peer in peers.items())])
        sides: list[Side] = [ours]
        for name, peer in peers.items():
            sides += by_threads(name, peer)
        speed = _turns(settings, sides, ours.facts["vocab_size"], progress)
        speed.notes += [f"{name}: {peer.version}" for name, peer in peers.items()]
        speed.notes.append(f"{PIE}: {ours.facts['dtype']}, over HTTP; the others in process.")
        whole: list[Side] = [ours, *(PeerSide(name, peer) for name, peer in peers.items())]
        after = _memory(whole)
        memory = Report(
            "Memory, MB",
            ["", "idle", "after the turns", "most resident"],
            [[name, *row] for name, row in _joined(idle, after).items()],
            ["Proportional share (PSS), and each process's peak (RSS), loading included."],
        )
        _hold_to_pools(memory, Path(settings.model).stat().st_size, ours.facts)
        scores = perplexity.table(settings.windows)
        folder = Path(ours.facts["folder"])
        said = {
            side.name: perplexity.score(side, folder, settings.windows, scores) for side in whole
        }
        progress("perplexity")
    if settings.rounded:
        perplexity.rounded(Path(settings.model), settings.windows, scores, progress)
    return speed, memory, scores, said


def _turns(
    settings: Settings, sides: Sequence[Side], vocabulary: int, progress: Progress
) -> Report:
    random = Random(11)
    rates: dict[tuple[str, str], float] = {}
    cpu: dict[tuple[str, str], float] = {}
    for turn in range(-1, settings.rounds):  # the first one warms all sides up
        for work in settings.work:
            for side in sides:
                found = side.measure(work, work.prompts(random, vocabulary))
                if turn >= 0:
                    key = work.name, side.name
                    rates[key] = max(found.rate, rates.get(key, 0.0))
                    cpu[key] = min(found.cpu_ms, cpu.get(key, math.inf))
        progress(f"round {turn + 1} of {settings.rounds}")
    names = [side.name for side in sides]
    over = [name for name in SPEED_GOALS if any(side.startswith(name) for side in names)]
    report = Report(
        "Tokens per second",
        ["", *names, *(f"{PIE} ÷ {name}" for name in over)],
        notes=[
            f"The best of {settings.rounds} rounds in turns; each peer is held to its best number"
            f" of threads. {settings.tokens} tokens behind {DECODE_PROMPT}."
        ],
    )
    for work in settings.work:
        row: list[Any] = [rates[work.name, name] for name in names]
        for peer in over:
            best = max(rates[work.name, name] for name in names if name.startswith(peer))
            row.append(rates[work.name, PIE] / best)
            if (limit := SPEED_GOALS[peer].get(work.name)) is not None:
                what = f"{work.name}, tokens/s over {peer}'s"
                report.goals.append(Goal(what, row[-1], limit, at_most=False))
        report.rows.append([work.name, *row])
        ms = [cpu[work.name, name] for name in names]
        report.rows.append([f"{work.name}, CPU ms a token", *ms, *[None] * len(over)])
    return report


def _memory(sides: Sequence[Side]) -> dict[str, list[float]]:
    """Share and peak of each process, and of each side that has several."""
    found: dict[str, list[float]] = {}
    for side in sides:
        pids = side.processes()
        found |= {name: [memory_mb([pid]), peak_mb(pid)] for name, pid in pids.items()}
        if len(pids) > 1:
            found[side.name] = [memory_mb(list(pids.values())), max(map(peak_mb, pids.values()))]
    return found


def _hold_to_pools(memory: Report, file: int, facts: dict[str, Any]) -> None:
    """Adds the bytes of the file and of the pools, and the goal over both together."""
    kv = facts["kv_pages"] * facts["kv_costs"]["page_bytes"]
    embeds = facts["embeds"] * facts["hidden_size"] * getattr(torch, facts["dtype"]).itemsize
    wanted = {"the file": file / 1e6, "KV pool": kv / 1e6, "pool of embeds": embeds / 1e6}
    after = {row[0]: row[2] for row in memory.rows}
    memory.rows += [[name, size, size, None] for name, size in wanted.items()]
    over = (after[PIE] - after[f"{PIE}, gateway"]) / sum(wanted.values())
    memory.goals.append(Goal("memory without the gateway over file and pools", over, 1.3))


def _joined(
    idle: dict[str, list[float]], after: dict[str, list[float]]
) -> dict[str, list[float | None]]:
    return {name: [idle.get(name, [None])[0], *row] for name, row in after.items()}


BENCHMARK = Benchmark(Settings, compare)
