"""A server of its own for a benchmark, so that nothing else is measured."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from pie_py.config.logs import LogConfig
from pie_py.config.model import ModelConfig
from pie_py.config.server_process import ServerProcess
from pie_py.config.settings import read_settings


class BenchServer(NamedTuple):
    """A server that runs."""

    endpoint: str
    pid: int  # of the control process


def with_room(model: ModelConfig, instances: int, tokens: int) -> ModelConfig:
    """The model with a KV pool for so many instances of so many tokens, unless its size is given.

    A server takes most of the memory by itself; those of a benchmark share it, and start sooner so.
    """
    if model.kv_pages is not None or model.kv_memory is not None:
        return model
    pages = instances * (-(-tokens // model.page_size) + 2)  # one that is part full, one run ahead
    return model.model_copy(update={"kv_pages": pages, "host_pages": 0})


@contextmanager
def bench_server(*models: ModelConfig, **settings: Any) -> Iterator[BenchServer]:
    """Runs a server on a local socket; settings are fields of `ServerConfig`.

    Raises:
        ServerFailed: with the server's own reason.
    """
    with tempfile.TemporaryDirectory(prefix="pie-") as folder:
        settings.setdefault("data_folder", Path(folder) / "data")
        config = read_settings(
            endpoint=f"ipc://{folder}/door",
            models=models,
            log=LogConfig(level="warning"),
            **settings,
        )
        with ServerProcess(config, Path(folder) / "log") as process:
            yield BenchServer(process.wait_ready(), process.pid)
