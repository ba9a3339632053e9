"""`prices`: what each operation of device programs takes, beside what a program is charged for it.

Times are the thread's, of one row on one core, so others on the machine count for little. Of each
operation those inputs count that are charged least for.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from benchmarks import options
from benchmarks.benchmark import Benchmark, Progress
from pie_inference.sampling.device_operations import DTYPES
from pie_inference.sampling.executable import Executable
from pie_inference.sampling.remembered import GIVEN, TIMES, RememberedTokens
from pie_py.bench.report import Goal, Report
from pie_py.device_programs.language import (
    LETTERS,
    MOST_NEWEST,
    MOST_REPEATED,
    OPERATIONS,
    VOCABULARY,
    Kind,
    Type,
    result_type,
)
from pie_py.device_programs.program import CALLS, Name, Node, Program
from pie_py.device_programs.step_cost import PER_NODE

ADDITION_NS = 0.3
MOST_TIMES = 2.0  # what is charged
FREE = ("logits", "step", "state", "constant", "beside")  # what is there in any case


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Each operation of device programs, at 256 elements and at the most, and its price."""

    most: int = options.count("--most", 1 << 16, "Elements of the largest values.", least=512)
    tries: int = options.count("--tries", 20, "Of each, of which the fastest counts.")


def prices(settings: Settings, progress: Progress) -> Report:
    """Measures all."""
    torch.set_num_threads(1)
    rows: list[list[object]] = []
    progress.expect(len(OPERATIONS))
    worst = 0.0
    for name, operation in OPERATIONS.items():
        row: list[object] = [name, operation.cost]
        for size in (256, settings.most) if name not in FREE else ():
            times, seconds, what = max(
                (*_charged(name, size, given, numbers, settings.tries), what)
                for what, given, numbers in _inputs(name, size)
            )
            worst = max(worst, times)
            row += [seconds * 1e6, what, times]
        rows.append(row + ["", "", ""] * (2 - len(row) // 4))
        progress(name)
    columns = ["operation", "additions", "256: µs", "of", "× charged"]
    columns += [f"{settings.most}: µs", "of", "× charged"]
    notes = [
        f"Charged: {ADDITION_NS} ns for each addition: {PER_NODE} or some times that, and those of"
        " each element."
    ]
    goal = Goal("an operation over what is charged for it", worst, MOST_TIMES)
    return Report("Prices of device programs' operations", columns, rows, notes, [goal])


Given = Sequence[torch.Tensor]


def _inputs(name: str, size: int) -> Iterator[tuple[str, Given, tuple[int, ...]]]:
    """Kinds of inputs: what they are called, the operands `[1, *sizes]`, and the operation's
    numbers.
    """
    operation = OPERATIONS[name]
    numbers: Sequence[tuple[int, ...]] = [(0,) * len(operation.attributes)]
    match name:
        case "newest":
            yield "newest", (), (min(size, MOST_NEWEST),)
            return
        case "iota":
            numbers = [(size,)]
        case "repeats":
            numbers = [(MOST_REPEATED,)]
        case "cast":
            numbers = [(kind,) for kind in Kind]
        case "top":
            numbers = [(1,), (size // 8,), (size,)]
        case "slice":
            numbers = [(1, size)]
        case "reshape":
            numbers = [(2, size // 2)]
    for kind in operation.takes or "i":
        for how in ("random", "alike", "odd") if operation.operands else ("random",):
            values = [_value(LETTERS[kind], how, size) for _ in range(operation.operands)]
            places = torch.randint(0, size, (1, size))
            if how == "alike":
                places[:] = 7
            match name:
                case "where":
                    values[0] = values[0] != 0
                case "nucleus" | "nucleus_by":
                    values[1] = torch.tensor([0.999])
                case "gather" | "scatter_add" | "scatter_max":
                    values[1] = places
                case "transpose":
                    values[0] = values[0].reshape(1, 256, -1)
                case "matvec":
                    side = math.isqrt(size)
                    values = [
                        values[0][:, : side * side].reshape(1, side, side),
                        values[1][:, :side],
                    ]
                case "log_softmax" | "cumsum" | "sum" if how == "odd":
                    values[0] = values[0] * 1e-3
            for each in numbers:
                yield f"{kind} {how} {each or ''}".strip(), values, each


def _value(kind: Kind, how: str, size: int) -> torch.Tensor:
    """Alike; or odd: numbers that are too small to be normal, NaN among them; -1 and 0."""
    chance = np.random.default_rng(1)
    match how, kind:
        case "odd", Kind.FLOAT:
            found = torch.full((1, size), 1e-40)
            found[0, size // 2] = torch.nan
            return found
        case "odd", Kind.INT:
            return torch.from_numpy(chance.integers(-1, 1, (1, size)))
        case "alike", _:
            return torch.ones(1, size).to(DTYPES[kind])
        case _, Kind.FLOAT:
            return torch.from_numpy(chance.normal(0, 3, (1, size)).astype(np.float32))
        case _, Kind.INT:
            return torch.from_numpy(chance.integers(-(2**40), 2**40, (1, size)))
    return torch.from_numpy(chance.random((1, size)) < 0.5)


def _charged(
    name: str, size: int, given: Given, numbers: tuple[int, ...], tries: int
) -> tuple[float, float]:
    """The thread's time of the fastest of some tries, for one operation: how often what is charged
    for that, and in seconds.
    """
    types = [
        Type(next(k for k, dtype in DTYPES.items() if dtype is x.dtype), tuple(x.shape[1:]))
        for x in given
    ]
    names = tuple(Name(f"n{i:02}", of) for i, of in enumerate(types))
    nodes = [Node("state", (), (i,), of) for i, of in enumerate(types)]
    of = result_type(name, types, numbers)
    nodes.append(Node(name, tuple(range(len(types))), numbers, of))
    # As a next value, whatever it is: a token would be an argmax.
    last = len(nodes) - 1
    program = Program(name, names, tuple(nodes), last, {})
    rows = _Rows(given, size)
    device = torch.device("cpu")
    executable = Executable(program, size, device)
    best = math.inf
    repeats = max(1, 2048 // size)
    with torch.inference_mode():
        executable.evaluate(rows)
        for _ in range(tries):
            began = time.thread_time_ns()
            for _ in range(repeats):
                executable.evaluate(rows)
            best = min(best, (time.thread_time_ns() - began) / repeats)
    cost = PER_NODE * CALLS.get(name, 1) + program.cost_of(nodes[last], {VOCABULARY: size})
    return best / (cost * ADDITION_NS), best / 1e9


class _Rows:
    """One row of a step."""

    def __init__(self, given: Given, size: int) -> None:
        self.logits = torch.zeros(1, size)
        self.start = torch.tensor([[3]])
        self.steps = torch.tensor([1])
        self._given = given
        self._size = size
        self._text = RememberedTokens(1, size, torch.device("cpu"))
        self._row = np.zeros(1, np.int64)

    def newest(self, count: int) -> torch.Tensor:
        return self._text.newest(self._row, np.array([count]), count)

    def counts(self) -> torch.Tensor:
        return (self._text.counts(self._row) & TIMES).to(torch.int64)

    def given(self) -> torch.Tensor:
        return self._text.counts(self._row) >= GIVEN

    def beside(self, number: int) -> torch.Tensor:
        return self.logits

    def state(self, number: int) -> torch.Tensor:
        return self._given[number]

    in_layers = state

    def lens(self, x: torch.Tensor) -> torch.Tensor:
        return self.logits


BENCHMARK = Benchmark(Settings, prices)
