"""Responses that later ones go on from: `previous_response_id`, and `/v1/responses/ID`.

They are kept in memory, the latest ones of each user, and are gone with the gateway. The prefix
cache has what was computed of them, so that nothing is computed twice.
"""

from __future__ import annotations

import zlib
from collections import OrderedDict, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import RLock
from typing import Any

import anyio
import msgspec
from anyio import to_thread
from starlette.responses import Response

from pie_gateway.http.admission import Exchange
from pie_gateway.http.answers import EVENT_END, EVENT_STREAM
from pie_gateway.problems import Problem, unsupported, wrong
from pie_py.config.whole_files import write_whole

INCLUDED = "reasoning.encrypted_content"  # `reasoning` items have their thoughts in plain
MOST_BYTES = 64 << 20  # of all of them
BESIDE, NAME = 380, 85  # bytes that a response and a name take beside their text, about
TELL_SECONDS = 1.0
encode = msgspec.json.encode


@dataclass(frozen=True, eq=False)
class Stored:
    """A response, and the conversation up to its end."""

    answer: bytes  # JSON
    items: bytes  # JSON: what went in and what came out
    events: bytes = b""  # it was sent in, compressed
    names: tuple[str, ...] = ()  # ids of the items

    @property
    def size(self) -> int:
        """In bytes."""
        names = sum(len(name) + NAME for name in self.names)
        return len(self.answer) + len(self.items) + len(self.events) + names + BESIDE


@dataclass
class _Of:
    """A user's responses, the oldest first."""

    kept: OrderedDict[str, Stored] = field(default_factory=OrderedDict)
    by_item: dict[str, Stored] = field(default_factory=dict)  # the newest with each
    size: int = 0

    def put(self, name: str, stored: Stored) -> None:
        self.kept[name] = stored
        self.by_item.update(dict.fromkeys(stored.names, stored))
        self.size += stored.size

    def pop(self, name: str) -> None:
        stored = self.kept.pop(name)
        self.size -= stored.size
        for item in stored.names:
            if self.by_item.get(item) is stored:
                del self.by_item[item]


class Responses:
    """The latest responses of each user, for any thread. Who has most makes room."""

    def __init__(self, told: Path) -> None:
        """Keeps none yet. `told` is the file in which it says what each user has."""
        self._users: defaultdict[str, _Of] = defaultdict(_Of)
        self._lock = RLock()
        self._told = told

    def bytes_of(self) -> dict[str, int]:
        """Bytes that it keeps of each user."""
        with self._lock:
            return {user: each.size for user, each in self._users.items() if each.size}

    async def run(self) -> None:
        """Tells the control process what each user has here, until cancelled."""
        before: dict[str, int] = {}
        self._forget_told()  # of a gateway that was killed
        try:
            while True:
                if (sizes := self.bytes_of()) != before:
                    before = sizes
                    with suppress(OSError):  # a full disk: others say so
                        await to_thread.run_sync(write_whole, self._told, encode(sizes))
                await anyio.sleep(TELL_SECONDS)
        finally:
            self._forget_told()

    def _forget_told(self) -> None:
        with suppress(OSError):
            self._told.unlink()

    def keep(self, user: str, name: str, stored: Stored) -> None:
        """Keeps a response; older ones make room for it."""
        with self._lock:
            mine = self._users[user]
            if name in mine.kept:  # the client has named two requests alike
                mine.pop(name)
            mine.put(name, stored)
            while sum(each.size for each in self._users.values()) > MOST_BYTES:
                most = max(self._users.values(), key=lambda each: each.size)
                most.pop(next(iter(most.kept)))

    def find(self, user: str, name: str, param: str | None = None) -> Stored:
        """A user's response. Raises `Problem`: 404, naming `param` of the request."""
        with self._lock:
            found = self._users[user].kept.get(name)
        if found is None:
            text = (
                f"no response {name[:100]!r} is kept here: it was not stored, made room for others,"
                " or another gateway has it"
            )
            raise Problem(404, text, param=param, code="response_not_found")
        return found

    def find_items(self, user: str, places: Mapping[str, str]) -> dict[str, dict[str, Any]]:
        """Items by their names, each with its place. Raises `Problem`: 404, naming the place."""
        with self._lock:
            kept = self._users[user].by_item
            holders = {name: kept[name] for name in places if name in kept}
        for name, place in places.items():
            if name not in holders:
                text = f"no kept response has an item {name[:100]!r}"
                raise Problem(404, text, param=place, code="item_not_found")
        return {
            name: item
            for stored in set(holders.values())
            for item in msgspec.json.decode(stored.items)
            if isinstance(name := item.get("id"), str) and holders.get(name) is stored
        }

    def forget(self, user: str, name: str) -> None:
        """Forgets a user's response. Raises as `find`."""
        with self._lock:
            self.find(user, name)
            self._users[user].pop(name)


def items_before(exchange: Exchange, name: str | None) -> list[dict[str, Any]]:
    """The conversation up to the end of an earlier response. Raises `Problem`: 404."""
    if not name:
        return []
    stored = _responses(exchange).find(exchange.user, name, "previous_response_id")
    exchange.connection.state.size += len(stored.items)  # they go on as if the body had them
    found: list[dict[str, Any]] = msgspec.json.decode(stored.items)
    return found


def with_items_of_responses(
    exchange: Exchange, items: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Items, those named by ids in full. Raises `Problem`: 404; 413: more than a body may have."""
    references = (
        (at, each) for at, each in enumerate(items) if each.get("type") == "item_reference"
    )
    named = {at: each["id"] for at, each in references if isinstance(each.get("id"), str)}
    places = {name: f"input[{at}].id" for at, name in reversed(named.items())}
    found = _responses(exchange).find_items(exchange.user, places)
    sizes = {name: len(encode(item)) for name, item in found.items()}
    more = sum(sizes[name] for name in named.values())
    exchange.connection.state.size += more
    if more > exchange.config.body_bytes:
        text = f"the items that are named have more than {exchange.config.body_bytes} bytes"
        raise Problem(413, text, code="body_too_large")
    return [found[named[at]] if at in named else item for at, item in enumerate(items)]


def keep(exchange: Exchange, name: str, answer: Any, items: Sequence[Any], events: bytes) -> None:
    """Keeps a response with its conversation, and its events as `zlib` has compressed them."""
    ids = (each.get("id") if isinstance(each, dict) else each.id for each in items)
    names = tuple({each: None for each in ids if isinstance(each, str)})
    stored = Stored(encode(answer), encode(items), events, names)
    _responses(exchange).keep(exchange.user, name, stored)


async def response(exchange: Exchange) -> Response:
    """A response that is kept; with `stream=true` the events of its stream, those behind number
    `starting_after` if that is given.
    """
    query, streams = exchange.request.query_params, exchange.flag("stream")
    first = exchange.number("starting_after") + 1 if "starting_after" in query else 0
    if first and not streams:
        raise unsupported("starting_after", "it goes with `stream=true`")
    if {*query.getlist("include"), *query.getlist("include[]")} - {"", INCLUDED}:
        raise unsupported("include", f"there is {INCLUDED}")
    if exchange.flag("include_obfuscation"):
        raise unsupported("include_obfuscation", "nothing is added to hide lengths")
    name = exchange.path["response"]
    stored = _responses(exchange).find(exchange.user, name)
    if not streams:
        return Response(stored.answer, media_type="application/json")

    def told() -> Response:
        events = zlib.decompress(stored.events).split(EVENT_END)
        return Response(EVENT_END.join(events[first:]), headers={"content-type": EVENT_STREAM})

    return await exchange.aside.run(exchange.user, told)


async def input_items(exchange: Exchange) -> Response:
    """The conversation before a response that is kept, the newest item first."""
    query = exchange.request.query_params
    limit, order, after = query.get("limit", "20"), query.get("order", "desc"), query.get("after")
    if limit not in map(str, range(1, 101)):
        raise wrong("limit", "from 1 to 100 items")
    if order not in ("asc", "desc"):
        raise wrong("order", "`asc` or `desc`")
    name = exchange.path["response"]
    stored = _responses(exchange).find(exchange.user, name)
    page = partial(_page, stored, order, after, int(limit))
    return await exchange.aside.run(exchange.user, page)


def _page(stored: Stored, order: str, after: str | None, limit: int) -> Response:
    after_it = len(msgspec.json.decode(stored.answer)["output"])
    items = [_listed(item, at) for at, item in enumerate(msgspec.json.decode(stored.items))]
    items = items[: len(items) - after_it]
    if order == "desc":
        items.reverse()
    ids = [item["id"] for item in items]
    if after is not None and after not in ids:
        raise wrong("after", f"there is no item {after[:100]!r}")
    begin = 0 if after is None else ids.index(after) + 1
    page = items[begin : begin + limit]
    told = {"object": "list", "data": page, "has_more": begin + len(page) < len(items)}
    told |= {"first_id": page[0]["id"], "last_id": page[-1]["id"]} if page else {}
    return Response(encode(told), media_type="application/json")


def _listed(item: dict[str, Any], at: int) -> dict[str, Any]:
    """An item with all that OpenAI's has: a request may leave out its id and type."""
    content = item.get("content")
    if isinstance(content, str):
        kind = "output_text" if item.get("role") == "assistant" else "input_text"
        item = {**item, "content": [{"type": kind, "text": content}]}
    return {"id": f"item_{at}", "type": "message", "status": "completed", **item}


async def forget_response(exchange: Exchange) -> Response:
    """Forgets a response; those that went on from it stay."""
    name = exchange.path["response"]
    _responses(exchange).forget(exchange.user, name)
    told = {"id": name, "object": "response", "deleted": True}
    return Response(encode(told), media_type="application/json")


def _responses(exchange: Exchange) -> Responses:
    found: Responses = exchange.connection.app.state.responses
    return found
