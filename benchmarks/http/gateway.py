"""Our HTTP gateway before a server."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from pie_py.config.gateway import GatewayConfig
from pie_py.config.logs import LogConfig
from pie_py.config.server_process import ServerProcess
from pie_py.config.settings import read_settings


class Gateway(NamedTuple):
    """A gateway that runs."""

    url: str
    pid: int


@contextmanager
def http_gateway(endpoint: str) -> Iterator[Gateway]:
    """Our HTTP gateway before a running server."""
    with tempfile.TemporaryDirectory(prefix="pie-") as folder:
        config = read_settings(
            endpoint=endpoint,
            data_folder=Path(folder),
            gateway=GatewayConfig(http="127.0.0.1:0"),
            log=LogConfig(level="warning"),
        )
        with ServerProcess(config, Path(folder) / "log", module="pie_gateway") as process:
            yield Gateway(process.wait_ready(), process.pid)
