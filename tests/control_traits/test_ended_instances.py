"""What is kept of instances that have ended, and for how long."""

from __future__ import annotations

import pytest
from support.instances import Instances

from pie_control.instances import registry
from pie_control.instances.instance import State


@pytest.mark.parametrize("kept", ["log", "result", "arguments", "messages"])
def test_records_are_bounded_by_what_they_hold(monkeypatch: pytest.MonkeyPatch, kept: str) -> None:
    monkeypatch.setattr(registry, "ENDED_BYTES", 100_000)
    instances = Instances()
    ended = instances.registry
    reader = instances.launch()
    reader.client.attached = True
    instances.end(reader)
    for _ in range(100):
        one = instances.launch()
        if kept == "log":
            one.log.add("info", "x" * 4000)
        elif kept == "arguments":
            one.args = ["x" * 2000, "y" * 2000]
        elif kept == "messages":
            one.outbox.put("x" * 4000, 4000)
        ended.end(one, State.FINISHED, "x" * 4000 if kept == "result" else "")
    records = ended.instances()
    assert 10 <= len(records) <= 25
    assert records[0] is reader  # somebody reads it still
    assert records[-1] is one


def test_small_records_stay() -> None:
    instances = Instances()
    for _ in range(registry.ENDED_KEPT + 5):
        instances.end(instances.launch())
    assert len(instances.registry.instances()) == registry.ENDED_KEPT
