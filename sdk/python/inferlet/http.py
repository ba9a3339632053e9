"""HTTP requests, made by the server for the inferlet.

::

    response = await http.get("https://api.example.com/items", params={"page": 2})
    response.raise_for_status()
    items = await response.json()

    async with await http.post(url, json={"stream": True}) as response:
        async for chunk in response.stream():
            ...

The server's operator says which hosts may be reached (`pie-py serve --allow-http HOST`). Requests
run at once with everything else: `asyncio.gather` many.
"""

from __future__ import annotations

import json as json_module
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, TypeAlias
from urllib.parse import urlencode

from inferlet import raw
from inferlet._generated.awaited import http_request, read_body
from inferlet.errors import PieError

HeadersLike: TypeAlias = Mapping[str, str] | Iterable[tuple[str, str]]

_NOTHING: Any = object()


class HttpError(RuntimeError):
    """A status of 400 or more, raised by `raise_for_status`."""

    def __init__(self, response: Response) -> None:
        super().__init__(f"{response.method} {response.url}: status {response.status}")
        self.response = response
        self.status = response.status


class Headers(Mapping[str, str]):
    """Headers of a response, by names in any case. What came several times is joined by commas."""

    def __init__(self, items: list[tuple[str, str]]) -> None:
        self.raw = items
        self._values: dict[str, list[str]] = {}
        for name, value in items:
            self._values.setdefault(name.lower(), []).append(value)

    def __getitem__(self, name: str) -> str:
        return ", ".join(self._values[name.lower()])

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Headers({self.raw!r})"

    def get_all(self, name: str) -> list[str]:
        """Every value of a name (`set-cookie` can't be joined)."""
        return list(self._values.get(name.lower(), ()))


class Response:
    """An answer whose headers are there; its body comes as it is read.

    Read the body or `close` it (`async with` does): an open one keeps its connection.
    """

    def __init__(
        self, method: str, url: str, status: int, headers: list[tuple[str, str]], body: int
    ) -> None:
        self.method = method
        self.url = url  # where the answer came from: redirects may have led there
        self.status = status
        self.headers = Headers(headers)
        self._body: int | None = body
        self._data: bytes | None = None
        self._begun = False

    def __repr__(self) -> str:
        return f"<Response {self.status} of {self.method} {self.url}>"

    @property
    def ok(self) -> bool:
        """True if the status is below 400."""
        return self.status < 400

    def raise_for_status(self) -> Response:
        """Raises HttpError for a status of 400 or more; returns itself otherwise."""
        if not self.ok:
            raise HttpError(self)
        return self

    async def stream(self, most: int = 65536) -> AsyncIterator[bytes]:
        """The body in pieces of at most `most` bytes, as they arrive.

        Raises:
            PieError: `remote-failed`, `timed-out`, `limit-exceeded` if it breaks off;
                `invalid-handle` if it is or was read in pieces elsewhere, or closed.
        """
        if self._data is not None:
            for start in range(0, len(self._data), most):
                yield self._data[start : start + most]
            return
        if self._body is None or self._begun:
            raise PieError("invalid-handle: the body is read elsewhere, has been read, or closed")
        self._begun = True
        try:
            while self._body is not None:
                chunk = await read_body(self._body, most)
                if not chunk:
                    break
                yield chunk
        finally:
            self.close()

    async def lines(self) -> AsyncIterator[str]:
        """The body's lines without their ends, as they arrive (event streams, JSON lines)."""
        rest = b""
        async for chunk in self.stream():
            *whole, rest = (rest + chunk).split(b"\n")
            for line in whole:
                yield line.removesuffix(b"\r").decode(errors="replace")
        if rest:
            yield rest.decode(errors="replace")

    async def read(self) -> bytes:
        """The whole body. Errors: as `stream`."""
        if self._data is None:
            self._data = b"".join([chunk async for chunk in self.stream(1 << 20)])
        return self._data

    async def text(self) -> str:
        """The whole body as text, in the encoding that its Content-Type names, or UTF-8."""
        data = await self.read()
        _, _, charset = self.headers.get("content-type", "").lower().partition("charset=")
        try:
            return data.decode(charset.split(";")[0].strip(" \"'") or "utf-8", errors="replace")
        except (LookupError, UnicodeError):  # there is none of the name, or it is of no texts
            return data.decode(errors="replace")

    async def json(self) -> Any:
        """The whole body, read as JSON. Raises ValueError if it is none."""
        return json_module.loads(await self.read())

    def close(self) -> None:
        """Gives the rest of the body up."""
        body, self._body = self._body, None
        if body is not None:
            with suppress(PieError):
                raw.close_body(body)

    async def __aenter__(self) -> Response:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        with suppress(Exception):
            self.close()


async def request(
    method: str,
    url: str,
    *,
    params: Mapping[str, Any] | None = None,
    headers: HeadersLike | None = None,
    body: bytes | str | None = None,
    json: Any = _NOTHING,
    timeout: float | None = None,
) -> Response:
    """Makes a request and returns its answer as soon as the headers are there.

    Args:
        method: GET, HEAD, POST, PUT, PATCH, DELETE or OPTIONS.
        url: `http://` or `https://`.
        params: appended to the URL as its query.
        headers: of the request.
        body: bytes, or text in UTF-8.
        json: sent as the body in JSON, instead of `body`.
        timeout: seconds for all, to the body's last byte; by default the server's time-out.

    Raises:
        PieError: `permission-denied` (a host or address that is not allowed), `not-found` (no such
            host), `remote-failed`, `timed-out`, `invalid-argument`, `limit-exceeded`.
    """
    pairs = list(headers.items() if isinstance(headers, Mapping) else headers or ())
    if json is not _NOTHING:
        if body is not None:
            raise TypeError("`body` or `json`, not both")
        body = json_module.dumps(json)
        if all(name.lower() != "content-type" for name, _ in pairs):
            pairs.append(("content-type", "application/json"))
    if params:
        url, _, _ = url.partition("#")  # a fragment is not sent
        url += ("&" if "?" in url else "?") + urlencode(params, doseq=True)
    data = body.encode() if isinstance(body, str) else body or b""
    milliseconds = 0 if timeout is None else max(1, round(timeout * 1000))
    status, received, handle = await http_request(method.upper(), url, pairs, data, milliseconds)
    return Response(method.upper(), raw.response_url(handle), status, received, handle)


async def get(url: str, **options: Any) -> Response:
    """`request` with GET."""
    return await request("GET", url, **options)


async def post(url: str, **options: Any) -> Response:
    """`request` with POST."""
    return await request("POST", url, **options)
