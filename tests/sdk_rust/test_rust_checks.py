"""The SDK's own tests, which run in Wasm at a real server; see `rust_guests/src/checks.rs`."""

from __future__ import annotations

import pytest
from rust_components import rust_component

from pie_py.client.sync import Client

AREAS = (
    *("json", "args", "random", "sampler", "stop-strings", "decoder"),
    *("tasks", "runtime", "raw", "exports", "context", "chat"),
)


@pytest.mark.parametrize("area", AREAS)
def test_checks(client: Client, area: str) -> None:
    instance = client.launch(client.upload(rust_component("guests")), ["check", area])
    try:
        assert instance.result() == "ok"
    except Exception as error:
        error.add_note(f"log: {instance.logs()}")
        raise
