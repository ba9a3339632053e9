"""Trait `http`: requests to hosts that the operator allows."""

from __future__ import annotations

from pie_control.api.binder import implement
from pie_control.http.exchange import Head
from pie_control.instances.futures import FutureKind
from pie_control.instances.instance import Instance


def http_get(instance: Instance, url: str, headers: list[tuple[str, str]]) -> int:
    """Starts a GET and opens a future of its answer."""
    return http_request(instance, "GET", url, headers, b"", 0)


def http_post(instance: Instance, url: str, headers: list[tuple[str, str]], body: bytes) -> int:
    """Starts a POST and opens a future of its answer."""
    return http_request(instance, "POST", url, headers, body, 0)


def http_request(
    instance: Instance,
    method: str,
    url: str,
    headers: list[tuple[str, str]],
    body: bytes,
    timeout_ms: int,
) -> int:
    """Starts a request and opens a future of its answer."""
    return instance.host.http.request(instance, method, url, headers, body, timeout_ms)


def take_response(instance: Instance, future: int) -> tuple[int, list[tuple[str, str]], int]:
    """Consumes a future of an answer: status, headers, handle of the body."""
    head: Head = instance.futures.take(future, FutureKind.RESPONSE)
    return head.status, head.headers, instance.host.http.open_body(instance, head.exchange)


def read_body(instance: Instance, body: int, most: int) -> int:
    """Opens a future of the next bytes of a body."""
    return instance.host.http.read_body(instance, body, most)


def response_url(instance: Instance, body: int) -> str:
    """Where a body came from."""
    return instance.host.http.url(instance, body)


def close_body(instance: Instance, body: int) -> None:
    """Gives the rest of a body up."""
    instance.host.http.close_body(instance, body)


FUNCTIONS = implement(
    "http", http_get, http_post, http_request, take_response, read_body, response_url, close_body
)
