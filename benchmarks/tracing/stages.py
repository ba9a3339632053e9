"""`stages`: where the time of one token goes, from the guest's call to its wake-up.

Three servers take turns: one that keeps records of its stages (`benchmarks.tracing.clock`), one
that does not, so that the price of the record shows, and one that times every operator of PyTorch,
too: of that only the operators' own time is used, because recording slows the rest down.

A token's way is: the control thread's stages up to the plan, the message, the worker's stages, the
message back, and the control thread's again. With one plan in flight they follow each other and add
up to the time per token. With two, control and worker work at the same time, and what is printed as
not accounted for is negative: the time that overlaps.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import anyio

from pie_py.bench import options
from pie_py.bench.benchmark import Benchmark, Progress
from pie_py.bench.decoding import Decoded, decode_in
from pie_py.bench.programs import bench_programs
from pie_py.bench.report import Goal, Report
from pie_py.bench.server import bench_server, with_room
from pie_py.config.model import ModelConfig
from pie_py.config.plugins import ObserverConfig

IDLE = "idle"
WAY_BACK = (
    "reply",
    "scheduler: results",
    "resume",
)  # what control does once the worker has answered
KERNELS = "kernels"
OBSERVERS = ("stages", "kernels")  # of benchmarks.tracing.observers
HOST = "host function "
IDLE_GOAL_US = 200.0  # of the worker, between two steps of 8 concurrent generations
IDLE_GOAL_AT = 8


class Mark(NamedTuple):
    """An event of a plan, and what each stage of its process had taken by then, ns."""

    event: str
    plan: int
    at: int
    tokens: int
    spent: list[int]


@dataclass
class Trace:
    """The record of one process."""

    stages: list[str]
    marks: list[Mark]

    @classmethod
    def read(cls, file: Path) -> Trace:
        """Reads what a process has written."""
        record = json.loads(file.read_text())
        return cls(record["stages"], [Mark(*mark) for mark in record["marks"]])

    def of(self, event: str) -> dict[int, Mark]:
        """The marks of one kind of event, by plan."""
        return {mark.plan: mark for mark in self.marks if mark.event == event}


@dataclass
class Split:
    """The time of one token of one inferlet, in µs, while all of them decode."""

    measured: float
    stages: dict[str, float]  # in the order of a token's way; the processes' names before them
    host_functions: dict[str, float]  # parts of one of these stages
    worker_idle: float  # a plan
    plans: float  # a token

    @property
    def worker_busy(self) -> float:
        """What the worker takes, Python and kernels."""
        return sum(time for name, time in self.stages.items() if name.startswith("worker: "))

    @property
    def rest(self) -> float:
        """What no stage accounts for; negative if stages overlap."""
        return self.measured - sum(self.stages.values())


def split(control: Trace, worker: Trace, window: tuple[int, int], instances: int) -> Split:
    """Divides the time within a window among the stages.

    Raises:
        RuntimeError: if hardly any plan was sent within it.
    """
    sent, taken = control.of("sent"), control.of("taken")
    received, answered = worker.of("received"), worker.of("answered")
    start, end = window
    plans = [p for p in sent if start <= sent[p].at <= end and p in received and p in answered]
    if len(plans) < 3:
        raise RuntimeError("hardly any step lies between the first and last: ask for more --tokens")
    first, last = plans[0], plans[-1]
    tokens = sent[last].tokens - sent[first].tokens
    each = instances / tokens / 1e3  # from ns of the window to µs per token of each inferlet
    ours = _spent("control", control.stages, sent[first], sent[last], each)
    back_at = tuple(f"control: {name}" for name in WAY_BACK)
    host = {name: time for name, time in ours.items() if HOST in name}
    stages = {"control: host functions": sum(host.values())}
    stages |= {
        name: time
        for name, time in ours.items()
        if name not in host and not name.startswith(back_at)
    }
    there = back = 0
    for before, plan in pairwise(plans):
        there += max(0, received[plan].at - max(sent[plan].at, answered[before].at))
        if before in taken:
            back += max(0, taken[before].at - answered[before].at)
    stages["message to the worker"] = there * each
    stages |= _spent("worker", worker.stages, received[first], received[last], each)
    stages["message to control"] = back * each
    stages |= {name: time for name, time in ours.items() if name.startswith(back_at)}
    idle = worker.stages.index(IDLE)
    idle_ns = received[last].spent[idle] - received[first].spent[idle]
    return Split(
        measured=(sent[last].at - sent[first].at) * each,
        stages=stages,
        host_functions={name.partition(HOST)[2]: time for name, time in host.items() if time},
        worker_idle=idle_ns / (len(plans) - 1) / 1e3,
        plans=(len(plans) - 1) * instances / tokens,
    )


def _spent(
    process: str, names: Sequence[str], first: Mark, last: Mark, factor: float
) -> dict[str, float]:
    """What a process's stages took between two marks; its idle time is others' work."""
    return {
        f"{process}: {name}": (last.spent[i] - first.spent[i]) * factor
        for i, name in enumerate(names)
        if name != IDLE
    }


def kernels(worker: Trace, window: tuple[int, int], instances: int) -> float:
    """Time of PyTorch's operators for one token, µs, of a record that has them as a stage.

    Raises:
        RuntimeError: if hardly any plan was received within the window.
    """
    start, end = window
    marks = [mark for mark in worker.of("received").values() if start <= mark.at <= end]
    if len(marks) < 2:
        raise RuntimeError("hardly any step lies between the first and last: ask for more --tokens")
    first, last = marks[0], marks[-1]
    stage = worker.stages.index(KERNELS)
    return (last.spent[stage] - first.spent[stage]) * instances / (last.tokens - first.tokens) / 1e3


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Where the time of one token goes, stage by stage, from the guest's call to its wake-up."""

    model: ModelConfig = options.model("tiny")
    languages: tuple[str, ...] = options.languages()
    at_once: tuple[int, ...] = options.at_once("1,8,32,128")
    prompt: int = options.prompt()
    tokens: int = options.tokens(96)


def stages(settings: Settings, progress: Progress) -> Report:
    """Measures the stages of a token's way against servers of its own."""
    progress.expect(1 + len(settings.languages) * len(settings.at_once))
    cases = [(language, count) for language in settings.languages for count in settings.at_once]
    with tempfile.TemporaryDirectory(prefix="pie-") as folder:
        runs = _decode(settings, cases, Path(folder), progress)
        control = Trace.read(Path(folder) / "stages/control.json")
        worker = Trace.read(Path(folder) / "stages/worker.json")
        operators = Trace.read(Path(folder) / "kernels/worker.json")
    splits = [
        split(control, worker, run.window, count)
        for run, (_, count) in zip(runs["stages"], cases, strict=True)
    ]
    in_kernels = [
        kernels(operators, run.window, count)
        for run, (_, count) in zip(runs["kernels"], cases, strict=True)
    ]
    return _report(cases, splits, in_kernels, [run.ms_a_token for run in runs["plain"]])


def _decode(
    settings: Settings, cases: Sequence[tuple[str, int]], folder: Path, progress: Progress
) -> dict[str, list[Decoded]]:
    """Runs all cases in turns, in servers with each observer and without; leaves their records."""
    programs = bench_programs(settings.languages)
    length = settings.prompt + settings.tokens
    model = with_room(settings.model, max(settings.at_once), length)
    runs: dict[str, list[Decoded]] = {"plain": [], **{name: [] for name in OBSERVERS}}
    with ExitStack() as stack:
        servers = {"plain": stack.enter_context(bench_server(model))}
        for name in OBSERVERS:
            observer = ObserverConfig(
                observer=f"benchmarks.tracing.observers:{name}", folder=folder / name
            )
            servers[name] = stack.enter_context(bench_server(model, observer=observer))
        progress("the servers run")
        for language, count in cases:
            for name, server in servers.items():
                run = anyio.run(
                    decode_in,
                    server.endpoint,
                    programs[language],
                    count,
                    settings.prompt,
                    settings.tokens,
                )
                runs[name].append(run)
            progress(f"{language}, {count} at once")
    return runs


def _report(
    cases: Sequence[tuple[str, int]],
    splits: Sequence[Split],
    in_kernels: Sequence[float],
    plain: Sequence[float],
) -> Report:
    rows: list[list[object]] = [
        [name, *(one.stages[name] for one in splits)] for name in splits[0].stages
    ]
    rows += [
        ["sum of the stages", *(sum(one.stages.values()) for one in splits)],
        ["measured", *(one.measured for one in splits)],
        ["not accounted for", *(one.rest for one in splits)],
        ["measured without a record", *(ms * 1e3 for ms in plain)],
        *(
            [f"of host functions: {name}", *(one.host_functions.get(name, 0.0) for one in splits)]
            for name in dict.fromkeys(name for one in splits for name in one.host_functions)
        ),
        ["of the worker: kernels", *in_kernels],
        [
            "of the worker: all but kernels",
            *(one.worker_busy - k for one, k in zip(splits, in_kernels, strict=True)),
        ],
        ["plans a token", *(one.plans for one in splits)],
        ["worker idle between plans", *(one.worker_idle for one in splits)],
    ]
    goals = [
        Goal(
            f"worker idle between steps, µs, {language}, {count} at once",
            one.worker_idle,
            IDLE_GOAL_US,
        )
        for (language, count), one in zip(cases, splits, strict=True)
        if count == IDLE_GOAL_AT
    ]
    return Report(
        "Where the time of one token goes, µs",
        ["stage", *(f"{language} {count}" for language, count in cases)],
        rows,
        [
            "Columns: guest, and how many at once. Of each inferlet while all decode; they share"
            " the steps.",
            "Kernels: operators of PyTorch, timed in a server of their own; on a GPU, until"
            " handed over.",
            "Negative where control and worker work at the same time: not accounted for.",
        ],
        goals,
    )


BENCHMARK = Benchmark(Settings, stages)
