"""The control process itself: what it tells when it fails."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import psutil
import pytest
import structlog
import trio
from support.servers import Server

from pie_control import __main__ as process
from pie_control import running, server
from pie_control.scheduler.worker_process import WorkerProcess, start_worker
from pie_inference.serving.worker import WorkerConfig
from pie_py.config.plugins import ExtensionConfig, ObserverConfig, UnknownPolicy, observing
from pie_py.config.server import ServerConfig


@pytest.mark.parametrize("serves", [False, True])
def test_a_failure_of_a_server_that_serves_is_in_its_log(
    monkeypatch: pytest.MonkeyPatch, serves: bool
) -> None:
    async def serve(
        config: ServerConfig,
        stop: trio.Event,
        worker: WorkerProcess | None,
        task_status: Any = trio.TASK_STATUS_IGNORED,
    ) -> None:
        if serves:
            task_status.started("tcp://here")
        await trio.lowlevel.checkpoint()
        raise ValueError("on purpose")

    monkeypatch.setattr(server, "serve", serve)
    monkeypatch.setattr(process, "read_arguments", lambda module: ({}, False))
    monkeypatch.setattr(running, "configured", lambda given: ServerConfig())
    with structlog.testing.capture_logs() as lines:
        assert process.main() == 1
    assert [line["log_level"] for line in lines] == ["error" if serves else "debug"]


def test_an_extension_that_is_not_installed_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    extension = ExtensionConfig(name="flight", settings={})
    config = ServerConfig(data_folder=tmp_path, extension=extension)
    monkeypatch.setattr(process, "read_arguments", lambda module: ({}, False))
    monkeypatch.setattr(running, "configured", lambda given: config)
    with structlog.testing.capture_logs():
        assert process.main() == 1
    assert "no extension 'flight'" in json.loads(capfd.readouterr().out)["error"]


WATCH = """
from contextlib import contextmanager

@contextmanager
def watch(process, folder, messages):
    wanted = {"control": ["order"], "worker": ["receive", "decode", "send"]}[process]
    for name in wanted:
        assert callable(getattr(messages, name)), name
    yield
    (folder / process).touch()
"""


def test_an_observer_watches_both_processes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "watching.py").write_text(WATCH)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    with Server(observer={"observer": "watching:watch", "folder": str(tmp_path)}):
        pass
    assert {"control", "worker"} <= {each.name for each in tmp_path.iterdir()}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nowhere_at_all:watch", "can't be loaded: No module named 'nowhere_at_all'"),
        ("json:nothing", "can't be loaded: module 'json' has no attribute 'nothing'"),
        ("json:__doc__", "is no function"),
    ],
)
def test_an_observer_that_is_not_there_is_named(name: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(UnknownPolicy, match=f"observer '{name}' {said}"):
        observing(ObserverConfig(name, tmp_path), "control", None)
    assert not list(tmp_path.iterdir())


async def start(given: dict[str, Any]) -> list[str] | None:
    """What a worker is started with, which has ended."""
    worker = start_worker(given)
    if worker is None:
        return None
    command: list[str] = []
    while not command:  # it has none for a moment while its program is put in place
        await trio.sleep(0.001)
        command = psutil.Process(worker.process.pid).cmdline()
    worker.close()
    await worker.wait()
    assert not Path(worker.endpoint.removeprefix("ipc://")).parent.exists()
    return command


@pytest.mark.parametrize("lacking", [None, "models", "worker_module", "log"])
def test_the_first_worker_is_started_by_a_configuration_as_it_is_given(
    monkeypatch: pytest.MonkeyPatch, lacking: str | None
) -> None:
    """One that says all that a worker is told; else what is not given has to be found first."""
    given = ServerConfig(worker_threads=3).model_dump(mode="json")
    given.pop(lacking, None) if lacking else None
    command = trio.run(start, given)
    if lacking:
        assert command is None
        return
    assert command is not None
    told = WorkerConfig.model_validate_json(command[command.index("--config") + 1])
    assert told == WorkerConfig(models=ServerConfig().models, threads=3)
