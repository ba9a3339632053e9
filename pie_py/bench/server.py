"""A server of its own for a benchmark, so that nothing else is measured."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pie_py.config import ModelConfig, ServerConfig


class ServerDidNotStart(Exception):
    """The text is the server's reason."""


@contextmanager
def bench_server(model: ModelConfig) -> Iterator[str]:
    """Runs a server on a local socket and gives its endpoint.

    Raises:
        ServerDidNotStart: with the server's own reason.
    """
    folder = Path(tempfile.mkdtemp(prefix="pie-"))
    config = ServerConfig(
        endpoint=f"ipc://{folder}/door",
        data_folder=folder / "data",
        models=(model,),
    )
    log = (folder / "log").open("w")
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "pie_control",
            "--with-parent",
            "--log-level",
            "warning",
            "--config",
            config.model_dump_json(),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        message = json.loads(line) if line else {"error": (folder / "log").read_text()[-2000:]}
        if "error" in message:
            raise ServerDidNotStart(message["error"])
        yield message["endpoint"]
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        log.close()
        shutil.rmtree(folder, ignore_errors=True)
