"""Messages of nodes, with what a test does not care about filled in."""

from __future__ import annotations

from typing import Any

from pie_cluster.wire.messages import About, Load, Report
from pie_py import __version__

ABOUT = {
    "version": __version__,
    "most_instances": 10,
    "pool_tokens": 100_000,
    "prefill_rate": 10_000,
}


def about(node: str, **more: Any) -> About:
    fields = {"endpoint": f"tcp://{node}:7743", "public_key": f"key of {node}", **ABOUT}
    return About(**{**fields, **more})


def join(node: str = "n1", incarnation: int = 1, **more: Any) -> Report:
    own = {name: more.pop(name) for name in ABOUT if name in more}
    fields = {"load": Load(), "about": about(node, **own), **more}
    return Report(node, incarnation, **fields)


def report(node: str = "n1", incarnation: int = 1, instances: int = 0, **more: Any) -> Report:
    return Report(node, incarnation, Load(instances), **more)
