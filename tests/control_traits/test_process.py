"""The control process itself: what it tells when it fails."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import structlog
import trio

from pie_control import __main__ as process
from pie_py.config.plugins import ExtensionConfig
from pie_py.config.server import ServerConfig


@pytest.mark.parametrize("serves", [False, True])
def test_a_failure_of_a_server_that_serves_is_in_its_log(
    monkeypatch: pytest.MonkeyPatch, serves: bool
) -> None:
    async def serve(
        config: ServerConfig, stop: trio.Event, task_status: Any = trio.TASK_STATUS_IGNORED
    ) -> None:
        if serves:
            task_status.started("tcp://here")
        await trio.lowlevel.checkpoint()
        raise ValueError("on purpose")

    monkeypatch.setattr(process, "serve", serve)
    monkeypatch.setattr(process, "read_options", lambda module: (ServerConfig(), False))
    with structlog.testing.capture_logs() as lines:
        assert process.main() == 1
    assert [line["log_level"] for line in lines] == ["error" if serves else "debug"]


def test_an_extension_that_is_not_installed_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    extension = ExtensionConfig(name="flight", settings={})
    config = ServerConfig(data_folder=tmp_path, extension=extension)
    monkeypatch.setattr(process, "read_options", lambda module: (config, False))
    with structlog.testing.capture_logs():
        assert process.main() == 1
    assert "no extension 'flight'" in json.loads(capfd.readouterr().out)["error"]
