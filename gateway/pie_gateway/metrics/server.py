"""Metrics of the server, and the text of all metrics as Prometheus reads it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pie_gateway.backend.catalog import Snapshot
from pie_gateway.metrics.requests import RequestMetrics, counter, gauge, long_turns

MOST_LABELS = 50  # programs and users with a series of their own; the rest is `other`

# Each metric: its name, what it is, and the number of a model's statistics that it shows; of
# counters the unit of that.
_GAUGES = (
    ("pie_kv_pages", "KV pages on the device", "kv_pages"),
    ("pie_kv_pages_free", "KV pages that are free, or hold cached prefixes", "kv_pages_free"),
    ("pie_prefix_cache_pages", "KV pages of cached prefixes", "prefix_pages"),
    ("pie_exported_pages", "KV pages of saved contexts", "exported_pages"),
    ("pie_host_pages", "Pages of host memory", "host_pages"),
    ("pie_host_pages_free", "Pages of host memory that are free", "host_pages_free"),
    ("pie_num_commands_queued", "Commands that wait for a batch", "queued"),
    ("pie_num_plans_in_flight", "Plans at the worker", "plans_in_flight"),
    ("pie_num_queues", "Command queues of instances", "queues"),
    ("pie_num_samplers_free", "Samplers that are free", "samplers_free"),
)
_COUNTERS = (
    ("pie_plans", "Plans sent to the worker", "plans", 1.0),
    (
        "pie_prefix_cache_queries",
        "Tokens looked for in the prefix cache",
        "prefix_tokens_asked",
        1.0,
    ),
    ("pie_prefix_cache_hits", "Tokens found in the prefix cache", "prefix_tokens_found", 1.0),
    ("pie_prefix_cache_evictions", "Pages of prefixes evicted", "prefix_pages_evicted", 1.0),
    ("pie_worker_busy_seconds", "Time that the worker computed", "worker_ns", 1e-9),
    ("pie_worker_idle_seconds", "Time that the worker waited for a plan", "worker_idle_ns", 1e-9),
)
_TOKENS = (("prompt", "prompt_tokens"), ("generation", "generated_tokens"))
_KINDS = (
    ("pie_batches", "Batches by kind of command", "batches"),
    ("pie_commands", "Commands by kind", "commands"),
)
_INTERCEPTION = (
    ("pie_num_preemptions", "Times that an instance's pages were evicted", "evictions"),
    ("pie_pages_evicted", "Pages evicted from instances", "pages_evicted"),
    ("pie_pages_restored", "Pages brought back to instances", "pages_restored"),
)


class ServerCollector(Collector):
    """Metrics of a snapshot."""

    def __init__(self, snapshot: Snapshot, used: Sequence[Mapping[str, Any]]) -> None:
        self._snapshot = snapshot
        self._rows = used

    def collect(self) -> Iterable[Metric]:
        """All metrics, with labels for models, programs and users."""
        yield from self._models()
        yield from self._server()
        instances = self._snapshot.instances
        yield _by("pie_num_instances", "Instances by state", "state", instances, "state")
        alive = [each for each in instances if each["state"] == "running"]
        yield _by("pie_num_instances_of_program", "Running ones", "program", alive, "program")
        yield _by("pie_num_instances_of_user", "Running instances by user", "user", alive, "user")
        yield _used(self._rows, "user")
        yield _used(self._rows, "program")

    def _server(self) -> Iterable[Metric]:
        info = self._snapshot.info
        yield GaugeMetricFamily("pie_uptime_seconds", "Of the server", info.get("uptime", 0.0))
        most = info.get("max_instances", 0)
        yield GaugeMetricFamily("pie_max_instances", "Most instances alive at once", most)
        yield CounterMetricFamily("pie_launches", "Instances launched", info.get("launched", 0))
        missed = info.get("deadlines_missed", 0)
        yield CounterMetricFamily("pie_deadlines_missed", "Instances that ended too late", missed)
        for loop, (count, worst) in info.get("long_turns", {}).items():
            yield from long_turns(loop, count, worst)

    def _models(self) -> Iterable[Metric]:
        models = self._snapshot.stats.items()
        one, two = ("model_name",), ("model_name", "kind")
        shares = [
            ((m,), (s["kv_pages"] - s["kv_pages_free"]) / max(1, s["kv_pages"])) for m, s in models
        ]
        yield gauge("pie_kv_cache_usage_ratio", "Share of the KV pages in use", one, shares)
        for name, text, key in _GAUGES:
            yield gauge(name, text, one, (((m,), s[key]) for m, s in models))
        for name, text, key, unit in _COUNTERS:
            yield counter(name, text, one, (((m,), s[key] * unit) for m, s in models))
        text = "Tokens of all programs, those behind HTTP requests included"
        tokens = [((m, kind), s[key]) for m, s in models for kind, key in _TOKENS]
        yield counter("pie_program_tokens", text, two, tokens)
        for name, text, key in _INTERCEPTION:
            counts = (((m,), s["interception"].get(key, 0)) for m, s in models)
            yield counter(name, text, one, counts)
        for name, text, key in _KINDS:
            kinds = (((m, kind), count) for m, s in models for kind, count in s[key].items())
            yield counter(name, text, two, kinds)


def _used(rows: Sequence[Mapping[str, Any]], label: str) -> Metric:
    """The usage of today, by the user or the program."""
    runs: Counter[str] = Counter()
    for row in rows:
        runs[row[label]] += int(row["instances"])
    shown = {name for name, _ in runs.most_common(MOST_LABELS)}
    used: Counter[tuple[str, str]] = Counter()
    for row in rows:
        name = row[label] if row[label] in shown else "other"
        for what in (what for what, value in row.items() if not isinstance(value, str)):
            used[name, what] += row[what]
    text = "Used today (UTC), by the ledger"
    return counter(f"pie_used_by_{label}", text, (label, "what"), used.items())


def _by(
    name: str, text: str, label: str, instances: Iterable[Mapping[str, Any]], key: str
) -> Metric:
    """The number of instances by one of their facts."""
    counted = Counter(str(each[key]) for each in instances).most_common()
    shown = [((value,), count) for value, count in counted[:MOST_LABELS]]
    if rest := sum(count for _, count in counted[MOST_LABELS:]):
        shown.append((("other",), rest))
    return gauge(name, text, (label,), shown)


def metrics_text(
    requests: RequestMetrics, snapshot: Snapshot, used: Sequence[Mapping[str, Any]] = ()
) -> bytes:
    """The gateway's own metrics, and those of the server, with the ledger's rows of today."""
    registry = CollectorRegistry()
    registry.register(requests)
    registry.register(ServerCollector(snapshot, used))
    return generate_latest(registry)
