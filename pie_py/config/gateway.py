"""Settings of the HTTP gateway, and of the traces that it sends."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt, field_validator

from pie_py.config.endpoint import is_loopback, resolve_host
from pie_py.config.section import Section

DEFAULT_HTTP = "127.0.0.1:8000"
NO_USERS = (
    "HTTP that other machines reach wants API keys, and no user has one: `pie-py keys add USER`"
    " makes one"
)
Route = Literal["chat", "completions", "responses", "messages", "async", "embeddings"]


class GatewayConfig(Section):
    """Where HTTP is served, and how much of it."""

    enabled: bool = True  # `pie-py serve` starts it
    http: str | None = None  # HOST:PORT; the default if it is free, else another port
    tls_certificate: Path | None = None  # PEM, with its chain
    tls_key: Path | None = None  # PEM, of that certificate
    cors_origins: tuple[str, ...] = ()  # pages of these origins may call; "*" for all
    # Further names of models, as clients ask for them: of "" that of the first model.
    served_model_names: dict[str, str] = Field(default_factory=dict)
    # Programs that serve a route instead of the library's `http_answer`: names or hashes of
    # uploaded ones.
    programs: dict[Route, str] = Field(default_factory=dict)
    body_bytes: PositiveInt = 32 << 20  # of one request
    body_seconds: PositiveFloat = 30.0  # until it has arrived
    request_seconds: PositiveFloat = 3600.0  # until it has been answered
    quiet_seconds: PositiveFloat = 10.0  # of a stream, then a comment says that it is alive
    file_bytes: PositiveInt = 1 << 30  # of the disk, for one user's files and batches
    file_seconds: PositiveFloat = 30 * 86400.0  # that they are kept once they do not change
    connections: PositiveInt = 4096  # at once
    # That it serves on when it is to stop, while `/ready` refuses, so that a balancer turns away.
    drain_seconds: float = Field(default=0.0, ge=0)
    requests_per_minute: PositiveInt | None = None  # of one user
    tokens_per_minute: PositiveInt | None = None  # of one user, of prompts and answers

    @field_validator("http")
    @classmethod
    def _is_an_address(cls, http: str | None) -> str | None:
        parse_address(http or DEFAULT_HTTP)
        return http

    @property
    def is_local(self) -> bool:
        """True if only this machine reaches it."""
        host, _ = parse_address(self.http or DEFAULT_HTTP)
        return is_loopback(resolve_host(host))


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of HOST:PORT. Raises ValueError if it is not that."""
    found = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[^:/\s]+):(\d{1,5})", text)
    if found is None or int(found[2]) > 65535:
        raise ValueError(f"{text!r} is not HOST:PORT, as {DEFAULT_HTTP}")
    return found[1].strip("[]"), int(found[2])


class TelemetryConfig(Section):
    """Where spans of requests over HTTP go. Off without an endpoint."""

    endpoint: str | None = None  # of OTLP over HTTP, such as http://localhost:4318
    # Of requests that come without a trace of their own; those with one follow that.
    sampled: float = Field(default=1.0, ge=0, le=1)
