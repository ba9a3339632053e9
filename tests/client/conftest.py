"""A server of instances without Wasm, and one that lets clients be little behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.rpc_bench import Bench

from pie_control.rpc import outgoing


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with Bench(tmp_path) as bench:
        yield bench


@pytest.fixture
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outgoing, "PROBE_BYTES", 1 << 20)
    monkeypatch.setattr(outgoing, "CONNECTION_BYTES", 4 << 20)
    monkeypatch.setattr(outgoing, "USER_BYTES", 6 << 20)
