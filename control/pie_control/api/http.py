"""Trait `http`: requests to hosts that the operator allows."""

from __future__ import annotations

from typing import Any

from pie_control.http.exchange import Head
from pie_control.instances.futures import FutureKind
from pie_control.instances.instance import Instance
from pie_control.wasm import STRING, U8_LIST, U32, HostFunction, List, Tuple

HEADERS = List(Tuple(STRING, STRING))


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


def _function(name: str, call: Any, *params: Any, returns: Any = None) -> HostFunction:
    return HostFunction("http", name, params, returns, True, call)


FUNCTIONS: tuple[HostFunction, ...] = (
    _function("http-get", http_get, STRING, HEADERS, returns=U32),
    _function("http-post", http_post, STRING, HEADERS, U8_LIST, returns=U32),
    _function("http-request", http_request, STRING, STRING, HEADERS, U8_LIST, U32, returns=U32),
    _function("take-response", take_response, U32, returns=Tuple(U32, HEADERS, U32)),
    _function("read-body", read_body, U32, U32, returns=U32),
    _function("response-url", response_url, U32, returns=STRING),
    _function("close-body", close_body, U32),
)
