"""`http`: vLLM's own load generator against our gateway and against `vllm serve`, in turns."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import options
from benchmarks.benchmark import Benchmark, Progress
from benchmarks.http.gateway import http_gateway
from benchmarks.http.vllm import NAME, vllm_environment, vllm_program, vllm_serve
from benchmarks.peers import vllm_python
from pie_py.bench.report import Goal, Report
from pie_py.bench.server import bench_server, with_room
from pie_py.config.model import ModelConfig

MOST_SECONDS = 660.0  # of a load
FIGURES = {
    "output_throughput": "tokens/s",
    "median_ttft_ms": "TTFT p50",
    "p99_ttft_ms": "TTFT p99",
    "median_itl_ms": "ITL p50",
    "p99_itl_ms": "ITL p99",
}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Throughput, time to first token and between tokens, under vLLM's load generator."""

    vllm: str | None = vllm_python()
    dtype: str = options.option("--vllm-dtype", default="auto", help="vLLM's `--dtype`.")
    model: ModelConfig = options.model("small")
    rates: tuple[float, ...] = options.rate_list("--rates", "1,4,16", "Requests per second.")
    prompt: int = options.prompt()
    tokens: int = options.tokens(32)
    seconds: float = options.real("--seconds", 8.0, "Of requests at each rate.")
    most: int = options.count("--requests", 64, "At each rate at the most; so many unlimited.")


def compare(settings: Settings, progress: Progress) -> Report:
    """Measures both sides at each rate, and unlimited. A load that fails is noted; others go on."""
    program = vllm_program(settings.vllm)
    rates = [*settings.rates, float("inf")]
    progress.expect(2 + 2 * len(rates))
    model = with_room(settings.model, settings.most, settings.prompt + settings.tokens)
    report = Report(
        f"vllm bench serve: {settings.prompt} random and {settings.tokens} new tokens per request",
        ["rate", "side", *FIGURES.values()],
        notes=[
            f"Times in ms. vLLM runs eagerly, dtype {settings.dtype}. The side that is not measured"
            " stands still."
        ],
    )
    with (
        tempfile.TemporaryDirectory(prefix="pie-") as folder,
        vllm_serve(program, settings.model, Path(folder), settings.dtype) as (theirs, pause),
        bench_server(model.model_copy(update={"name": NAME})) as server,
        http_gateway(server.endpoint) as ours,
    ):
        progress("both serve")
        sides = {"pie_py": ours.url, "vllm": theirs}
        loads = _Loads(program, settings, Path(folder))
        for side, url in sides.items():  # the first requests do not count
            pause(side == "pie_py")
            loads.run(url, 1.0, 2)
        progress("both are warm")
        for rate in rates:
            count = settings.most if rate == float("inf") else int(rate * settings.seconds)
            found = {}
            for side, url in sides.items():
                pause(side == "pie_py")
                try:
                    found[side] = loads.run(url, rate, min(count, settings.most))
                except RuntimeError as error:
                    report.notes.append(f"{side} at {rate:g}/s: {error}")
                progress(f"{side} at {rate:g} requests/s")
            _add(report, rate, found)
    return report


def _add(report: Report, rate: float, found: dict[str, list[float]]) -> None:
    """Adds what was found of the sides at a rate, and the goals if it was found of both."""
    name = "unlimited" if rate == float("inf") else f"{rate:g}/s"
    report.rows += [[name, side, *figures] for side, figures in found.items()]
    if len(found) < 2:
        return
    ratios = [a / b for a, b in zip(*found.values(), strict=True)]
    report.rows.append([name, "ratio", *ratios])
    if rate == float("inf"):
        report.goals.append(Goal("throughput, unlimited", ratios[0], 1.0, at_most=False))
    report.goals.append(Goal(f"TTFT p50, {name}", ratios[1], 1.0))
    report.goals.append(Goal(f"TTFT p99, {name}", ratios[2], 1.0))


class _Loads:
    """Runs of vLLM's load generator."""

    def __init__(self, program: Sequence[str], settings: Settings, folder: Path) -> None:
        self._program = program
        self._settings = settings
        self._result = folder / "result.json"

    def run(self, url: str, rate: float, count: int) -> list[float]:
        """One run; the `FIGURES`.

        Raises:
            RuntimeError: it fails, or a request does.
        """
        self._result.unlink(missing_ok=True)
        command = self._command(url, rate, count)
        how: dict[str, Any] = {"env": vllm_environment(), "timeout": MOST_SECONDS}
        done = subprocess.run(command, capture_output=True, text=True, **how)
        if done.returncode or not self._result.is_file():
            raise RuntimeError(f"vllm bench serve fails: {(done.stdout + done.stderr)[-1000:]}")
        found: dict[str, Any] = json.loads(self._result.read_text())
        if found["completed"] != count:
            raise RuntimeError(f"{found['completed']} of {count} requests were answered")
        return [found[name] for name in FIGURES]

    def _command(self, url: str, rate: float, count: int) -> list[str]:
        settings = self._settings
        command = [*self._program, "bench", "serve", "--backend", "openai", "--base-url", url]
        command += ["--endpoint", "/v1/completions", "--model", NAME]
        command += ["--tokenizer", settings.model.source, "--dataset-name", "random"]
        command += ["--random-input-len", str(settings.prompt)]
        command += ["--random-output-len", str(settings.tokens), "--ignore-eos"]
        command += ["--num-prompts", str(count), "--request-rate", str(rate), "--disable-tqdm"]
        command += ["--percentile-metrics", "ttft,itl", "--metric-percentiles", "50,99"]
        folder, name = self._result.parent, self._result.name
        return [*command, "--save-result", "--result-dir", str(folder), "--result-filename", name]


BENCHMARK = Benchmark(Settings, compare)
