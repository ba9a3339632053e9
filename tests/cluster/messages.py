"""Messages of nodes, with what a test does not care about filled in."""

from __future__ import annotations

from typing import Any

from pie_cluster.wire.messages import CLUSTER_PROTOCOL, Join, Load, Report

KEY = b"key"


def join(node: str = "n1", incarnation: int = 1, **more: Any) -> Join:
    fields: dict[str, Any] = {
        "protocol": CLUSTER_PROTOCOL,
        "version": "0.1.0",
        "endpoint": f"tcp://{node}:7743",
        "public_key": f"key of {node}",
        "most_instances": 10,
        "pool_tokens": 100_000,
        "prefill_rate": 10_000,
    }
    return Join(node, incarnation, **{**fields, **more})


def report(
    number: int, node: str = "n1", incarnation: int = 1, instances: int = 0, **more: Any
) -> Report:
    return Report(node, incarnation, number, Load(instances), **more)
