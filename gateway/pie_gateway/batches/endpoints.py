"""`/v1/files` and `/v1/batches`."""

from __future__ import annotations

import time
from collections.abc import Iterable
from itertools import islice
from typing import Annotated, Any, Literal

import msgspec
from python_multipart.multipart import File
from starlette.responses import FileResponse, Response

from pie_gateway.batches.running import Batches
from pie_gateway.batches.store import Batch, StoredFile, new_id
from pie_gateway.http.admission import Exchange
from pie_gateway.http.answers import json_response
from pie_gateway.http.forms import read_form
from pie_gateway.http.reading import convert
from pie_gateway.problems import Problem, unsupported


class UploadedFile(msgspec.Struct):
    """A form with a file."""

    file: bytes
    purpose: Literal["batch"]


_Key = Annotated[str, msgspec.Meta(max_length=64)]
_Value = Annotated[str, msgspec.Meta(max_length=512)]


class BatchRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A request for a batch."""

    input_file_id: str
    endpoint: Literal["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings"]
    # Hours or days, after which what was not its turn has failed; no longer than files are kept.
    completion_window: Annotated[str, msgspec.Meta(pattern=r"^([1-9]\d?h|([1-9]|[12]\d|30)d)$")]
    metadata: Annotated[dict[_Key, _Value], msgspec.Meta(max_length=16)] | None = None


class Listing(msgspec.Struct):
    """Some files or batches, the newest first."""

    data: list[Any]
    first_id: str | None
    last_id: str | None
    has_more: bool
    object: Literal["list"] = "list"


class Page(msgspec.Struct):
    """Which ones of a list."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 100
    after: str | None = None
    purpose: str | None = None
    order: Literal["asc", "desc"] = "desc"


async def upload_file(exchange: Exchange) -> Response:
    """Keeps a file of requests, a line of JSON each, for batches."""
    form = await read_form(exchange)
    file = form.parts.get(b"file")
    if not isinstance(file, File):
        raise Problem(400, "`file` is missing from the form (multipart/form-data)", param="file")
    if form.text("purpose") != "batch":
        raise unsupported("purpose", "`batch` is the only one")
    name = (file.file_name or b"file").decode(errors="replace")
    file.file_object.seek(0)
    content, add = file.file_object.read(), _batches(exchange).store.add
    stored = await exchange.aside.run(exchange.user, add, exchange.user, name, "batch", content)
    return json_response(stored)


async def files(exchange: Exchange) -> Response:
    """The files of the user."""
    store, page = _batches(exchange).store, _page(exchange)

    def listing() -> Listing:
        newest = page.order == "desc"
        found = store.all(exchange.user, StoredFile, page.after, newest=newest)
        return _listing((each for each in found if page.purpose in (None, each.purpose)), page)

    return json_response(await exchange.aside.run(exchange.user, listing))


async def file(exchange: Exchange) -> Response:
    """The facts of a file."""
    return json_response(_file(exchange))


async def file_content(exchange: Exchange) -> Response:
    """The bytes of a file."""
    path = _batches(exchange).store.path(exchange.user, _file(exchange).id)
    return FileResponse(path, media_type="application/octet-stream")


async def delete_file(exchange: Exchange) -> Response:
    """Removes a file; a batch that runs has read it."""
    name = _file(exchange).id
    _batches(exchange).store.remove(exchange.user, name)
    return json_response({"id": name, "object": "file", "deleted": True})


async def create_batch(exchange: Exchange) -> Response:
    """Has the requests of a file answered, behind all that are asked directly."""
    asked = await exchange.read(BatchRequest)
    running, user = _batches(exchange), exchange.user
    await exchange.aside.run(user, running.store.check_room, user, 0)
    running.store.find(user, asked.input_file_id, StoredFile, "input_file_id")
    number, unit = int(asked.completion_window[:-1]), asked.completion_window[-1]
    now = int(time.time())
    batch = Batch(
        new_id("batch_"),
        asked.endpoint,
        asked.input_file_id,
        asked.completion_window,
        now,
        now + number * (3600 if unit == "h" else 86400),
        metadata=asked.metadata,
    )
    running.start(exchange.connection.app, user, batch, exchange.request.headers)
    return json_response(batch)


async def batches(exchange: Exchange) -> Response:
    """The batches of the user."""
    running, page = _batches(exchange), _page(exchange)

    def listing() -> Listing:
        found = running.store.all(exchange.user, Batch, page.after)
        return _listing((running.find(exchange.user, each.id) for each in found), page)

    return json_response(await exchange.aside.run(exchange.user, listing))


async def batch(exchange: Exchange) -> Response:
    """How far a batch is."""
    return json_response(_batches(exchange).find(exchange.user, exchange.path["name"]))


async def cancel_batch(exchange: Exchange) -> Response:
    """Gives a batch up; what has been answered stays."""
    return json_response(_batches(exchange).cancel(exchange.user, exchange.path["name"]))


def _page(exchange: Exchange) -> Page:
    given: dict[str, Any] = dict(exchange.request.query_params)
    if str(given.get("limit", "")).isdecimal():
        given["limit"] = int(given["limit"])
    page: Page = convert(given, Page)
    return page


def _listing(found: Iterable[Any], page: Page) -> Listing:
    some = list(islice(found, page.limit + 1))
    shown = some[: page.limit]
    first, last = (shown[0].id, shown[-1].id) if shown else (None, None)
    return Listing(shown, first, last, len(some) > len(shown))


def _file(exchange: Exchange) -> StoredFile:
    return _batches(exchange).store.find(exchange.user, exchange.path["name"], StoredFile)


def _batches(exchange: Exchange) -> Batches:
    found: Batches = exchange.connection.app.state.batches
    return found
