"""The contract as it is: one function each, on plain numbers and lists.

The paper's API (Pie, section 4.2). `Context` and `Generator` are built from these; use them directly
for what those do not offer. Handles are `int`; pages and embeds are passed as spans, a flat list
`[start, count, start, count, ...]`. A function that takes time returns the handle of a future: `await
inferlet.ready(future)`, then consume it with the `take` function that its documentation names.

Every function raises `PieError` for the codes that its documentation lists, and TypeError, ValueError
or OverflowError for arguments that are not of the types given.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from operator import index
from typing import Literal, TypeAlias

from inferlet._bindings import Err
from inferlet._bindings import adapter as _adapter
from inferlet._bindings import allocate as _allocate
from inferlet._bindings import forward as _forward
from inferlet._bindings import grammar as _grammar
from inferlet._bindings import http as _http
from inferlet._bindings import input_image as _input_image
from inferlet._bindings import input_text as _input_text
from inferlet._bindings import introspect as _introspect
from inferlet._bindings import mcp as _mcp
from inferlet._bindings import messaging as _messaging
from inferlet._bindings import offload as _offload
from inferlet._bindings import output_text as _output_text
from inferlet._bindings import runtime as _runtime
from inferlet._bindings import sample as _sample
from inferlet._bindings import session as _session
from inferlet._bindings import store as _store
from inferlet._bindings import tokenize as _tokenize
from inferlet.errors import PieError

LogLevel: TypeAlias = Literal["debug", "info", "warning", "error"]
Detail: TypeAlias = Literal["total", "layers", "heads"]


# A value that the generated bindings can't convert ends the instance, so each is looked at before.


def _integer(value: int, lowest: int, end: int) -> int:
    value = index(value)
    if not lowest <= value < end:
        raise ValueError(f"{value} is not within {lowest} to {end - 1}")
    return value


def _u32(value: int) -> int:
    return _integer(value, 0, 2**32)


def _u32s(values: Iterable[int]) -> list[int]:
    if isinstance(values, str | bytes):
        raise TypeError(f"a list of integers is wanted, not {type(values).__name__}")
    return array("I", values).tolist()


def _text(value: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"text is wanted, not {type(value).__name__}")
    if not value.isascii():
        value.encode()  # raises for a lone surrogate
    return value


def _texts(values: Iterable[str]) -> list[str]:
    return [_text(value) for value in values]


def _bytes(value: bytes) -> bytes:
    return bytes(memoryview(value))


def _headers(values: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(_text(first), _text(second)) for first, second in values]


def _pairs(values: Iterable[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
    return [(_text(key), _bytes(value)) for key, value in values]


# runtime


def get_arg() -> list[str]:
    """The arguments given at launch, in order."""
    answer: list[str] = _runtime.get_arg()
    return answer


def instance_id() -> str:
    """This instance's identifier, unique on the server."""
    answer: str = _runtime.instance_id()
    return answer


def user() -> str:
    """The user who launched this instance."""
    answer: str = _runtime.user()
    return answer


def version() -> str:
    """The server's version."""
    answer: str = _runtime.version()
    return answer


def available_models() -> list[str]:
    """Names of the models being served. The first one is the server's default."""
    answer: list[str] = _runtime.available_models()
    return answer


def available_traits(model: str) -> list[str]:
    """Names of the traits that a model offers.
    Errors: `unknown-model`.
    """
    try:
        answer: list[str] = _runtime.available_traits(_text(model))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def model_info(model: str) -> str:
    """Facts about a model, a JSON object so that keys can be added without breaking a component:
    `name`, `architecture`, `page_size` (tokens), `vocab_size`, `max_position` (tokens),
    `max_batch_tokens` (largest forward), `bos_token` (or null), `stop_tokens` (token ids),
    `has_chat_template`.
    Errors: `unknown-model`.
    """
    try:
        answer: str = _runtime.model_info(_text(model))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def create_queue(model: str) -> int:
    """Creates a command queue of a model. Commands of one queue take effect in order; queues are
    independent of each other.
    Errors: `unknown-model`, `limit-exceeded`.
    """
    try:
        answer: int = _runtime.create_queue(_text(model))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def destroy_queue(queue: int) -> None:
    """Destroys a queue. Commands already in it still take effect.
    Errors: `invalid-handle`.
    """
    try:
        _runtime.destroy_queue(_u32(queue))
    except Err as error:
        raise PieError(error.value) from None


def synchronize(queue: int) -> int:
    """A future that is ready when every command queued before it has taken effect. Consume it with
    `take`, which reports the first error among them that nothing has reported yet.
    Errors: `invalid-handle`, `limit-exceeded`.
    """
    try:
        answer: int = _runtime.synchronize(_u32(queue))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def set_queue_priority(queue: int, priority: int) -> None:
    """Priority of a queue, 0 unless set; higher goes first within a batch. At most 100, at least -100.
    Errors: `invalid-handle`, `invalid-argument`.
    """
    try:
        _runtime.set_queue_priority(_u32(queue), _integer(priority, -(2**31), 2**31))
    except Err as error:
        raise PieError(error.value) from None


def wait(futures: list[int]) -> list[int]:
    """Suspends the instance until at least one of the futures is ready, and returns those that are,
    in the order given. A ready future stays ready until it is taken or cancelled. An empty list
    gives every other instance a turn and returns an empty list.
    Errors: `invalid-handle`.
    """
    try:
        answer: list[int] = _runtime.wait(_u32s(futures))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def take(future: int) -> None:
    """Consumes a ready future that carries no value (`synchronize`, `sleep`, `session.writable`).
    Errors: `invalid-handle`, `not-ready`, or the error of what it stood for.
    """
    try:
        _runtime.take(_u32(future))
    except Err as error:
        raise PieError(error.value) from None


def take_text(future: int) -> str:
    """Consumes a ready future that carries text (`receive`, `launch`, `next_message`, `pull`,
    `mcp_list_tools`, `mcp_call_tool`).
    Errors: as `take`.
    """
    try:
        answer: str = _runtime.take_text(_u32(future))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def take_texts(future: int) -> list[str]:
    """Consumes a ready future that carries a list of texts (`store_list`).
    Errors: as `take`.
    """
    try:
        answer: list[str] = _runtime.take_texts(_u32(future))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def take_blob(future: int) -> bytes:
    """Consumes a ready future that carries bytes (`receive_blob`, `store_get`, `read_body`).
    Errors: as `take`.
    """
    try:
        answer: bytes = _runtime.take_blob(_u32(future))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def cancel(future: int) -> None:
    """Gives a future up, ready or not. What it stands for is undone where it can be: a message stays
    in the mailbox, a child instance is killed, a command that has not been sent yields no result.
    Errors: `invalid-handle`.
    """
    try:
        _runtime.cancel(_u32(future))
    except Err as error:
        raise PieError(error.value) from None


def now() -> int:
    """Nanoseconds since the Unix epoch."""
    answer: int = _runtime.now()
    return answer


def monotonic_now() -> int:
    """Nanoseconds of a clock that never goes back, from an arbitrary start."""
    answer: int = _runtime.monotonic_now()
    return answer


def sleep(nanoseconds: int) -> int:
    """A future that is ready after this many nanoseconds. Consume it with `take`.
    Errors: `limit-exceeded`.
    """
    try:
        answer: int = _runtime.sleep(_integer(nanoseconds, 0, 2**64))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def random_bytes(count: int) -> bytes:
    """Random bytes fit for cryptography, at most 65536.
    Errors: `invalid-argument`.
    """
    try:
        answer: bytes = _runtime.random_bytes(_u32(count))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def log(level: LogLevel, message: str) -> None:
    """Writes a line to the instance's log (`pie-py logs`). The log keeps the newest lines."""
    _runtime.log(_runtime.LogLevel[level.upper()], _text(message))


def launch(program: str, args: list[str]) -> int:
    """Starts a child instance of a program (its name or content hash), as the same user. The future
    carries its result; consume it with `take_text`. A child ends with its parent, and when its
    future is cancelled. It has no client: parent and child talk through `push`, `broadcast` etc.
    Errors: `not-found`, `limit-exceeded` (too many children, or generations of them). Of the
    future: `failed-dependency` (the child failed; the message is the child's own error text),
    `cancelled` (somebody else ended it), `limit-exceeded`, `worker-lost` or `invalid-argument` (it
    could not be started).
    """
    try:
        answer: int = _runtime.launch(_text(program), _texts(args))
    except Err as error:
        raise PieError(error.value) from None
    return answer


# session


def send(message: str) -> None:
    """Sends text to the client. The server keeps a bounded number of bytes for a client that does
    not read: over it the error is `would-block`, and `writable` tells when to try again.
    Errors: `would-block`, `limit-exceeded` (one message too large).
    """
    try:
        _session.send(_text(message))
    except Err as error:
        raise PieError(error.value) from None


def send_blob(data: bytes) -> None:
    """Sends bytes to the client. Errors: as `send`."""
    try:
        _session.send_blob(_bytes(data))
    except Err as error:
        raise PieError(error.value) from None


def writable() -> int:
    """A future that is ready when `send` has room again. Consume it with `take`.
    Errors: `limit-exceeded`.
    """
    try:
        answer: int = _session.writable()
    except Err as error:
        raise PieError(error.value) from None
    return answer


def receive() -> int:
    """A future of the client's next text. Consume it with `take_text`.
    Errors: `limit-exceeded`.
    """
    try:
        answer: int = _session.receive()
    except Err as error:
        raise PieError(error.value) from None
    return answer


def receive_blob() -> int:
    """A future of the client's next bytes. Consume it with `take_blob`.
    Errors: `limit-exceeded`.
    """
    try:
        answer: int = _session.receive_blob()
    except Err as error:
        raise PieError(error.value) from None
    return answer


# messaging


def broadcast(topic: str, message: str) -> int:
    """Sends to every current subscriber of a topic among this user's instances, this one included, and
    returns how many there are. If the box of one of them is full, nobody is sent anything and
    the error names it; `broadcast_room` tells when to try again. So no subscriber misses a message.
    Errors: `would-block`, `invalid-argument`, `limit-exceeded` (message too large).
    """
    try:
        answer: int = _messaging.broadcast(_text(topic), _text(message))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def broadcast_room(topic: str) -> int:
    """A future that is ready when the box of every subscriber has room. Consume it with `take`.
    Errors: `invalid-argument`, `limit-exceeded`.
    """
    try:
        answer: int = _messaging.broadcast_room(_text(topic))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def subscribe(topic: str) -> int:
    """Subscribes to what is broadcast from now on, and returns a handle. Two subscriptions of one
    instance each receive everything.
    Errors: `invalid-argument`, `limit-exceeded`.
    """
    try:
        answer: int = _messaging.subscribe(_text(topic))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def unsubscribe(subscription: int) -> None:
    """Ends a subscription. What it has not read is dropped; its open futures fail with `cancelled`.
    Errors: `invalid-handle`.
    """
    try:
        _messaging.unsubscribe(_u32(subscription))
    except Err as error:
        raise PieError(error.value) from None


def next_message(subscription: int) -> int:
    """A future of the subscription's next message, in the order of the broadcasts. Consume it with
    `take_text`.
    Errors: `invalid-handle`, `limit-exceeded`.
    """
    try:
        answer: int = _messaging.next_message(_u32(subscription))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def push(topic: str, message: str) -> None:
    """Appends to the user's work queue of a topic. The queue is bounded: over it the error is
    `would-block`, and `push_room` tells when to try again.
    Errors: `would-block`, `invalid-argument`, `limit-exceeded` (message too large, too many queues).
    """
    try:
        _messaging.push(_text(topic), _text(message))
    except Err as error:
        raise PieError(error.value) from None


def push_room(topic: str) -> int:
    """A future that is ready when the work queue has room. Consume it with `take`.
    Errors: `invalid-argument`, `limit-exceeded`.
    """
    try:
        answer: int = _messaging.push_room(_text(topic))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def pull(topic: str) -> int:
    """A future of a message of the work queue, the oldest that nobody else has. Each goes to exactly
    one puller; pullers are served in the order of their calls. Consume it with `take_text`.
    Errors: `invalid-argument`, `limit-exceeded`.
    """
    try:
        answer: int = _messaging.pull(_text(topic))
    except Err as error:
        raise PieError(error.value) from None
    return answer


# store


def store_get(key: str) -> int:
    """A future of a key's value, or of the error `not-found`. Consume it with `take_blob`.
    Errors: `invalid-argument`, `would-block`, `limit-exceeded`.
    """
    try:
        answer: int = _store.store_get(_text(key))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def store_set(key: str, value: bytes) -> int:
    """Gives a key a value, new or instead of its old one. Consume the future with `take`.
    Errors: `invalid-argument`, `would-block`, `limit-exceeded` (value too large; of the future:
    quota).
    """
    try:
        answer: int = _store.store_set(_text(key), _bytes(value))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def store_delete(key: str) -> int:
    """Removes a key; one that is not there is no error. Consume the future with `take`.
    Errors: `invalid-argument`, `would-block`, `limit-exceeded`.
    """
    try:
        answer: int = _store.store_delete(_text(key))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def store_list(prefix: str, after: str, limit: int) -> int:
    """A future of the keys that begin with `prefix` and come after `after`, in the order of their
    UTF-8 bytes, at most `limit` (1 to 1000) of them. An empty `after` is before every key. Consume
    it with `take_texts`.
    Errors: `invalid-argument`, `would-block`, `limit-exceeded`.
    """
    try:
        answer: int = _store.store_list(_text(prefix), _text(after), _u32(limit))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def store_room() -> int:
    """A future that is ready when operations are accepted again. Consume it with `take`.
    Errors: `limit-exceeded`.
    """
    try:
        answer: int = _store.store_room()
    except Err as error:
        raise PieError(error.value) from None
    return answer


def store_commit(
    expected: Iterable[tuple[str, bytes]],
    absent: Iterable[str],
    writes: Iterable[tuple[str, bytes]],
    deletes: Iterable[str],
) -> int:
    """Makes all changes at once, if each of the `expected` keys has just this value and none of the
    `absent` keys exists; otherwise nothing changes and the future's error is `conflict`. At most
    1000 keys in conditions, and as many in changes; none twice. Consume the future with `take`.
    Errors: `invalid-argument`, `would-block`, `limit-exceeded` (value too large, too many keys; of
    the future: quota).
    """
    try:
        answer: int = _store.store_commit(
            _pairs(expected), _texts(absent), _pairs(writes), _texts(deletes)
        )
    except Err as error:
        raise PieError(error.value) from None
    return answer


# http


def http_get(url: str, headers: list[tuple[str, str]]) -> int:
    """`http_request` with GET, without a body, with the server's time-out."""
    try:
        answer: int = _http.http_get(_text(url), _headers(headers))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def http_post(url: str, headers: list[tuple[str, str]], body: bytes) -> int:
    """`http_request` with POST and the server's time-out."""
    try:
        answer: int = _http.http_post(_text(url), _headers(headers), _bytes(body))
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
        answer: int = _http.http_request(
            _text(method), _text(url), _headers(headers), _bytes(body), _u32(timeout_ms)
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
        answer: tuple[int, list[tuple[str, str]], int] = _http.take_response(_u32(future))
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
        answer: int = _http.read_body(_u32(body), _u32(most))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def close_body(body: int) -> None:
    """Ends a body's handle, and the connection if not all has been read.
    Errors: `invalid-handle`.
    """
    try:
        _http.close_body(_u32(body))
    except Err as error:
        raise PieError(error.value) from None


# mcp


def mcp_servers() -> list[str]:
    """Names of the servers that this user may use."""
    answer: list[str] = _mcp.mcp_servers()
    return answer


def mcp_list_tools(server: str) -> int:
    """A future of a server's tools, a JSON list of `{"name", "title", "description", "input_schema",
    "output_schema"}`. Consume it with `take_text`.
    Errors: `not-found`, `limit-exceeded`; of the future: `remote-failed` (the server did not start,
    died, or refused), `timed-out`, `limit-exceeded` (the answer is too large).
    """
    try:
        answer: int = _mcp.mcp_list_tools(_text(server))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def mcp_call_tool(server: str, tool: str, arguments: str) -> int:
    """A future of a tool's answer to `arguments`, a JSON object: a JSON object with `content` (a
    list of MCP content blocks), `is_error` (the tool's own failure), and `structured` (what the
    tool's output schema describes, or null). Consume it with `take_text`.
    Errors: `not-found`, `invalid-argument`, `limit-exceeded`; of the future: as `mcp_list_tools`.
    """
    try:
        answer: int = _mcp.mcp_call_tool(_text(server), _text(tool), _text(arguments))
    except Err as error:
        raise PieError(error.value) from None
    return answer


# allocate


def alloc_kvpage(queue: int, count: int) -> int:
    """Allocates pages, all slots empty, and returns the first address of the range.
    Errors: `invalid-handle`, `invalid-argument`, `out-of-resources` (more than the model has),
    `limit-exceeded`.
    """
    try:
        answer: int = _allocate.alloc_kvpage(_u32(queue), _u32(count))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def dealloc_kvpage(queue: int, pages: list[int]) -> None:
    """Frees pages once the commands queued before have taken effect; the addresses end at once.
    Errors: `invalid-handle`.
    """
    try:
        _allocate.dealloc_kvpage(_u32(queue), _u32s(pages))
    except Err as error:
        raise PieError(error.value) from None


def export_kvpage(queue: int, pages: list[int], name: str, shared: bool) -> None:
    """Publishes pages under a name. They become immutable, and live until the export is released
    and no instance maps them. Private to the user unless `shared`.
    Errors: `invalid-handle`, `invalid-argument`, `already-exists`, `busy` (a queued command still
    writes one of them: synchronize first), `limit-exceeded`.
    """
    try:
        _allocate.export_kvpage(_u32(queue), _u32s(pages), _text(name), bool(shared))
    except Err as error:
        raise PieError(error.value) from None


def import_kvpage(queue: int, name: str) -> list[int]:
    """Maps exported pages into this instance, read-only, and returns spans of addresses.
    Errors: `invalid-handle`, `not-found`, `limit-exceeded`.
    """
    try:
        answer: list[int] = _allocate.import_kvpage(_u32(queue), _text(name))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def list_exports(queue: int) -> list[str]:
    """Names of the exports of the queue's model that this user may import.
    Errors: `invalid-handle`.
    """
    try:
        answer: list[str] = _allocate.list_exports(_u32(queue))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def release_export(queue: int, name: str) -> None:
    """Withdraws an export of this user. Pages already mapped stay.
    Errors: `invalid-handle`, `not-found`, `permission-denied`.
    """
    try:
        _allocate.release_export(_u32(queue), _text(name))
    except Err as error:
        raise PieError(error.value) from None


def copy_kvpage(
    queue: int, source_page: int, source_slot: int, target_page: int, target_slot: int, count: int
) -> None:
    """Copies `count` slots (content, position, mask) from `source-page` at `source-slot` to
    `target-page` at `target-slot`. The source slots must be filled, and no empty slot may be left
    before the target's.
    Errors: `invalid-handle`, `invalid-argument`, `page-full`, `immutable`, `limit-exceeded`.
    """
    try:
        _allocate.copy_kvpage(
            _u32(queue),
            _u32(source_page),
            _u32(source_slot),
            _u32(target_page),
            _u32(target_slot),
            _u32(count),
        )
    except Err as error:
        raise PieError(error.value) from None


def kvpage_used(queue: int, pages: list[int]) -> list[int]:
    """Number of filled (live or masked) slots of each page, as if every queued command had run.
    Errors: `invalid-handle`.
    """
    try:
        answer: list[int] = _allocate.kvpage_used(_u32(queue), _u32s(pages))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def truncate_kvpage(queue: int, pages: list[int], used: list[int]) -> None:
    """Empties the slots of pages from a number on: page `i` of the list keeps its first `used[i]`
    slots. What was queued before still reads and writes the slots as they were; what is queued
    later fills them anew. So steps that were queued ahead in vain are undone.
    Errors: `invalid-handle`, `invalid-argument` (more than are filled, lengths that disagree, a
    page twice), `immutable`.
    """
    try:
        _allocate.truncate_kvpage(_u32(queue), _u32s(pages), _u32s(used))
    except Err as error:
        raise PieError(error.value) from None


def alloc_emb(queue: int, count: int) -> int:
    """Allocates embeds and returns the first address of the range. Errors: as `alloc_kvpage`."""
    try:
        answer: int = _allocate.alloc_emb(_u32(queue), _u32(count))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def dealloc_emb(queue: int, embeds: list[int]) -> None:
    """Frees embeds once the commands queued before have taken effect; the addresses end at once.
    Errors: `invalid-handle`.
    """
    try:
        _allocate.dealloc_emb(_u32(queue), _u32s(embeds))
    except Err as error:
        raise PieError(error.value) from None


def pool_stats(queue: int) -> str:
    """State of the queue's model's pools, a JSON object: `kv_pages`, `kv_pages_free`, `embeds`,
    `embeds_free`, and this instance's `kv_pages_mine`, `embeds_mine`.
    Errors: `invalid-handle`.
    """
    try:
        answer: str = _allocate.pool_stats(_u32(queue))
    except Err as error:
        raise PieError(error.value) from None
    return answer


# forward


def forward(
    queue: int,
    input_pages: list[int],
    input_embeds: list[int],
    output_pages: list[int],
    output_embeds: list[int],
    mask: list[int],
) -> None:
    """Runs the model over the input embeds, in order.

    Each input attends to every live slot of `input-pages`, and to those inputs whose position is
    lower, or equal and not after it in the list. An explicit `mask` replaces this rule: one row
    an input, flattened as `[runs, length, length, ...]` for each row, the lengths alternating
    hidden, visible, hidden, ... over the columns: the filled slots of `input-pages` in order,
    then the inputs. A masked slot is never attended to, whatever the mask says.

    If `output-pages` is not empty, the inputs' keys and values go into its empty slots, from the
    first on. The last inputs' hidden states go into `output-embeds`, as many as it names. Pages
    may be input and output at once: the inputs see the slots filled before this call.

    Errors: `invalid-handle`, `invalid-argument`, `page-full` (too little room), `immutable`,
    `limit-exceeded` (more inputs than `max_batch_tokens`, too many queued commands).
    """
    try:
        _forward.forward(
            _u32(queue),
            _u32s(input_pages),
            _u32s(input_embeds),
            _u32s(output_pages),
            _u32s(output_embeds),
            _u32s(mask),
        )
    except Err as error:
        raise PieError(error.value) from None


def mask_kvpage(queue: int, pages: list[int], masks: list[int]) -> None:
    """Sets which filled slots of pages are masked: one word a page, bit `i` set hides slot `i`. A
    bit of an empty slot is an error.
    Errors: `invalid-handle`, `invalid-argument`, `immutable`, `limit-exceeded`.
    """
    try:
        _forward.mask_kvpage(_u32(queue), _u32s(pages), _u32s(masks))
    except Err as error:
        raise PieError(error.value) from None


# adapter


def available_adapters(model: str) -> list[str]:
    """Names of the adapters that are loaded for a model.
    Errors: `unknown-model`, `unsupported`.
    """
    try:
        answer: list[str] = _adapter.available_adapters(_text(model))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def forward_with_adapter(
    queue: int,
    adapter: str,
    input_pages: list[int],
    input_embeds: list[int],
    output_pages: list[int],
    output_embeds: list[int],
    mask: list[int],
) -> None:
    """As `forward`, through an adapter. Keys and values in the pages are those of the adapter that
    computed them. An adapter stays loaded as long as an instance that has used it is alive.
    Errors: as `forward`, and `not-found` (no such adapter), `unsupported`.
    """
    try:
        _adapter.forward_with_adapter(
            _u32(queue),
            _text(adapter),
            _u32s(input_pages),
            _u32s(input_embeds),
            _u32s(output_pages),
            _u32s(output_embeds),
            _u32s(mask),
        )
    except Err as error:
        raise PieError(error.value) from None


# introspect


def forward_with_attention(
    queue: int,
    input_pages: list[int],
    input_embeds: list[int],
    output_pages: list[int],
    output_embeds: list[int],
    mask: list[int],
    observed: int,
    detail: Detail,
    adapter: str = "",
) -> int:
    """As `forward`, and a future of what the last `observed` inputs attend to; consume it with
    `take_attention`. `detail` is how much is told: "total", averages over layers and heads; "layers", a
    row a layer; "heads", a row a head, layer by layer. An empty text as `adapter` is none.
    Errors: as `forward_with_adapter`, and `invalid-argument` (not 1 to as many as inputs are observed),
    `limit-exceeded` (an answer of over 524288 numbers), `unsupported`.
    """
    try:
        answer: int = _introspect.forward_with_attention(
            _u32(queue),
            _u32s(input_pages),
            _u32s(input_embeds),
            _u32s(output_pages),
            _u32s(output_embeds),
            _u32s(mask),
            _u32(observed),
            _introspect.Detail[detail.upper()],
            _text(adapter),
        )
    except Err as error:
        raise PieError(error.value) from None
    return answer


def take_attention(future: int) -> tuple[int, list[float]]:
    """Consumes a ready future of attention: how many rows, and their numbers, one row after the other.
    Columns are those of a mask: the filled slots of the input pages in order, then the inputs. A number
    is the sum over the observed inputs of their attention probabilities; what is hidden has 0.
    Errors: `invalid-handle`, `not-ready`, or the error of what it stood for.
    """
    try:
        answer: tuple[int, list[float]] = _introspect.take_attention(_u32(future))
    except Err as error:
        raise PieError(error.value) from None
    return answer


# offload


def swap_out(queue: int, pages: list[int]) -> None:
    """Moves pages to the server's host memory; their addresses stay. Those that are away already stay
    so. Until `swap_in`, any other use of them is `swapped-out`.
    Errors: `invalid-handle` (a page twice, too), `busy` (an export, another instance or another
    address holds a page, too), `out-of-resources` (the host pool is full), `limit-exceeded`.
    """
    try:
        _offload.swap_out(_u32(queue), _u32s(pages))
    except Err as error:
        raise PieError(error.value) from None


def swap_in(queue: int, pages: list[int]) -> None:
    """Brings pages back as they were, and discarded ones empty. Those that are in the pool stay there.
    Errors: `invalid-handle` (a page twice, too), `out-of-resources`, `limit-exceeded`.
    """
    try:
        _offload.swap_in(_u32(queue), _u32s(pages))
    except Err as error:
        raise PieError(error.value) from None


def discard(queue: int, pages: list[int]) -> None:
    """Gives up the content of pages, wherever they are, and the memory behind them. The addresses
    stay: `swap_in` puts empty pages there. Others who hold a page keep it.
    Errors: `invalid-handle` (a page twice, too).
    """
    try:
        _offload.discard(_u32(queue), _u32s(pages))
    except Err as error:
        raise PieError(error.value) from None


def kv_costs(model: str) -> str:
    """What keeping, moving and recomputing pages costs, a JSON object: `page_bytes`, `page_size`,
    `swap_out` and `swap_in` (`seconds` and `bytes_per_second`, or null), `prefill` (`tokens`,
    `seconds`, `fit`), `decode` (`sequences`, `seconds`).
    Errors: `unknown-model`, `unsupported`.
    """
    try:
        answer: str = _offload.kv_costs(_text(model))
    except Err as error:
        raise PieError(error.value) from None
    return answer


# input-text


def embed_txt(queue: int, tokens: list[int], positions: list[int], embeds: list[int]) -> None:
    """Embeds tokens at positions into embeds; the three have the same length. `positions` are spans,
    like handles: `[0, 9]` is the positions 0 to 8.
    Errors: `invalid-handle`, `invalid-argument` (a token outside the vocabulary, a position outside
    the model's context, lengths that disagree), `limit-exceeded`.
    """
    try:
        _input_text.embed_txt(_u32(queue), _u32s(tokens), _u32s(positions), _u32s(embeds))
    except Err as error:
        raise PieError(error.value) from None


# input-image


def num_embs_needed(model: str, width: int, height: int) -> int:
    """How many embeds an image of so many pixels takes.
    Errors: `unknown-model`, `unsupported` (the model reads text only), `invalid-argument` (no
    pixels, or one side more than 200 times the other), `limit-exceeded` (too many pixels).
    """
    try:
        answer: int = _input_image.num_embs_needed(_text(model), _u32(width), _u32(height))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def image_size(image: bytes) -> tuple[int, int]:
    """Width and height of an image file, a PNG or JPEG, as it is to be looked at.
    Errors: `invalid-argument` (no image).
    """
    try:
        answer: tuple[int, int] = _input_image.image_size(_bytes(image))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def embed_img(queue: int, image: bytes, positions: list[int], embeds: list[int]) -> None:
    """Embeds an image file. There are as many positions (spans, as
    of `embed_txt`) and embeds as `num_embs_needed` says. What is wrong beyond the file's header
    fails the command when it runs: `invalid-argument`, of the next `synchronize`.
    Errors: `invalid-handle`, `unsupported`, `invalid-argument`, `limit-exceeded`.
    """
    try:
        _input_image.embed_img(_u32(queue), _bytes(image), _u32s(positions), _u32s(embeds))
    except Err as error:
        raise PieError(error.value) from None


# tokenize


def tokenize(model: str, text: str) -> list[int]:
    """Token ids of a text; special tokens written in the text are recognised, none is added.
    Errors: `unknown-model`, `limit-exceeded` (text too long).
    """
    try:
        answer: list[int] = _tokenize.tokenize(_text(model), _text(text))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def detokenize(model: str, tokens: list[int]) -> str:
    """Text of token ids, special tokens included. Incomplete UTF-8 becomes U+FFFD.
    Errors: `unknown-model`, `invalid-argument`.
    """
    try:
        answer: str = _tokenize.detokenize(_text(model), _u32s(tokens))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def get_vocabs(model: str) -> list[bytes]:
    """The bytes of every token, by id. Large: ask once.
    Errors: `unknown-model`.
    """
    try:
        answer: list[bytes] = _tokenize.get_vocabs(_text(model))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def special_tokens(model: str) -> list[tuple[str, int]]:
    """Special tokens, as their texts and ids.
    Errors: `unknown-model`.
    """
    try:
        answer: list[tuple[str, int]] = _tokenize.special_tokens(_text(model))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def apply_chat_template(model: str, messages: str, add_generation_prompt: bool) -> str:
    """Renders messages, a JSON list of `{"role": ..., "content": ...}`, with the model's chat template.
    `add-generation-prompt` appends what starts the assistant's turn.
    Errors: `unknown-model`, `unsupported` (the model has no template), `invalid-argument`.
    """
    try:
        answer: str = _tokenize.apply_chat_template(
            _text(model), _text(messages), bool(add_generation_prompt)
        )
    except Err as error:
        raise PieError(error.value) from None
    return answer


# output-text


def get_next_dist(queue: int, embed: int, k: int) -> int:
    """A future of the `k` most likely next tokens after an output embed; consume it with `take_dist`.
    `k` is at least 1; more than the vocabulary means the whole vocabulary; 256 is usual.
    Errors: `invalid-handle`, `invalid-argument`, `limit-exceeded`.
    """
    try:
        answer: int = _output_text.get_next_dist(_u32(queue), _u32(embed), _u32(k))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def take_dist(future: int) -> tuple[list[int], list[float]]:
    """Consumes a ready future of a distribution: token ids, and their probabilities (of the softmax
    over the whole vocabulary, temperature 1), most likely first.
    Errors: `invalid-handle`, `not-ready`, or the error of what it stood for.
    """
    try:
        answer: tuple[list[int], list[float]] = _output_text.take_dist(_u32(future))
    except Err as error:
        raise PieError(error.value) from None
    return answer


# sample


def create_sampler(queue: int, parameters: str) -> int:
    """Makes a sampler of the queue's model. `parameters` is a JSON object; an empty text is `{}`:
    `temperature` (1; 0 takes the most likely token), `top_k` (0 is all), `top_p` (1), `min_p` (0),
    `repetition_penalty` (1), `presence_penalty` (0), `frequency_penalty` (0), `logit_bias` (token
    ids as texts to numbers; null rules a token out), `seed` (0 to 2^64 - 1; drawn by the server
    unless told), `logprobs` (0; how many of the most likely tokens `take_sample` tells besides, 256
    at most).

    Logits go through repetition, presence and frequency penalty, bias, mask, temperature, top-k,
    top-p (of what top-k has left) and min-p, in this order. The repetition penalty counts tokens
    given and generated, presence and frequency only those generated.
    Errors: `invalid-handle`, `invalid-argument`, `unsupported`, `limit-exceeded`,
    `out-of-resources`.
    """
    try:
        answer: int = _sample.create_sampler(_u32(queue), _text(parameters))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def destroy_sampler(queue: int, sampler: int) -> None:
    """Ends a sampler once the commands queued before have taken effect; its handle ends at once.
    Errors: `invalid-handle`.
    """
    try:
        _sample.destroy_sampler(_u32(queue), _u32(sampler))
    except Err as error:
        raise PieError(error.value) from None


def feed_sampler(queue: int, sampler: int, tokens: list[int], generated: bool) -> None:
    """Tells a sampler of tokens that it did not choose, for its penalties: `generated` ones, or those
    of the text that was given. Tokens that it chooses it counts by itself.
    Errors: `invalid-handle`, `invalid-argument`, `limit-exceeded`.
    """
    try:
        _sample.feed_sampler(_u32(queue), _u32(sampler), _u32s(tokens), bool(generated))
    except Err as error:
        raise PieError(error.value) from None


def sample(queue: int, embed: int, sampler: int) -> int:
    """A future of a token that follows an output embed; consume it with `take_sample`. The sampler
    moves on even if the future is cancelled.
    Errors: `invalid-handle`, `invalid-argument`, `limit-exceeded`.
    """
    try:
        answer: int = _sample.sample(_u32(queue), _u32(embed), _u32(sampler))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def sample_masked(queue: int, embed: int, sampler: int, mask: list[int]) -> int:
    """As `sample`, among the tokens that a mask allows: bit `t % 32` of word `t / 32` is token `t`.
    Errors: as `sample`.
    """
    try:
        answer: int = _sample.sample_masked(_u32(queue), _u32(embed), _u32(sampler), _u32s(mask))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def take_sample(future: int) -> tuple[int, float, list[int], list[float]]:
    """Consumes a ready future of a token: the token, its log-probability, and the most likely tokens,
    most likely first, with theirs. Log-probabilities are those of the model's own distribution, as
    in `take_dist`: before temperature, penalties, biases, masks and filters.
    Errors: `invalid-handle`, `not-ready`; `invalid-argument` (every token is ruled out); or the
    error of what it stood for.
    """
    try:
        answer: tuple[int, float, list[int], list[float]] = _sample.take_sample(_u32(future))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def embed_sampled(queue: int, sampler: int, position: int, embed: int) -> None:
    """Embeds the token that a sampler chooses last among the calls so far, at a position, whether it
    is known already or not: the next steps can be queued before this one has run. If no token could
    be chosen, this command fails, and what follows it in its queue with it.
    Errors: `invalid-handle`, `invalid-argument` (nothing was sampled yet), `limit-exceeded`.
    """
    try:
        _sample.embed_sampled(_u32(queue), _u32(sampler), _u32(position), _u32(embed))
    except Err as error:
        raise PieError(error.value) from None


# grammar


def compile_grammar(model: str, kind: str, text: str) -> int:
    """Compiles a grammar for a model's tokens; consume the future with `take_grammar`. `kind` is
    `json-schema` (white space as Python's `json` writes it, unless the schema's `x-guidance` says
    otherwise), `regex` (Rust's syntax, over the whole text), or `lark` (EBNF in Lark's syntax, with
    the rule `start`). The same text is compiled once.
    Errors: `unknown-model`, `invalid-argument`, `limit-exceeded`; of the future: `invalid-argument`
    (the grammar is wrong), `limit-exceeded` (too large or too slow), `unsupported`.
    """
    try:
        answer: int = _grammar.compile_grammar(_text(model), _text(kind), _text(text))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def take_grammar(future: int) -> int:
    """Consumes a ready future of a grammar and returns the grammar's handle.
    Errors: `invalid-handle`, `not-ready`, `limit-exceeded`, or the error of what it stood for.
    """
    try:
        answer: int = _grammar.take_grammar(_u32(future))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def release_grammar(grammar: int) -> None:
    """Ends a grammar's handle; its matchers go on. Errors: `invalid-handle`."""
    try:
        _grammar.release_grammar(_u32(grammar))
    except Err as error:
        raise PieError(error.value) from None


def create_matcher(grammar: int) -> int:
    """A matcher at a grammar's beginning. Errors: `invalid-handle`, `limit-exceeded`."""
    try:
        answer: int = _grammar.create_matcher(_u32(grammar))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def destroy_matcher(matcher: int) -> None:
    """Ends a matcher. Errors: `invalid-handle`."""
    try:
        _grammar.destroy_matcher(_u32(matcher))
    except Err as error:
        raise PieError(error.value) from None


def advance(matcher: int, tokens: list[int]) -> bool:
    """Consumes tokens, all or none of them, at most 1024; whether the text may end then.
    Errors: `invalid-handle`, `invalid-argument` (a token that is not allowed), `busy`,
    `limit-exceeded` (the grammar is too complex).
    """
    try:
        answer: bool = _grammar.advance(_u32(matcher), _u32s(tokens))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def rollback(matcher: int, count: int) -> None:
    """Takes the last `count` tokens back. Errors: `invalid-handle`, `invalid-argument`, `busy`."""
    try:
        _grammar.rollback(_u32(matcher), _u32(count))
    except Err as error:
        raise PieError(error.value) from None


def count_allowed(matcher: int, tokens: list[int]) -> int:
    """How many of the tokens, from the first on, `advance` would consume; nothing changes.
    Errors: `invalid-handle`, `invalid-argument`, `busy`.
    """
    try:
        answer: int = _grammar.count_allowed(_u32(matcher), _u32s(tokens))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def is_accepting(matcher: int) -> bool:
    """Whether the text may end here. Errors: `invalid-handle`."""
    try:
        answer: bool = _grammar.is_accepting(_u32(matcher))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def is_finished(matcher: int) -> bool:
    """Whether the text must end here, or has ended with a stop token. Errors: `invalid-handle`."""
    try:
        answer: bool = _grammar.is_finished(_u32(matcher))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def grammar_mask(matcher: int) -> list[int]:
    """The tokens allowed next: bit `t % 32` of word `t / 32` is token `t`. As `sample_masked` takes it.
    Errors: `invalid-handle`, `busy`, `limit-exceeded` (the grammar is too complex).
    """
    try:
        answer: list[int] = _grammar.grammar_mask(_u32(matcher))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def grammar_forced(matcher: int) -> list[int]:
    """The tokens that follow whatever is chosen, possibly none; they are not consumed.
    Errors: `invalid-handle`, `busy`.
    """
    try:
        answer: list[int] = _grammar.grammar_forced(_u32(matcher))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def sample_constrained(queue: int, embed: int, sampler: int, matcher: int) -> int:
    """As `sample.sample`, among the tokens that the matcher allows; the matcher then consumes the one
    chosen by itself, before the future is ready. Consume the future with `sample.take-sample`.
    Errors: as `sample.sample`, and `busy`.
    """
    try:
        answer: int = _grammar.sample_constrained(
            _u32(queue), _u32(embed), _u32(sampler), _u32(matcher)
        )
    except Err as error:
        raise PieError(error.value) from None
    return answer
