"""Spans for an OpenTelemetry collector: each request, its instances, their waits and batches."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Mapping
from typing import Any

import anyio
import structlog
from anyio import to_thread

from pie_gateway.listening import CannotServe
from pie_py import __version__
from pie_py.client import Client, ClientError
from pie_py.config.gateway import TelemetryConfig

log = structlog.get_logger("pie.telemetry")

MOST_WAITING = 1000  # instances whose spans are still to be asked for; of more there are none
QUEUED_SPANS = 1 << 16
MOST_SPANS = 16  # of one instance's waits and batches: the longest ones


class Telemetry:
    """Makes spans and sends them, beside the requests: none waits for it."""

    def __init__(self, config: TelemetryConfig) -> None:
        """Sends nothing yet. Raises `CannotServe`: what it needs is not installed."""
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio
        except ImportError as error:
            raise CannotServe(
                f"`telemetry.endpoint` is configured, and {error.name} is not installed:"
                " pip install 'pie_py[telemetry]'"
            ) from None
        traces = f"{(config.endpoint or '').rstrip('/')}/v1/traces"
        # With what is tried again.
        exporter = OTLPSpanExporter(traces, timeout=2.0)
        self._provider = TracerProvider(
            ParentBasedTraceIdRatio(config.sampled),
            Resource.create({"service.name": "pie_py", "service.version": __version__}),
            shutdown_on_exit=False,
        )
        self._sender = BatchSpanProcessor(
            exporter, max_queue_size=QUEUED_SPANS, max_export_batch_size=4096
        )
        self._provider.add_span_processor(self._sender)
        self._tracer = self._provider.get_tracer("pie_py", __version__)
        self._over: deque[tuple[Client, str, Any]] = deque()
        self._news = anyio.Event()

    def request(self, method: str, headers: Mapping[str, str], identity: str) -> RequestSpan | None:
        """A request begins, which is sampled or not; `traceparent` says of which trace it is."""
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        context = TraceContextTextMapPropagator().extract(headers)
        span = self._tracer.start_span(method, context, SpanKind.SERVER)
        if not span.is_recording():
            return None
        span.set_attributes({"http.request.method": method, "pie.request": identity})
        return RequestSpan(self, span)

    def add(self, client: Client, instance: str, request: Any) -> None:
        """An instance of a request has ended: its spans are asked for soon."""
        if len(self._over) < MOST_WAITING:
            self._over.append((client, instance, request))
            self._news.set()

    async def run(self) -> None:
        """Asks for spans until cancelled, then sends what is left."""
        try:
            while True:
                await self._news.wait()
                self._news = anyio.Event()
                while self._over:
                    await self._export(*self._over.popleft())
        finally:
            with anyio.CancelScope(shield=True):
                await to_thread.run_sync(self._provider.shutdown)

    async def _export(self, client: Client, instance: str, request: Any) -> None:
        """Makes the spans of an instance, within that of its request.

        Those of its waits and batches are made as the sender wants them: `start_span` takes seven
        times as long, for what a span that has ended needs no more.
        """
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.trace import SpanContext, set_span_in_context

        try:
            found = await client.trace(instance)
        except ClientError as error:
            log.debug("no spans of an instance", instance=instance, reason=str(error))
            return
        within = set_span_in_context(request)
        facts = {"pie.instance": instance, "pie.program": found["program"]}
        whole: Any = self._tracer.start_span(
            f"inferlet {found['program']}", within, attributes=facts, start_time=found["begun_ns"]
        )
        parent, ids = whole.get_span_context(), self._provider.id_generator
        longest = heapq.nlargest(
            MOST_SPANS, found["spans"], key=lambda each: each["end_ns"] - each["begin_ns"]
        )
        for each in longest:
            facts = {}
            if each["track"] == "batch":
                facts = {"pie.batch.size": each["size"], "pie.batch.device_ns": each["device_ns"]}
            span = ReadableSpan(
                f"{each['track']} {each['name']}",
                SpanContext(parent.trace_id, ids.generate_span_id(), False, parent.trace_flags),
                parent,
                self._provider.resource,
                facts,
                instrumentation_scope=whole.instrumentation_scope,
                start_time=each["begin_ns"],
                end_time=each["end_ns"],
            )
            self._sender.on_end(span)
        whole.end(found["ended_ns"])


class RequestSpan:
    """The span of a request over HTTP."""

    def __init__(self, telemetry: Telemetry, span: Any) -> None:
        self._telemetry = telemetry
        self._span = span
        self._inputs = self._outputs = 0

    def generation(self, route: str, model: str, inputs: int, outputs: int) -> None:
        """A generation for it has ended, of so many tokens; OpenTelemetry's names for that."""
        self._inputs += inputs
        self._outputs += outputs
        completes = route in ("/v1/completions", "/api/generate")
        self._span.set_attributes(
            {
                "gen_ai.operation.name": "text_completion" if completes else "chat",
                "gen_ai.provider.name": "pie_py",
                "gen_ai.request.model": model,
                "gen_ai.usage.input_tokens": self._inputs,
                "gen_ai.usage.output_tokens": self._outputs,
            }
        )

    def instance_over(self, client: Client, instance: str) -> None:
        """An instance that served it has ended: it gets spans, too."""
        self._telemetry.add(client, instance, self._span)

    def end(self, route: str, status: int) -> None:
        """It has been answered, or its client has left: status 0."""
        from opentelemetry.trace import StatusCode

        self._span.update_name(f"{self._span.name} {route}")
        self._span.set_attribute("http.route", route)
        if status:
            self._span.set_attribute("http.response.status_code", status)
        if status >= 500:
            self._span.set_status(StatusCode.ERROR)
        self._span.end()
