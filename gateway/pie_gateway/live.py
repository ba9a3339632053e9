"""Content of the live page: rates and percentiles, from one snapshot of the server to the next."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pie_gateway.backend.catalog import Snapshot
from pie_gateway.metrics.requests import RequestMetrics

MOST_INSTANCES = 500  # that run or sleep
MOST_ENDED = 20
MOST_NODES = 500  # of a cluster
PERCENTILES = (50, 90, 99)


class View:
    """The server as the viewers of one user see it: all get what was made for the first."""

    def __init__(self, requests: RequestMetrics) -> None:
        self._requests = requests
        self._before: Snapshot | None = None
        self._shown = b""

    def event(self, snapshot: Snapshot, encode: Callable[[Any], bytes]) -> bytes:
        """The view of a snapshot, encoded as all viewers get it."""
        if snapshot is not self._before:
            self._shown = encode(self.of(snapshot))
        return self._shown

    def of(self, snapshot: Snapshot) -> dict[str, Any]:
        """The view of a snapshot, with rates since the one before."""
        before, self._before = self._before, snapshot
        instances = _with_rates(before, snapshot)
        alive = [each for each in instances if each["ended_ns"] is None]  # or asleep
        alive.sort(key=lambda each: each["state"] == "asleep")
        ended = [each for each in instances if each["ended_ns"] is not None]
        return {
            "version": snapshot.info["version"],
            "user": snapshot.info["user"],
            "uptime": snapshot.info["uptime"],
            "alive": snapshot.info["instances"],
            "max_instances": snapshot.info["max_instances"],
            "launched": snapshot.info["launched"],
            "launches_per_second": _rate(before, snapshot, ("launched",)),
            "first": percentiles(self._requests.recent_first),
            "between": percentiles(self._requests.recent_between),
            "models": [self._model(name, before, snapshot) for name in snapshot.stats],
            "nodes": _nodes(snapshot.info.get("nodes", [])),
            "instances": [*alive[:MOST_INSTANCES], *ended[-MOST_ENDED:]],
        }

    def _model(self, name: str, before: Snapshot | None, now: Snapshot) -> dict[str, Any]:
        stats = now.stats[name]

        def rate(*path: str) -> float:
            return _rate(before, now, (name, *path))

        batches = rate("batches", "forward")
        return {
            "name": name,
            "pages": stats["kv_pages"],
            "pages_free": stats["kv_pages_free"],
            "pages_cached": stats["prefix_pages"],
            "pages_exported": stats["exported_pages"],
            "host_pages": stats["host_pages"],
            "host_pages_free": stats["host_pages_free"],
            "queued": stats["queued"],
            "in_flight": stats["plans_in_flight"],
            "queues": stats["queues"],
            "tokens_per_second": rate("generated_tokens"),
            "prompt_tokens_per_second": rate("prompt_tokens"),
            "batches_per_second": batches,
            "commands_per_batch": rate("commands", "forward") / batches if batches else 0.0,
            "busy": rate("worker_ns") / 1e9,
            "found": stats["prefix_tokens_found"] / max(1, stats["prefix_tokens_asked"]),
        }


def _with_rates(before: Snapshot | None, now: Snapshot) -> list[dict[str, Any]]:
    """The instances, each with the tokens that it has generated per second."""
    old = {} if before is None else {each["id"]: each for each in before.instances}
    seconds = max(now.at - (now if before is None else before).at, 1e-9)
    return [
        {
            **each,
            "tokens_per_second": max(
                0, each["generated_tokens"] - old.get(each["id"], each)["generated_tokens"]
            )
            / seconds,
        }
        for each in now.instances
    ]


def _nodes(nodes: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The nodes of a cluster, those first that take no launches; none of a server without one."""
    return sorted(nodes, key=lambda node: node["state"] == "ready")[:MOST_NODES]


def percentiles(seen: Sequence[float] | Iterable[float]) -> dict[str, float] | None:
    """Some percentiles, by name; None of nothing."""
    ordered = sorted(seen)
    if not ordered:
        return None
    return {
        f"p{share}": ordered[max(0, math.ceil(len(ordered) * share / 100) - 1)]
        for share in PERCENTILES
    }


def _rate(before: Snapshot | None, now: Snapshot, path: Sequence[str]) -> float:
    """By how much a number has grown per second."""
    if before is None or now.at <= before.at:
        return 0.0
    old, new = _number(before, path), _number(now, path)
    return max(0.0, new - old) / (now.at - before.at)  # a worker that starts again counts from 0


def _number(snapshot: Snapshot, path: Sequence[str]) -> float:
    found: Any = snapshot.info if len(path) == 1 else snapshot.stats
    for key in path:
        if not isinstance(found, Mapping) or key not in found:
            return 0.0
        found = found[key]
    return float(found)
