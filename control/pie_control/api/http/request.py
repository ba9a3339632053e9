"""Requests of programs, checked; and what a redirect makes of them."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pie_control.api.http.network import HttpPolicy
from pie_control.errors import ApiError, exceeded, invalid
from pie_py import __version__
from pie_py.config.host_rule import canonical_host

if TYPE_CHECKING:
    from httpx2 import URL

Headers = tuple[tuple[str, str], ...]

HEADER_BYTES = 32 << 10  # of the URL and headers of a request; of the headers of an answer
REQUEST_BYTES = 2 << 20  # of a body; Wasmtime lifts 2.6 MB

_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_VALUE = re.compile(r"[^\x00-\x08\x0a-\x1f\x7f]*")
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
# What the connection is made of is not the program's: another Host would get round the allow-list.
_RESERVED = {
    "connection",
    "content-length",
    "expect",
    "host",
    "http2-settings",
    "keep-alive",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
}
# All that goes along to another origin: anything else may be a secret.
_HARMLESS = {"accept", "accept-encoding", "accept-language", "content-type", "range", "user-agent"}


@dataclass(frozen=True)
class HttpRequest:
    """A request that may be sent."""

    method: str
    url: URL
    host: str  # canonical
    headers: Headers  # the program's
    body: bytes
    decode: bool  # the program leaves the encoding of the answer to us

    @property
    def port(self) -> int:
        """The port that it goes to."""
        return _port(self.url)

    def wire_headers(self) -> list[tuple[bytes, bytes]]:
        """All headers, as they are sent."""
        named = {name.lower() for name, _ in self.headers}
        host = self.url.netloc
        sent = [(b"Host", host), *((n.encode(), v.encode()) for n, v in self.headers)]
        for name, value in (
            ("Accept", "*/*"),
            ("Accept-Encoding", "gzip"),
            ("User-Agent", f"pie_py/{__version__}"),
        ):
            if name.lower() not in named:
                sent.append((name.encode(), value.encode()))
        if self.body or self.method in ("POST", "PUT", "PATCH"):
            sent.append((b"Content-Length", str(len(self.body)).encode()))
        return sent


def check_request(
    policy: HttpPolicy,
    method: str,
    url: str,
    headers: list[tuple[str, str]],
    body: bytes,
) -> HttpRequest:
    """Checks what a program asks for.

    Raises:
        ApiError: `invalid-argument`, `limit-exceeded`, `permission-denied`.
    """
    if method not in _METHODS:
        raise invalid(f"method {method[:100]!r}; there are {', '.join(_METHODS)}")
    size = sum(len(name) + len(value) + 4 for name, value in headers) + len(url)
    if size > HEADER_BYTES:
        raise exceeded(f"URL and headers of {size} bytes; {HEADER_BYTES} at most")
    if len(body) > REQUEST_BYTES:
        raise exceeded(f"a body of {len(body)} bytes; {REQUEST_BYTES} at most")
    for name, value in headers:
        _check_header(name, value)
    parsed, host = _parse(url)
    policy.check_host(host, _port(parsed))
    decode = all(name.lower() != "accept-encoding" for name, _ in headers)
    return HttpRequest(method, parsed, host, tuple(headers), body, decode)


def redirected(request: HttpRequest, policy: HttpPolicy, status: int, location: str) -> HttpRequest:
    """The request that a redirect asks for.

    As browsers do, 303 (and 301, 302 after a POST) turns into a GET without a body. To another
    origin only headers go along that are no secrets.

    Raises:
        ApiError: `permission-denied`, or `remote-failed` if the place is none.
    """
    from httpx2 import InvalidURL

    try:
        url, host = _parse(str(request.url.join(location)))
    except (ApiError, InvalidURL, ValueError) as error:  # ValueError: of the standard library
        reason = error.message if isinstance(error, ApiError) else error
        raise ApiError("remote-failed", f"{request.host} redirects to no URL: {reason}") from None
    try:
        policy.check_host(host, _port(url))
    except ApiError as error:
        raise ApiError(error.code, f"redirected by {request.host}: {error.message}") from None
    headers = request.headers
    new = replace(request, url=url, host=host)
    if (url.scheme, host, _port(url)) != (request.url.scheme, request.host, request.port):
        headers = tuple((n, v) for n, v in headers if n.lower() in _HARMLESS)
    if (status == 303 and request.method != "HEAD") or (
        status in (301, 302) and request.method == "POST"
    ):
        headers = tuple((n, v) for n, v in headers if n.lower() != "content-type")
        return replace(new, method="GET", body=b"", headers=headers)
    return replace(new, headers=headers)


def _parse(text: str) -> tuple[URL, str]:
    """A URL that can be fetched, and its canonical host. Raises ApiError `invalid-argument`."""
    from httpx2 import URL, InvalidURL  # slow, and no start waits for it

    try:
        url = URL(text)
    except InvalidURL as error:
        raise invalid(f"{text[:200]!r} is no URL: {error}") from None
    if url.scheme not in ("http", "https"):
        raise invalid(f"{text[:200]!r}: a URL starts with http:// or https://")
    if url.userinfo:
        raise invalid("a URL with a user or password in it; put them into an Authorization header")
    try:
        host = canonical_host(url.raw_host.decode("ascii"))
    except ValueError as error:
        raise invalid(f"{text[:200]!r}: {error}") from None
    if not 0 < _port(url) < 65536:
        raise invalid(f"{text[:200]!r}: {url.port} is no port")
    # The host that was checked is the one that is connected to, in whatever form it was written.
    return url.copy_with(host=host, fragment=None), host


def _port(url: URL) -> int:
    if url.port is not None:
        return url.port
    return 443 if url.scheme == "https" else 80


def _check_header(name: str, value: str) -> None:
    if not _TOKEN.fullmatch(name):
        raise invalid(f"{name[:100]!r} is no header's name")
    if not _VALUE.fullmatch(value) or value != value.strip():
        raise invalid(
            f"the value of header {name[:100]} has line ends, control characters or outer spaces"
        )
    if name.lower() in _RESERVED or name.lower().startswith("proxy-"):
        raise invalid(f"header {name} is set by the server")
