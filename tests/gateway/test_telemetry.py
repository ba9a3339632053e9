"""Spans of requests, as an OpenTelemetry collector gets them over HTTP."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import websockets.sync.client
from support.gateways import Gateway
from support.servers import Server

otlp = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
BODY = {"model": "pie-tiny", "prompt": "Hi", "max_tokens": 4, "ignore_eos": True}


class Collector(ThreadingHTTPServer):
    """A receiver of OTLP/HTTP on a free port."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        assert self.path == "/v1/traces"
        assert isinstance(self.server, Collector)
        for resource in otlp.ExportTraceServiceRequest.FromString(body).resource_spans:
            for scope in resource.scope_spans:
                self.server.spans += scope.spans
        self.send_response(200)
        self.end_headers()

    def log_message(self, *args: Any) -> None:
        """Says nothing."""


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as collector:
        thread = threading.Thread(target=collector.serve_forever)
        thread.start()
        yield collector
        collector.shutdown()
        thread.join()


def test_a_request_its_instance_its_waits_and_batches(
    server: Server, collector: Collector, tmp_path: Path
) -> None:
    with Gateway(server, tmp_path, telemetry=collector.url) as gateway, gateway.http() as http:
        headers = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
        body = {**BODY, "stream": True}
        assert http.post("/v1/completions", json=body, headers=headers).status_code == 200
        unsampled = {"traceparent": f"00-{TRACE}-{PARENT}-00"}
        assert http.get("/v1/models", headers=unsampled).status_code == 200
        assert http.get("/v1/programs/none").status_code == 404
        url = f"{gateway.url.replace('http', 'ws')}/v1/inferlets/gateway-chat/session"
        with websockets.sync.client.connect(url, additional_headers=headers) as socket:
            socket.send(json.dumps({"args": ['{"model": "pie-tiny", "describe": true}']}))
            assert list(socket)
    # It has ended, so all that it had is sent.
    of_trace = [span for span in collector.spans if span.trace_id.hex() == TRACE]
    (request,) = [span for span in of_trace if span.name == "POST /v1/completions"]
    assert request.parent_span_id.hex() == PARENT
    told = {fact.key: fact.value for fact in request.attributes}
    assert told["http.response.status_code"].int_value == 200
    assert told["gen_ai.operation.name"].string_value == "text_completion"
    assert told["gen_ai.request.model"].string_value == "pie-tiny"
    assert told["gen_ai.usage.input_tokens"].int_value > 0
    assert told["gen_ai.usage.output_tokens"].int_value > 0
    (session,) = [span for span in of_trace if span.name.endswith("{program}/session")]
    instances = [span for span in of_trace if span.name == "inferlet gateway-chat"]
    instance, of_session = sorted(instances, key=lambda span: span.start_time_unix_nano)
    assert instance.parent_span_id == request.span_id
    assert of_session.parent_span_id == session.span_id
    within = [span for span in of_trace if span.parent_span_id == instance.span_id]
    assert {span.name for span in within} >= {"wait launch", "wait take", "batch forward"}
    for span in within:
        assert instance.start_time_unix_nano <= span.start_time_unix_nano
        assert span.end_time_unix_nano <= instance.end_time_unix_nano + 1_000_000_000
    others = {span.name for span in collector.spans if span.trace_id.hex() != TRACE}
    assert others == {"GET /v1/programs/{program}"}


def test_a_collector_that_is_not_there_costs_nobody_an_answer(
    server: Server, tmp_path: Path
) -> None:
    nowhere = "http://127.0.0.1:9"
    with Gateway(server, tmp_path, telemetry=nowhere) as gateway, gateway.http() as http:
        assert http.post("/v1/completions", json=BODY).status_code == 200
