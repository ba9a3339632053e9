"""Messages of nodes, with what a test does not care about filled in."""

from __future__ import annotations

from typing import Any

from pie_cluster.wire.messages import Join, Load, Report
from pie_py import __version__


def join(node: str = "n1", incarnation: int = 1, **more: Any) -> Join:
    fields: dict[str, Any] = {
        "version": __version__,
        "endpoint": f"tcp://{node}:7743",
        "public_key": f"key of {node}",
        "most_instances": 10,
        "pool_tokens": 100_000,
        "prefill_rate": 10_000,
    }
    return Join(node, incarnation, **{**fields, **more})


def report(node: str = "n1", incarnation: int = 1, instances: int = 0, **more: Any) -> Report:
    return Report(node, incarnation, Load(instances), **more)
