"""`pie-py bench gpu`: tests and benchmarks of a GPU machine, one after the other, each within its time.

Each phase is a process of its own, so that one that fails, hangs or takes the device's memory costs only
itself. What is known is written after each: a run that is cut short has still told something.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio

from pie_py.bench.decoding import decode_in
from pie_py.bench.programs import bench_programs
from pie_py.bench.server import bench_server
from pie_py.config.server import ModelConfig

COUNTS = (1, 32, 128)  # sequences that decode together
MANY = 256  # inferlets at once
TOKENS = 96  # that each inferlet decodes
PROMPT = 64
LONG = 8192  # tokens of the long prompt
TOY = "toy"  # a shape to try the benchmark itself with, on the CPU, too
ROOT = Path(__file__).parents[2]

Figures = dict[str, Any]


@dataclass
class Phase:
    """A part of the run."""

    name: str
    seconds: float  # at most
    run: Callable[[float], Figures]


@dataclass
class Run:
    """What has been found so far."""

    out: Path
    figures: dict[str, Figures] = field(default_factory=dict)

    def add(self, name: str, figures: Figures) -> None:
        """Keeps what a phase has found, and writes all of it."""
        self.figures[name] = figures
        self.out.mkdir(parents=True, exist_ok=True)
        (self.out / "gpu.json").write_text(json.dumps(self.figures, indent=2))
        (self.out / "gpu.md").write_text(table(self.figures))


def measure(
    out: Path,
    seconds: float,
    shapes: tuple[str, ...],
    only: tuple[str, ...],
    program: Path | None,
    tell: Callable[[str], None],
) -> str:
    """Runs the phases that fit the time.

    Args:
        out: folder for `gpu.json`, `gpu.md` and the logs of the phases.
        seconds: for all of them.
        shapes: models, the most important first.
        only: names of phases, or parts of them; all unless told.
        program: the benchmarks' inferlet as a component; built here unless told.
        tell: takes a line on what happens.

    Returns:
        The table.

    Raises:
        RuntimeError: if there is no GPU.
    """
    run = Run(out)
    end = time.monotonic() + seconds
    off: list[str] = []  # switches of kernels that cannot be compiled here
    for phase in phases(out, shapes, program, off):
        if only and not any(part in phase.name for part in only):
            continue
        left = min(phase.seconds, end - time.monotonic())
        if left < 5:
            run.add(phase.name, {"skipped": "no time was left"})
            continue
        tell(f"{phase.name}: up to {left:.0f} s")
        start = time.monotonic()
        try:
            found = phase.run(left)
        except Exception as error:  # the others may still go well
            found = {"error": f"{type(error).__name__}: {error}"}
        run.add(phase.name, {**found, "took_s": round(time.monotonic() - start, 1)})
        off += [name for name in found.get("off", []) if name not in off]
        if found.get("device") == "cpu" and shapes != (TOY,):
            raise RuntimeError("PyTorch sees no NVIDIA GPU, and these models are for one")
        tell(f"{phase.name}: {json.dumps(found)[:400]}")
    return table(run.figures)


def phases(out: Path, shapes: tuple[str, ...], program: Path | None, off: list[str]) -> list[Phase]:
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
        Phase(f"server {first}", 150, functools.partial(_server, out, first, program, off)),
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
    for name, config in (
        ("without graphs", {"cuda_graphs": False}),
        ("fp8 keys", {"kv_dtype": "fp8"}),
        ("CUDA cores", {"flashinfer": {"decode": "cuda-cores"}}),
        ("PyTorch's sampling", {"fused_sampling": False}),
        ("PyTorch's small kernels", {"flashinfer": dict.fromkeys(SWITCHES, False)}),
    ):
        label = f"decode {first}, {name}"
        found.append(Phase(label, 90, worker(label.replace(" ", "-"), _decode(first), config)))
    return found


SWITCHES = ("append", "norm", "rope", "activation")


def _decode(shape: str) -> list[str]:
    return ["decode", "--shape", shape, "--count", *map(str, COUNTS)]


def _worker(out: Path, name: str, arguments: list[str], seconds: float) -> Figures:
    """A phase of `pie_inference.gpu_bench`."""
    return _process(out, name, ["pie_inference.gpu_bench", *arguments], seconds)


def _server(out: Path, shape: str, program: Path | None, off: list[str], seconds: float) -> Figures:
    """Inferlets that decode in a whole server."""
    component = program or out / "bench.wasm"
    if program is None:
        component.write_bytes(bench_programs(["rust"])["rust"])
    own = [shape, str(component), json.dumps(_without(off, {}))]
    return _process(out, f"server-{shape}", ["pie_py.bench.gpu", *own], seconds)


def _without(off: list[str], config: Figures) -> Figures:
    """Fields of `ModelConfig`, without kernels that cannot be compiled."""
    if not off:
        return config
    return {**config, "flashinfer": {**config.get("flashinfer", {}), **dict.fromkeys(off, False)}}


def _process(out: Path, name: str, arguments: list[str], seconds: float) -> Figures:
    """What a module's process says last on its standard output, as JSON."""
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


def _serve(shape: str, component: bytes, config: Figures) -> Figures:
    """Inferlets that decode in a whole server; milliseconds a token of each."""
    with tempfile.TemporaryDirectory(prefix="pie-") as folder:
        checkpoint = _checkpoint(shape, Path(folder))
        fields = {"source": str(checkpoint), "name": "measured", "load_format": "dummy"}
        model = ModelConfig.model_validate({**fields, **config})
        found: Figures = {}

        async def all_counts(endpoint: str) -> None:
            for count in (*COUNTS, MANY):
                decoded = await decode_in(endpoint, component, count, PROMPT, TOKENS)
                found[str(count)] = {"ms": decoded.ms_a_token}

        with bench_server(model) as server:
            anyio.run(all_counts, server.endpoint)
    return found


def _checkpoint(shape: str, folder: Path) -> Path:
    """A folder with the configuration and a tokenizer of a shape's model, without weights."""
    code = (
        "import sys; from pathlib import Path; from pie_inference.gpu_bench.shapes import write_shape;"
        "write_shape(sys.argv[1], Path(sys.argv[2]))"
    )
    subprocess.run([sys.executable, "-c", code, shape, str(folder)], check=True)
    vocabulary = json.loads((folder / "config.json").read_text())["vocab_size"]
    _write_tokenizer(folder, vocabulary)
    return folder


def _write_tokenizer(folder: Path, vocabulary: int) -> None:
    """A tokenizer of so many tokens: the bytes, and others that no text has. Training one takes minutes."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = [*letters, *(f"<|{i}|>" for i in range(len(letters), vocabulary))]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    kind = {"tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(kind))


def _log(out: Path, name: str) -> Path:
    out.mkdir(parents=True, exist_ok=True)
    return out / f"{name.replace(',', '').replace(chr(39), '')}.log"


def _end_of(file: Path, characters: int = 600) -> str:
    return file.read_text(errors="replace").strip()[-characters:]


def table(figures: dict[str, Figures]) -> str:
    """The goals, and what was found, in Markdown."""
    machine = figures.get("machine", {})
    lines = [
        f"# {machine.get('device', 'no device')}, torch {machine.get('torch', '?')},"
        f" {os.environ.get('PIE_BENCH_DATE', time.strftime('%Y-%m-%d'))}",
        "",
        "| what | goal | found |",
        "|---|---|---|",
    ]
    for name, found in figures.items():
        for row in _rows(name, found, figures):
            lines.append("| " + " | ".join(row) + " |")
    return "\n".join(lines) + "\n"


def _rows(name: str, found: Figures, figures: dict[str, Figures]) -> list[tuple[str, str, str]]:
    if "error" in found or "skipped" in found:
        return [(name, "", str(found.get("error", found.get("skipped")))[:200].replace("\n", " "))]
    machine = figures.get("machine", {})
    kind, _, shape = name.partition(" ")
    rows: list[tuple[str, str, str]] = []
    if kind == "machine":
        for key, unit in (("memory", "TB/s"), ("matrix", "TFLOP/s")):
            rows.append((f"{key}", "", f"{found[key] / 1e12:.2f} {unit}"))
        for key in ("to_device", "to_host"):
            rows.append((f"{key}", "", f"{found[key] / 1e9:.1f} GB/s"))
    elif kind == "decode":
        for count, one in found.items():
            if isinstance(one, dict):
                rows += _decode_rows(f"{shape} × {count}", count, one, machine)
    elif kind == "server":
        ideal = figures.get(f"decode {shape}", {})
        for count, one in found.items():
            if isinstance(one, dict):
                best = ideal.get(count, {}).get("ideal_ms")
                over = "" if best is None else f" ({one['ms'] / best - 1:+.1%} of ideal)"
                rows.append(
                    (f"{shape}, server × {count}", "≤ +3 %", f"{one['ms']:.3f} ms a token{over}")
                )
    elif kind == "prefill":
        for length, one in found.items():
            if isinstance(one, dict):
                share = _share(one["matrix"], machine.get("matrix"))
                goal = "≥ 50 % of the peak" if int(length) >= LONG else ""
                rows.append(
                    (
                        f"{shape}, prompt of {length}",
                        goal,
                        f"{one['seconds'] * 1e3:.1f} ms, {share}",
                    )
                )
    elif kind == "swap":
        for way, ceiling in (("out", "to_host"), ("in", "to_device")):
            share = _share(found[way], machine.get(ceiling))
            rows.append(
                (f"{shape}, swap {way}", "≥ 80 % of PCIe", f"{found[way] / 1e9:.1f} GB/s, {share}")
            )
        rows.append((f"{shape}, swaps hidden", "all", f"{found['hidden']:.0%}"))
    elif kind == "tests:":
        rows.append((name, "pass", "pass" if found.get("passed") else found["last"][-160:]))
    return rows


def _decode_rows(
    label: str, count: str, one: Figures, machine: Figures
) -> list[tuple[str, str, str]]:
    if "error" in one:
        return [(label, "", one["error"])]
    over = f" ({one['over']:+.1%} of {one['ideal_ms']:.3f})" if "over" in one else ""
    rows = [
        (f"{label}: a token", "≤ +3 % of ideal", f"{one['ms']:.3f} ms{over}"),
        (
            f"{label}: idle between steps",
            "< 200 µs",
            f"{one['idle_us'][0]:.0f} µs, 99 %: {one['idle_us'][1]:.0f}; the host hands a step over in"
            f" {one['host_us']:.0f}",
        ),
        (
            f"{label}: a token by top-k 20, top-p 0.9",
            "",
            f"{one['drawn_ms']:.3f} ms; choosing it {one['draw_us']:.0f} µs,"
            f" the likeliest one {one['sample_us']:.0f}",
        ),
    ]
    if count == "1":
        share = _share(one["bandwidth"], machine.get("memory"))
        rows.append(
            (f"{label}: bandwidth", "≥ 80 %", f"{one['bandwidth'] / 1e12:.2f} TB/s, {share}")
        )
    return rows


def _share(value: float, ceiling: float | None) -> str:
    return "no ceiling" if not ceiling else f"{value / ceiling:.0%} of the measured"


if __name__ == "__main__":
    # A phase that has a process of its own: SHAPE COMPONENT CONFIG.
    print(json.dumps(_serve(sys.argv[1], Path(sys.argv[2]).read_bytes(), json.loads(sys.argv[3]))))
