"""Interface `http`: requests to other servers."""

from __future__ import annotations

from inferlet._bindings import Err
from inferlet._bindings import http as interface
from inferlet.errors import PieError
from inferlet.raw._convert import as_bytes, as_headers, as_text, as_u32


def http_get(url: str, headers: list[tuple[str, str]]) -> int:
    """`http_request` with GET, without a body, with the server's time-out."""
    try:
        answer: int = interface.http_get(as_text(url), as_headers(headers))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def http_post(url: str, headers: list[tuple[str, str]], body: bytes) -> int:
    """`http_request` with POST and the server's time-out."""
    try:
        answer: int = interface.http_post(as_text(url), as_headers(headers), as_bytes(body))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def http_request(
    method: str, url: str, headers: list[tuple[str, str]], body: bytes, timeout_ms: int
) -> int:
    """Starts a request (GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS) to an `http://` or `https://`
    URL. The future is ready when the answer's headers are there, whatever its status; consume it
    with `take_response`. Redirects are followed; to another origin only headers go along that are
    no secrets. `timeout_ms` bounds all from here to the last byte of the body; 0 is the server's
    time-out. Unless `headers` have an Accept-Encoding, a gzip body is unpacked on the way.
    Errors: `invalid-argument`, `permission-denied` (a host that is not allowed), `limit-exceeded`
    (size, requests under way, requests a second, open bodies).
    """
    try:
        answer: int = interface.http_request(
            as_text(method), as_text(url), as_headers(headers), as_bytes(body), as_u32(timeout_ms)
        )
    except Err as error:
        raise PieError(error.value) from None
    return answer


def take_response(future: int) -> tuple[int, list[tuple[str, str]], int]:
    """Consumes a ready future of an answer: status, headers (names in lower case), and a handle of
    the body, to be read or closed.
    Errors: `invalid-handle`, `not-ready`; `not-found` (no such host), `permission-denied` (an
    address or a redirect that is not allowed), `remote-failed` (no connection, or it broke),
    `timed-out`, `limit-exceeded` (redirects, headers).
    """
    try:
        answer: tuple[int, list[tuple[str, str]], int] = interface.take_response(as_u32(future))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def read_body(body: int, most: int) -> int:
    """A future of the next bytes of a body, as soon as there are any, at most `most` and at most
    1 MiB; none at the end. One read at a time. Consume it with `take_blob`, whose errors are
    `remote-failed`, `timed-out`, `limit-exceeded` (the body is too large).
    Errors: `invalid-handle`, `invalid-argument`, `busy`, `limit-exceeded`.
    """
    try:
        answer: int = interface.read_body(as_u32(body), as_u32(most))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def response_url(body: int) -> str:
    """The URL that answered: the one asked for, or where redirects have led to.
    Errors: `invalid-handle`.
    """
    try:
        answer: str = interface.response_url(as_u32(body))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def close_body(body: int) -> None:
    """Ends a body's handle, and the connection if not all has been read.
    Errors: `invalid-handle`.
    """
    try:
        interface.close_body(as_u32(body))
    except Err as error:
        raise PieError(error.value) from None
