"""Settings of the traces that go to an OpenTelemetry collector."""

from __future__ import annotations

from pydantic import Field, NonNegativeInt

from pie_py.config.section import Section


class TelemetryConfig(Section):
    """Where spans of requests over HTTP go. Off without an endpoint."""

    endpoint: str | None = None  # of OTLP over HTTP, such as http://localhost:4318
    service: str = "pie_py"  # its name in the collector
    # Of requests that come without a trace of their own; those with one follow that.
    sampled: float = Field(default=1.0, ge=0, le=1)
    spans: NonNegativeInt = 16  # of one instance's waits and batches: the longest ones
