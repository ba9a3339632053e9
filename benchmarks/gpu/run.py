"""`gpu`: tests and benchmarks of a GPU machine, one after the other, each within its time.

Each phase is a process of its own, so that one that fails, hangs or takes the device's memory costs
only itself. What is known is written after each: a run that is cut short has still told something.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from benchmarks import options
from benchmarks.benchmark import Benchmark, Progress
from benchmarks.gpu.table import Figures, markdown, reports
from pie_py.bench.report import Report

COUNTS = (1, 32, 128)  # sequences that decode together
TOY = "toy"  # a shape to try the benchmark itself with, on the CPU, too
ROOT = Path(__file__).parents[2]


@dataclass
class Phase:
    """A part of the run."""

    name: str
    seconds: float  # at most
    run: Callable[[float], Figures]


@dataclass
class Run:
    """The figures found so far."""

    out: Path
    figures: dict[str, Figures] = field(default_factory=dict)

    @classmethod
    def go_on(cls, out: Path) -> Run:
        """With what an earlier run has found, if it wrote into the same folder."""
        file = out / "gpu.json"
        return cls(out, json.loads(file.read_text()) if file.is_file() else {})

    def lacks(self, name: str) -> bool:
        """True if a phase has not been run, or has failed."""
        found = self.figures.get(name)
        return found is None or "error" in found or not found.get("passed", True)

    def add(self, name: str, figures: Figures) -> None:
        """Keeps what a phase has found, and writes all of it."""
        self.figures[name] = figures
        self.out.mkdir(parents=True, exist_ok=True)
        (self.out / "gpu.json").write_text(json.dumps(self.figures, indent=2))
        (self.out / "gpu.md").write_text(markdown(reports(self.figures)))


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Tests and benchmarks of this machine's GPU."""

    out: str = options.option(
        "--out",
        type=click.Path(file_okay=False),
        default="gpu-report",
        metavar="FOLDER",
        help="Where gpu.json, gpu.md and the phases' logs go.",
    )
    seconds: float = options.real("--seconds", 3600.0, "For all phases.")
    shapes: tuple[str, ...] = options.option(
        "--shape",
        multiple=True,
        default=("llama-3.1-8b", "llama-3.2-1b", "llama-3.2-3b"),
        help="Models by their shapes, the most important first. Repeatable.",
    )
    only: tuple[str, ...] = options.option(
        "--only", multiple=True, metavar="PART", help="Part of a phase's name. Repeatable."
    )


def measure(settings: Settings, progress: Progress) -> list[Report]:
    """Runs the phases that fit the time. What an earlier run into the same folder has done stays;
    what failed there comes last.

    Raises:
        RuntimeError: if there is no GPU.
    """
    out = Path(settings.out)
    run = Run.go_on(out)
    end = time.monotonic() + settings.seconds
    # Switches of kernels that cannot be compiled here.
    off = [name for found in run.figures.values() for name in found.get("off", [])]
    wanted = [
        phase
        for phase in phases(out, settings.shapes, off)
        if run.lacks(phase.name)
        and (not settings.only or any(part in phase.name for part in settings.only))
    ]
    wanted.sort(key=lambda phase: phase.name in run.figures)
    progress.expect(len(wanted))
    for phase in wanted:
        left = min(phase.seconds, end - time.monotonic())
        if left < 5:
            break
        start = time.monotonic()
        try:
            found = phase.run(left)
        except Exception as error:  # the others may still go well
            found = {"error": f"{type(error).__name__}: {error}"}
        run.add(phase.name, {**found, "took_s": round(time.monotonic() - start, 1)})
        off += [name for name in found.get("off", []) if name not in off]
        if found.get("device") == "cpu" and settings.shapes != (TOY,):
            raise RuntimeError("PyTorch sees no NVIDIA GPU, and these models are for one")
        progress(f"{phase.name}: {json.dumps(found)[:400]}")
    return reports(run.figures)


def phases(out: Path, shapes: tuple[str, ...], off: list[str]) -> list[Phase]:
    """All phases, in order: what the others need first, then what matters most.

    They run without the kernels that are in `off` when they begin.
    """
    first, *others = shapes

    def worker(
        name: str, arguments: list[str], config: Figures | None = None
    ) -> Callable[[float], Figures]:
        def run(seconds: float) -> Figures:
            more = _without(off, config or {})
            own = ["--config", json.dumps(more)] if more else []
            return _worker(out, name, [*arguments, *own], seconds)

        return run

    found = [
        Phase("machine", 40, worker("machine", ["machine"])),
        Phase("compile", 260, worker("compile", ["compile"])),
        Phase(f"decode {first}", 150, worker(f"decode-{first}", _decode(first))),
        Phase("tests: Llama", 90, functools.partial(_tests, out, "test_attention.py", "llama")),
        Phase("tests: handlers", 120, functools.partial(_tests, out, "test_handlers.py")),
        Phase(f"server {first}", 150, functools.partial(_server, out, first, off)),
        Phase(f"prefill {first}", 90, worker(f"prefill-{first}", ["prefill", "--shape", first])),
        Phase(
            f"swap {first}",
            90,
            worker(f"swap-{first}", ["swap", "--shape", first, "--count", "32"]),
        ),
        Phase("compile all", 400, worker("compile-all", ["compile", "--all"])),
        Phase("tests: kernels", 300, functools.partial(_tests, out, "test_attention.py")),
        Phase("tests: memory", 60, functools.partial(_tests, out, "test_gpu_memory.py")),
        Phase("tests: images", 60, functools.partial(_tests, out, "test_gpu_images.py")),
        Phase("tests: server", 120, functools.partial(_tests, out, "test_server.py")),
    ]
    for shape in others:
        found.append(Phase(f"decode {shape}", 90, worker(f"decode-{shape}", _decode(shape))))
        arguments = ["prefill", "--shape", shape]
        found.append(Phase(f"prefill {shape}", 90, worker(f"prefill-{shape}", arguments)))
        found.append(Phase(f"server {shape}", 150, functools.partial(_server, out, shape, off)))
    for name, seconds, command in PAPER:
        found.append(
            Phase(f"paper: {name}", seconds, functools.partial(_report, out, name, command))
        )
    for name, config in (
        ("without graphs", {"graph_batch": 0}),
        ("fp8 keys", {"kv_dtype": "fp8"}),
        ("CUDA cores", {"flashinfer": {"decode": "cuda-cores"}}),
        ("PyTorch's sampling", {"fused_sampling": False}),
        ("PyTorch's small kernels", {"flashinfer": {"without": SMALL}}),
    ):
        label = f"decode {first}, {name}"
        found.append(Phase(label, 90, worker(label.replace(" ", "-"), _decode(first), config)))
    return found


# What the paper on Pie measures (section 7), by the benchmarks for it. Its Table 4 is `server`.
PAPER: tuple[tuple[str, float, tuple[str, ...]], ...] = (
    (
        "control layer alone",
        90,
        ("benchmarks", "capacity", "--source", "rust", "--at-once", "32,256", "--rounds", "2"),
    ),
    (
        "programs beside scripts, Figures 6 to 8",
        240,
        ("benchmarks", "inferlets", "--round-trip", "10", "--rounds", "3"),
    ),
)
SMALL = ("append", "norm", "rope", "activation")  # kernels


def _decode(shape: str) -> list[str]:
    return ["decode", "--shape", shape, "--count", *map(str, COUNTS)]


def _worker(out: Path, name: str, arguments: list[str], seconds: float) -> Figures:
    """A phase of `benchmarks.gpu`."""
    return _process(out, name, ["benchmarks.gpu", *arguments], seconds)


def _server(out: Path, shape: str, off: list[str], seconds: float) -> Figures:
    """Inferlets that decode in a whole server."""
    own = [shape, json.dumps(_without(off, {}))]
    return _process(out, f"server-{shape}", ["benchmarks.gpu.server", *own], seconds)


def _report(out: Path, name: str, command: Sequence[str], seconds: float) -> Figures:
    """Another benchmark's report."""
    return {"report": _process(out, name.replace(" ", "-"), [*command, "--json"], seconds)}


def _without(off: list[str], config: Figures) -> Figures:
    """Fields of `ModelConfig`, without kernels that cannot be compiled."""
    if not off:
        return config
    return {**config, "flashinfer": {**config.get("flashinfer", {}), "without": off}}


def _process(out: Path, name: str, arguments: list[str], seconds: float) -> Figures:
    """The last line of a module's process on its standard output, as JSON."""
    command = [sys.executable, "-m", *arguments]
    log = _log(out, name)
    with log.open("wb") as errors:
        code, output = _run(command, seconds, stdout=subprocess.PIPE, stderr=errors)
    if code:
        raise RuntimeError(f"exit status {code}: {_end_of(log)}")
    figures: Figures = json.loads(output.splitlines()[-1])
    return figures


def _run(command: list[str], seconds: float, **options: Any) -> tuple[int, bytes]:
    """A process's exit status and output. Out of time it ends with all that it has started.

    Compilers, above all: they would go on beside the next phase, in the same folders.

    Raises:
        subprocess.TimeoutExpired: if it is not done.
    """
    with subprocess.Popen(command, start_new_session=True, **options) as process:
        try:
            output, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    return process.returncode, output or b""


def _tests(out: Path, file: str, *rest: Any) -> Figures:
    """One file of `tests/gpu`, or those of its tests whose names have a part; then the seconds."""
    *parts, seconds = rest
    log = _log(out, "-".join([file.removesuffix(".py"), *parts]))
    command = [sys.executable, "-m", "pytest", "-ra", "-q", "-p", "no:cacheprovider"]
    command += ["-k", parts[0]] if parts else []
    with log.open("wb") as output:
        try:
            code, _ = _run(
                [*command, f"tests/gpu/{file}"],
                seconds,
                cwd=ROOT,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        except subprocess.TimeoutExpired:
            return {"error": f"not done within {seconds:.0f} s", "last": _end_of(log)}
    last = _end_of(log, 1500)
    return {"passed": code == 0 and " passed" in last, "last": last}


def _log(out: Path, name: str) -> Path:
    out.mkdir(parents=True, exist_ok=True)
    return out / f"{name.replace(',', '').replace(chr(39), '')}.log"


def _end_of(file: Path, characters: int = 600) -> str:
    return file.read_text(errors="replace").strip()[-characters:]


BENCHMARK = Benchmark(Settings, measure)
