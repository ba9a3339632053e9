"""`/metrics`, and the dashboard that reads them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import httpx2
from prometheus_client.parser import text_string_to_metric_families
from support.servers import until

from pie_gateway.backend.catalog import Snapshot
from pie_gateway.backend.job import Piece
from pie_gateway.metrics.requests import MOST_USERS, RequestMetrics
from pie_gateway.metrics.server import MOST_LABELS, metrics_text

DASHBOARD = Path(__file__).parents[2] / "gateway/pie_gateway/metrics/grafana.json"
CHAT = {"model": "pie-tiny", "messages": [{"role": "user", "content": "Hi"}]}


def samples(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_requests_are_counted(http: httpx2.Client) -> None:
    before = samples(http.get("/metrics").text)
    body = {**CHAT, "max_tokens": 6, "stream": True, "ignore_eos": True}
    http.post("/v1/chat/completions", json=body)
    http.post("/v1/chat/completions", json={**body, "stream": False})  # tells no times
    http.post("/v1/chat/completions", json={**CHAT, "model": "none"})
    http.get("/nothing/known")
    answer = http.get("/metrics")
    # What the server tells is up to half a second old.
    until(lambda: samples(http.get("/metrics").text)["pie_launches_total", frozenset()])
    assert answer.headers["content-type"].startswith("text/plain")
    after = samples(answer.text)

    def grown(name: str, **labels: str) -> float:
        key = name, frozenset(labels.items())
        return after[key] - before.get(key, 0)

    model = {"model_name": "pie-tiny"}
    assert grown("pie_generation_tokens_total", **model) == 12
    assert grown("pie_time_to_first_token_seconds_count", **model) == 1
    assert 1 <= grown("pie_inter_token_latency_seconds_count", **model) <= 5
    assert grown("pie_e2e_request_latency_seconds_count", **model) == 2
    assert grown("pie_request_success_total", **model, finished_reason="length") == 2
    assert grown("pie_user_tokens_total", user="local", kind="generation") == 12
    path = {"path": "/v1/chat/completions", "method": "POST"}
    assert grown("pie_http_requests_total", **path, status="200") == 2
    assert grown("pie_http_requests_total", **path, status="404") == 1
    assert grown("pie_http_requests_total", path="other", method="", status="404") == 1
    assert grown("pie_used_by_user_total", user="local", what="generated_tokens") >= 12
    assert after["pie_kv_cache_usage_ratio", frozenset(model.items())] < 1


def test_the_dashboard_reads_metrics_that_there_are(http: httpx2.Client) -> None:
    board: dict[str, Any] = json.loads(DASHBOARD.read_text())
    read = {
        name
        for panel in board["panels"]
        for target in panel["targets"]
        for name in re.findall(r"\bpie_\w+", target["expr"])
    }
    http.post("/v1/chat/completions", json={**CHAT, "max_tokens": 2})
    there = {name for name, _ in samples(http.get("/metrics").text)}
    # Of no instance there is no number by program or user.
    assert read - there <= {"pie_num_instances_of_program", "pie_num_instances_of_user"}
    assert len(read) > 20


def test_labels_are_bounded() -> None:
    metrics = RequestMetrics(lambda: 0.0)
    for number in range(MOST_USERS + 50):
        metrics.generation("m", f"user{number}", streams=True).piece(Piece(0, "x", 1))
    instances = [
        {"state": "running", "program": f"p{number}", "user": "ann"}
        for number in range(MOST_LABELS + 30)
    ]
    used = [
        {"program": f"p{n}", "user": "u", "instances": 1.0, "cpu_seconds": 2.0} for n in range(80)
    ]
    told = samples(metrics_text(metrics, Snapshot(0.0, {}, {}, instances), used).decode())
    assert told["pie_user_tokens_total", frozenset({"user": "other", "kind": "generation"}.items())]
    users = {labels for name, labels in told if name == "pie_user_tokens_total"}
    assert len(users) <= MOST_USERS + 1
    other = frozenset({"program": "other"}.items())
    assert told["pie_num_instances_of_program", other] == 30
    kind = frozenset({"what": "cpu_seconds"}.items())
    assert told["pie_used_by_program_total", other | kind] == 60.0
    assert told["pie_used_by_user_total", frozenset({"user": "u"}.items()) | kind] == 160.0
