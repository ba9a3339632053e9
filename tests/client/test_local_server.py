"""`Client.local`, which starts a server."""

from __future__ import annotations

from pathlib import Path

import pytest

from pie_py.client.sync import Client


def test_what_takes_long_the_first_time_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folders = {"data_folder": str(tmp_path / "data"), "cache_folder": str(tmp_path / "cache")}
    with Client.local("pie-tiny", **folders) as client:
        assert [model["name"] for model in client.models()] == ["pie-tiny"]
    assert "builds its runtime, once" in caplog.text
