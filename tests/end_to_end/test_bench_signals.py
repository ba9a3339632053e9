"""A benchmark that is told to stop leaves no peer behind, whoever started it and however often."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

# Stands for vLLM's command line: answers at /health, and has a process of its own that does not
# look for signals.
SERVER = """
import http.server, subprocess, sys
subprocess.Popen(["sleep", "1000"])
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
port = int(sys.argv[sys.argv.index("--port") + 1])
http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""
BENCHMARK = """
import sys, time
from dataclasses import dataclass
from pathlib import Path
from benchmarks.http.vllm import vllm_serve
from benchmarks.benchmark import Benchmark
from pie_py.config.model import ModelConfig

@dataclass(frozen=True, kw_only=True)
class Settings:
    "None."

def measure(settings, progress):
    program = [sys.executable, sys.argv[1]]
    with vllm_serve(program, ModelConfig(source="none"), Path(sys.argv[1]).parent) as (url, pause):
        pause(True)
        print(url, flush=True)
        time.sleep(1000)

Benchmark(Settings, measure).command("it").main([])
"""


def _as_in_background() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a shell without a terminal starts `... &`


@pytest.mark.parametrize(
    ("number", "before"),
    [(signal.SIGTERM, None), (signal.SIGINT, None), (signal.SIGINT, _as_in_background)],
)
def test_vllm_ends_with_its_benchmark(
    tmp_path: Path, number: signal.Signals, before: Callable[[], None] | None
) -> None:
    server = tmp_path / "server.py"
    server.write_text(SERVER)
    process = subprocess.Popen(
        [sys.executable, "-c", BENCHMARK, str(server)],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=before,
    )
    children: list[psutil.Process] = []
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("http")
        children = psutil.Process(process.pid).children(recursive=True)
        assert len(children) == 2
        process.send_signal(number)
        process.send_signal(number)
        process.wait(30)
        _, alive = psutil.wait_procs(children, timeout=10)
        assert not alive
    finally:
        process.kill()
        for child in children:
            with suppress(psutil.NoSuchProcess):
                child.kill()
        process.communicate()
