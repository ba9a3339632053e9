"""A server of its own for a benchmark, so that nothing else is measured."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pie_py.config import ModelConfig, ServerConfig
from pie_py.server_process import ServerProcess


@contextmanager
def bench_server(model: ModelConfig) -> Iterator[str]:
    """Runs a server on a local socket and gives its endpoint.

    Raises:
        ServerFailed: with the server's own reason.
    """
    with tempfile.TemporaryDirectory(prefix="pie-") as folder:
        config = ServerConfig(
            endpoint=f"ipc://{folder}/door", data_folder=Path(folder) / "data", models=(model,)
        )
        with ServerProcess(config, "warning", Path(folder) / "log") as process:
            yield process.wait_ready()
