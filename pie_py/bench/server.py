"""A server of its own for a benchmark, so that nothing else is measured."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from pie_py.config import ModelConfig, ServerConfig
from pie_py.server_process import ServerProcess


class BenchServer(NamedTuple):
    """A server that runs."""

    endpoint: str
    pid: int  # of the control process


@contextmanager
def bench_server(model: ModelConfig, **settings: Any) -> Iterator[BenchServer]:
    """Runs a server on a local socket; settings are fields of `ServerConfig`.

    Raises:
        ServerFailed: with the server's own reason.
    """
    with tempfile.TemporaryDirectory(prefix="pie-") as folder:
        config = ServerConfig(
            endpoint=f"ipc://{folder}/door",
            data_folder=Path(folder) / "data",
            models=(model,),
            **settings,
        )
        with ServerProcess(config, "warning", Path(folder) / "log") as process:
            yield BenchServer(process.wait_ready(), process.pid)
