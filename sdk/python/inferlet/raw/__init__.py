# Generated from sdk/wit/inferlet.wit by `python -m codegen`; do not edit.

"""The contract as it is: one function each, on plain numbers and lists.

This is the paper's API (Pie, section 4.2). `Context` and `Generator` are built from it; call it
directly for what those do not offer. Handles are `int`. Pages and embeds are passed as spans, a
flat list `[start, count, start, count, ...]`. A function that takes time returns the handle of a
future: `await inferlet.ready(future)`, then consume it with the `take` function that its
documentation names.

Every function raises `PieError` for the codes that its documentation lists. It raises TypeError,
ValueError or OverflowError for arguments that are not of the types given.
"""

from __future__ import annotations

from collections.abc import Iterable
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
from inferlet._bindings import prefix_cache as _prefix_cache
from inferlet._bindings import runtime as _runtime
from inferlet._bindings import sample as _sample
from inferlet._bindings import session as _session
from inferlet._bindings import store as _store
from inferlet._bindings import tokenize as _tokenize
from inferlet.errors import PieError
from inferlet.raw._convert import as_bytes, as_integer, as_text, as_texts, as_u32, as_u32s

__all__ = [
    "Detail",
    "LogLevel",
    "advance",
    "advise",
    "alloc_emb",
    "alloc_kvpage",
    "apply_chat_template",
    "available_adapters",
    "available_models",
    "available_traits",
    "broadcast",
    "broadcast_room",
    "cancel",
    "close_body",
    "compile_grammar",
    "copy_emb",
    "copy_kvpage",
    "count_allowed",
    "create_matcher",
    "create_queue",
    "create_sampler",
    "dealloc_emb",
    "dealloc_kvpage",
    "destroy_matcher",
    "destroy_queue",
    "destroy_sampler",
    "detokenize",
    "discard",
    "embed_img",
    "embed_sampled",
    "embed_txt",
    "end_run",
    "expire_export",
    "export_kvpage",
    "feed_sampler",
    "forward",
    "forward_with_adapter",
    "forward_with_attention",
    "get_arg",
    "get_hidden",
    "get_next_dist",
    "get_vocabs",
    "grammar_forced",
    "grammar_mask",
    "http_get",
    "http_post",
    "http_request",
    "image_size",
    "import_kvpage",
    "insert_prefix",
    "instance_id",
    "is_accepting",
    "is_finished",
    "kv_costs",
    "kvpage_used",
    "launch",
    "list_exports",
    "log",
    "mask_kvpage",
    "match_prefix",
    "mcp_call_tool",
    "mcp_list_tools",
    "mcp_servers",
    "mix_logits",
    "model_info",
    "monotonic_now",
    "next_message",
    "next_tokens",
    "note_wait",
    "now",
    "num_embs_needed",
    "num_positions_needed",
    "pool_stats",
    "pull",
    "push",
    "push_room",
    "random_bytes",
    "read_body",
    "read_state",
    "receive",
    "receive_blob",
    "release_export",
    "release_grammar",
    "response_url",
    "retain_kvpage",
    "rollback",
    "run_progress",
    "run_text",
    "sample",
    "sample_constrained",
    "sample_masked",
    "sampler_facts",
    "send",
    "send_blob",
    "set_queue_priority",
    "shift_kvpage",
    "sleep",
    "special_tokens",
    "speculate",
    "speculate_with",
    "start_run",
    "step",
    "store_commit",
    "store_delete",
    "store_get",
    "store_list",
    "store_room",
    "store_set",
    "subscribe",
    "swap_in",
    "swap_out",
    "synchronize",
    "take",
    "take_attention",
    "take_blob",
    "take_dist",
    "take_grammar",
    "take_hidden",
    "take_response",
    "take_run_text",
    "take_sample",
    "take_text",
    "take_texts",
    "take_tokens",
    "tokenize",
    "truncate_kvpage",
    "unsubscribe",
    "user",
    "version",
    "wait",
    "writable",
    "write_state",
]


# Interface `runtime`
# Life of the instance, command queues, futures, time, randomness, logging, child instances.

# What a line of the log is: for the author of the inferlet, for its operator, about something
# odd, or about something that has failed.
LogLevel: TypeAlias = Literal["debug", "info", "warning", "error"]


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
        answer: list[str] = _runtime.available_traits(as_text(model))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def model_info(model: str) -> str:
    """Properties of a model, a JSON object so that keys can be added without breaking a component:
    `name`, `architecture`, `page_size` (tokens), `vocab_size`, `max_position` (tokens),
    `max_batch_tokens` (largest forward), `layers`, `heads` (of queries, in each layer),
    `bos_token` (or null: texts start without one), `stop_tokens` (token ids), `around` (token
    ids that the tokenizer itself puts before and behind a text), `pooling` (of embeddings:
    `last`, `mean`, or null: what the checkpoint wants is not known),
    `has_chat_template`, `chat_arguments` (what the template reads beside messages, such as
    `tools`), `chat_markers` (the added tokens that stand in the template, such as `<think>`),
    `generation_defaults` (what the checkpoint recommends of `temperature`, `top_k`, `top_p`,
    `min_p`, `repetition_penalty`, possibly none).
    Errors: `unknown-model`.
    """
    try:
        answer: str = _runtime.model_info(as_text(model))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def create_queue(model: str) -> int:
    """Creates a command queue of a model. Commands of one queue take effect in order; queues are
    independent of each other.
    Errors: `unknown-model`, `limit-exceeded`.
    """
    try:
        answer: int = _runtime.create_queue(as_text(model))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def destroy_queue(queue: int) -> None:
    """Destroys a queue. Commands already in it still take effect.
    Errors: `invalid-handle`.
    """
    try:
        _runtime.destroy_queue(as_u32(queue))
    except Err as error:
        raise PieError(error.value) from None


def synchronize(queue: int) -> int:
    """Ready when every command queued before it has taken effect; then reports the first error
    among them that nothing has reported yet.
    Gives: nothing, by `take`.
    Errors: `invalid-handle`, `limit-exceeded`.
    """
    try:
        answer: int = _runtime.synchronize(as_u32(queue))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def set_queue_priority(queue: int, priority: int) -> None:
    """Priority of a queue, 0 unless set; higher goes first within a batch. At most 100, at least
    -100.
    Errors: `invalid-handle`, `invalid-argument`.
    """
    try:
        _runtime.set_queue_priority(as_u32(queue), as_integer(priority, -(2**31), 2**31))
    except Err as error:
        raise PieError(error.value) from None


def wait(futures: Iterable[int]) -> list[int]:
    """Suspends the instance until at least one of the futures is ready, and returns those that
    are, in the order given. A ready future stays ready until it is taken or cancelled. An empty
    list gives every other instance a turn and returns an empty list.
    Errors: `invalid-handle`.
    """
    try:
        answer: list[int] = _runtime.wait(as_u32s(futures))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def take(future: int) -> None:
    """Consumes a ready future that carries no value.
    Errors: `invalid-handle`, `not-ready`, or the error of the operation.
    """
    try:
        _runtime.take(as_u32(future))
    except Err as error:
        raise PieError(error.value) from None


def take_text(future: int) -> str:
    """Consumes a ready future that carries text.
    Errors: as `take`.
    """
    try:
        answer: str = _runtime.take_text(as_u32(future))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def take_texts(future: int) -> list[str]:
    """Consumes a ready future that carries a list of texts.
    Errors: as `take`.
    """
    try:
        answer: list[str] = _runtime.take_texts(as_u32(future))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def take_blob(future: int) -> bytes:
    """Consumes a ready future that carries bytes.
    Errors: as `take`.
    """
    try:
        answer: bytes = _runtime.take_blob(as_u32(future))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def cancel(future: int) -> None:
    """Cancels a future, ready or not. Its operation is undone where possible: a message stays in
    the mailbox, a child instance is killed, a command that has not been sent yields no result.
    Errors: `invalid-handle`.
    """
    try:
        _runtime.cancel(as_u32(future))
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
    """Ready after this time.
    Gives: nothing, by `take`.
    Errors: `limit-exceeded`.
    """
    try:
        answer: int = _runtime.sleep(as_integer(nanoseconds, 0, 2**64))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def random_bytes(count: int) -> bytes:
    """Random bytes fit for cryptography, at most 65536.
    Errors: `invalid-argument`.
    """
    try:
        answer: bytes = _runtime.random_bytes(as_u32(count))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def log(level: LogLevel, message: str) -> None:
    """Writes a line to the instance's log (`pie-py logs`). The log keeps the newest lines."""
    _runtime.log(_runtime.LogLevel[level.upper()], as_text(message))


def launch(program: str, args: Iterable[str]) -> int:
    """Starts a child instance of a program (its name or content hash), as the same user. A child
    ends with its parent, and when its future is cancelled. It has no client: parent and child
    talk through `messaging`.
    Gives: the child's result, by `take_text`.
    Errors: `not-found`, `limit-exceeded` (too many children, or generations of them). Of the
    future: `failed-dependency` (the child failed; the message is the child's own error text),
    `cancelled` (it was killed), `limit-exceeded`, `worker-lost` or `invalid-argument`
    (it could not be started).
    """
    try:
        answer: int = _runtime.launch(as_text(program), as_texts(args))
    except Err as error:
        raise PieError(error.value) from None
    return answer


# Interface `session`
# Messages between the instance and the client that launched it. Text and bytes are two
# independent, ordered streams.


def send(message: str) -> None:
    """Sends text to the client. The server keeps a bounded number of bytes for a client that does
    not read (back-pressure).
    Room: after `would-block`, by `writable`.
    Errors: `would-block`, `limit-exceeded` (one message too large).
    """
    try:
        _session.send(as_text(message))
    except Err as error:
        raise PieError(error.value) from None


def send_blob(data: bytes) -> None:
    """Sends bytes to the client.
    Room: after `would-block`, by `writable`.
    Errors: as `send`.
    """
    try:
        _session.send_blob(as_bytes(data))
    except Err as error:
        raise PieError(error.value) from None


def writable() -> int:
    """Ready when `send` has room again.
    Gives: nothing, by `take`.
    Errors: `limit-exceeded`.
    """
    try:
        answer: int = _session.writable()
    except Err as error:
        raise PieError(error.value) from None
    return answer


def receive() -> int:
    """The client's next text. Cancelled, it leaves the text for the next call.
    Gives: text, by `take_text`.
    Errors: `limit-exceeded`.
    """
    try:
        answer: int = _session.receive()
    except Err as error:
        raise PieError(error.value) from None
    return answer


def receive_blob() -> int:
    """The client's next bytes. Cancelled, it leaves them for the next call.
    Gives: bytes, by `take_blob`.
    Errors: `limit-exceeded`.
    """
    try:
        answer: int = _session.receive_blob()
    except Err as error:
        raise PieError(error.value) from None
    return answer


# Interface `http`
# HTTP requests, made by the server. The operator configures the allowed hosts; addresses that are
# not public are refused unless allowed, also after redirects.


def http_get(url: str, headers: Iterable[tuple[str, str]]) -> int:
    """`http_request` with GET, without a body, with the server's time-out.
    Gives: a response, by `take_response`.
    """
    try:
        answer: int = _http.http_get(
            as_text(url), [(as_text(first), as_text(second)) for first, second in headers]
        )
    except Err as error:
        raise PieError(error.value) from None
    return answer


def http_post(url: str, headers: Iterable[tuple[str, str]], body: bytes) -> int:
    """`http_request` with POST and the server's time-out.
    Gives: a response, by `take_response`.
    """
    try:
        answer: int = _http.http_post(
            as_text(url),
            [(as_text(first), as_text(second)) for first, second in headers],
            as_bytes(body),
        )
    except Err as error:
        raise PieError(error.value) from None
    return answer


def http_request(
    method: str, url: str, headers: Iterable[tuple[str, str]], body: bytes, timeout_ms: int
) -> int:
    """Starts a request (GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS) to an `http://` or
    `https://` URL; ready when the answer's headers have arrived, whatever its status. Redirects
    are followed; a redirect to another origin drops headers that carry secrets. `timeout_ms`
    bounds the time from this call to the last byte of the body; 0 is the server's time-out.
    Unless `headers` have an Accept-Encoding, a gzip body is unpacked.
    Gives: a response, by `take_response`.
    Errors: `invalid-argument`, `permission-denied` (a host that is not allowed),
    `limit-exceeded` (size, requests under way, requests per second, open bodies).
    """
    try:
        answer: int = _http.http_request(
            as_text(method),
            as_text(url),
            [(as_text(first), as_text(second)) for first, second in headers],
            as_bytes(body),
            as_u32(timeout_ms),
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
        answer: tuple[int, list[tuple[str, str]], int] = _http.take_response(as_u32(future))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def read_body(body: int, most: int) -> int:
    """The next bytes of a body, as soon as there are any, at most `most` and at most 1 MiB; none at
    the end. One read at a time.
    Gives: bytes, by `take_blob`.
    Errors: `invalid-handle`, `invalid-argument`, `busy`, `limit-exceeded`; of the future:
    `remote-failed`, `timed-out`, `limit-exceeded` (the body is too large).
    """
    try:
        answer: int = _http.read_body(as_u32(body), as_u32(most))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def response_url(body: int) -> str:
    """The URL that answered: the requested one, or the last one of the redirects.
    Errors: `invalid-handle`.
    """
    try:
        answer: str = _http.response_url(as_u32(body))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def close_body(body: int) -> None:
    """Closes a body's handle, and the connection if the body has not been read to its end.
    Errors: `invalid-handle`.
    """
    try:
        _http.close_body(as_u32(body))
    except Err as error:
        raise PieError(error.value) from None


# Interface `mcp`
# Tools of MCP (Model Context Protocol) servers that the operator, or a client of this user,
# registered.


def mcp_servers() -> list[str]:
    """Names of the servers that this user may use."""
    answer: list[str] = _mcp.mcp_servers()
    return answer


def mcp_list_tools(server: str) -> int:
    """A server's tools, a JSON list of `{"name", "title", "description", "input_schema",
    "output_schema"}`.
    Gives: JSON, by `take_text`.
    Errors: `not-found`, `limit-exceeded`; of the future: `remote-failed` (the server did not
    start, died, or refused), `timed-out`, `limit-exceeded` (the answer is too large).
    """
    try:
        answer: int = _mcp.mcp_list_tools(as_text(server))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def mcp_call_tool(server: str, tool: str, arguments: str) -> int:
    """A tool's answer to `arguments`, a JSON object: a JSON object with `content` (a list of MCP
    content blocks), `is_error` (the tool's own failure), and `structured` (what the tool's
    output schema describes, or null).
    Gives: JSON, by `take_text`.
    Errors: `not-found`, `invalid-argument`, `limit-exceeded`; of the future: as
    `mcp_list_tools`.
    """
    try:
        answer: int = _mcp.mcp_call_tool(as_text(server), as_text(tool), as_text(arguments))
    except Err as error:
        raise PieError(error.value) from None
    return answer


# Interface `messaging`
# Messages between the instances of one user; no other user sees them. A topic is a name of 1 to
# 256 bytes. Topics with subscribers and work queues are apart, even under the same name. Messages
# are text and live in the server's memory: they are lost when it stops. A message that a future
# holds is consumed only when it is taken: a cancelled future puts it back in its old place.


def broadcast(topic: str, message: str) -> int:
    """Sends to every current subscriber of a topic among this user's instances, this one included,
    and returns how many there are. All or none: if the box of one subscriber is full, nothing
    is sent and the error names it. So no subscriber misses a message.
    Room: after `would-block`, by `broadcast_room`.
    Errors: `would-block`, `invalid-argument`, `limit-exceeded` (message too large).
    """
    try:
        answer: int = _messaging.broadcast(as_text(topic), as_text(message))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def broadcast_room(topic: str) -> int:
    """Ready when the box of every subscriber has room.
    Gives: nothing, by `take`.
    Errors: `invalid-argument`, `limit-exceeded`.
    """
    try:
        answer: int = _messaging.broadcast_room(as_text(topic))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def subscribe(topic: str) -> int:
    """Subscribes to what is broadcast from now on, and returns a handle. Two subscriptions of one
    instance each receive everything.
    Errors: `invalid-argument`, `limit-exceeded`.
    """
    try:
        answer: int = _messaging.subscribe(as_text(topic))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def unsubscribe(subscription: int) -> None:
    """Ends a subscription. What it has not read is dropped; its open futures fail with
    `cancelled`.
    Errors: `invalid-handle`.
    """
    try:
        _messaging.unsubscribe(as_u32(subscription))
    except Err as error:
        raise PieError(error.value) from None


def next_message(subscription: int) -> int:
    """The subscription's next message, in the order of the broadcasts. Cancelled, it leaves the
    message for the next call.
    Gives: text, by `take_text`.
    Errors: `invalid-handle`, `limit-exceeded`.
    """
    try:
        answer: int = _messaging.next_message(as_u32(subscription))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def push(topic: str, message: str) -> None:
    """Appends to the user's work queue of a topic, which is bounded (back-pressure).
    Room: after `would-block`, by `push_room`.
    Errors: `would-block`, `invalid-argument`, `limit-exceeded` (message too large, too many
    queues).
    """
    try:
        _messaging.push(as_text(topic), as_text(message))
    except Err as error:
        raise PieError(error.value) from None


def push_room(topic: str) -> int:
    """Ready when the work queue has room.
    Gives: nothing, by `take`.
    Errors: `invalid-argument`, `limit-exceeded`.
    """
    try:
        answer: int = _messaging.push_room(as_text(topic))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def pull(topic: str) -> int:
    """The oldest message of the work queue (FIFO); waits for one. Each message goes to exactly one
    puller; pullers are served in the order of their calls. Cancelled, it leaves the message for
    the next puller.
    Gives: text, by `take_text`.
    Errors: `invalid-argument`, `limit-exceeded`.
    """
    try:
        answer: int = _messaging.pull(as_text(topic))
    except Err as error:
        raise PieError(error.value) from None
    return answer


# Interface `store`
# Keys and values of this user that survive the instance and the server. A key is a text of 1 to
# 1024 bytes, a value is bytes; both count against the user's quota. Operations take effect in the
# order of the calls, each wholly or not at all. When the future of a change is ready, it is on
# disk; cancelled before, it may or may not take effect. An instance that has too many bytes under
# way, or read and not taken, gets `would-block`, from the call or from the future; `store_room`
# tells when to try again.


def store_get(key: str) -> int:
    """A key's value, or the error `not-found`.
    Gives: bytes, by `take_blob`.
    Room: after `would-block`, by `store_room`.
    Errors: `invalid-argument`, `would-block`, `limit-exceeded`.
    """
    try:
        answer: int = _store.store_get(as_text(key))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def store_set(key: str, value: bytes) -> int:
    """Sets a key's value, new or instead of its old one.
    Gives: nothing, by `take`.
    Room: after `would-block`, by `store_room`.
    Errors: `invalid-argument`, `would-block`, `limit-exceeded` (value too large; of the future:
    quota).
    """
    try:
        answer: int = _store.store_set(as_text(key), as_bytes(value))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def store_delete(key: str) -> int:
    """Removes a key; idempotent: a missing key is no error.
    Gives: nothing, by `take`.
    Room: after `would-block`, by `store_room`.
    Errors: `invalid-argument`, `would-block`, `limit-exceeded`.
    """
    try:
        answer: int = _store.store_delete(as_text(key))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def store_list(prefix: str, after: str, limit: int) -> int:
    """The keys that begin with `prefix` and come after `after`, in the order of their UTF-8 bytes,
    at most `limit` (1 to 1000) of them. An empty `after` is before every key.
    Gives: a list of texts, by `take_texts`.
    Room: after `would-block`, by `store_room`.
    Errors: `invalid-argument`, `would-block`, `limit-exceeded`.
    """
    try:
        answer: int = _store.store_list(as_text(prefix), as_text(after), as_u32(limit))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def store_room() -> int:
    """Ready when operations are accepted again.
    Gives: nothing, by `take`.
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
    """Makes all changes at once, if each of the `expected` keys has just this value and none of
    the `absent` keys exists; otherwise nothing changes and the future's error is `conflict`. At
    most 1000 keys in conditions, and as many in changes; none twice.
    Gives: nothing, by `take`.
    Room: after `would-block`, by `store_room`.
    Errors: `invalid-argument`, `would-block`, `limit-exceeded` (value too large, too many keys;
    of the future: quota).
    """
    try:
        answer: int = _store.store_commit(
            [(as_text(first), as_bytes(second)) for first, second in expected],
            as_texts(absent),
            [(as_text(first), as_bytes(second)) for first, second in writes],
            as_texts(deletes),
        )
    except Err as error:
        raise PieError(error.value) from None
    return answer


# Interface `allocate`
# KV pages and embeds. A page holds `page_size` slots; a slot is empty, live or masked.


def alloc_kvpage(queue: int, count: int) -> int:
    """Allocates pages, all slots empty, and returns the first address of the range. If too few are
    free the call waits, as long as pages of waiting instances can be evicted to host memory or
    other instances are about to end.
    Errors: `invalid-handle`, `invalid-argument`, `out-of-resources` (more than the model has),
    `limit-exceeded`.
    """
    try:
        answer: int = _allocate.alloc_kvpage(as_u32(queue), as_u32(count))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def dealloc_kvpage(queue: int, pages: Iterable[int]) -> None:
    """Frees pages once the commands queued before have taken effect; the addresses are invalid at
    once.
    Errors: `invalid-handle`.
    """
    try:
        _allocate.dealloc_kvpage(as_u32(queue), as_u32s(pages))
    except Err as error:
        raise PieError(error.value) from None


def export_kvpage(queue: int, pages: Iterable[int], name: str, shared: bool) -> None:
    """Publishes pages under a name. They become immutable and reference-counted: they live until
    the export is released, or ends because no instance imports it for as long as the operator
    says (`expire_export`), and no instance maps them. Private to the user unless `shared`.
    Errors: `invalid-handle`, `invalid-argument`, `already-exists`, `busy` (a queued command
    still writes one of them: synchronize first), `limit-exceeded`.
    """
    try:
        _allocate.export_kvpage(as_u32(queue), as_u32s(pages), as_text(name), bool(shared))
    except Err as error:
        raise PieError(error.value) from None


def import_kvpage(queue: int, name: str) -> list[int]:
    """Maps exported pages into this instance, read-only, and returns spans of addresses.
    Errors: `invalid-handle`, `not-found`, `limit-exceeded`.
    """
    try:
        answer: list[int] = _allocate.import_kvpage(as_u32(queue), as_text(name))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def list_exports(queue: int) -> list[str]:
    """Names of the exports of the queue's model that this user may import.
    Errors: `invalid-handle`.
    """
    try:
        answer: list[str] = _allocate.list_exports(as_u32(queue))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def release_export(queue: int, name: str) -> None:
    """Withdraws an export of this user. Pages already mapped stay.
    Errors: `invalid-handle`, `not-found`, `permission-denied`.
    """
    try:
        _allocate.release_export(as_u32(queue), as_text(name))
    except Err as error:
        raise PieError(error.value) from None


def expire_export(queue: int, name: str, nanoseconds: int) -> None:
    """Sets after how long without an import an export of this user ends, as by `release_export`.
    The time starts again now, and with each import.
    Errors: `invalid-handle`, `not-found`, `permission-denied`, `invalid-argument` (no time),
    `limit-exceeded` (longer than the operator allows).
    """
    try:
        _allocate.expire_export(as_u32(queue), as_text(name), as_integer(nanoseconds, 0, 2**64))
    except Err as error:
        raise PieError(error.value) from None


def retain_kvpage(queue: int, pages: Iterable[int], priority: int, nanoseconds: int) -> None:
    """Says what pages are worth when memory is short, beside the user's other pages: those of lower
    `priority` leave first, the prefix cache and for host memory. Pages have 0 until told; above
    it they have the priority for this time, below it until they are found by `match_prefix`.
    Other users' pages leave and stay as if nothing had been said.
    Errors: `invalid-handle`, `swapped-out`, `invalid-argument` (a priority outside -100 to 100).
    """
    try:
        _allocate.retain_kvpage(
            as_u32(queue),
            as_u32s(pages),
            as_integer(priority, -(2**31), 2**31),
            as_integer(nanoseconds, 0, 2**64),
        )
    except Err as error:
        raise PieError(error.value) from None


def copy_kvpage(
    queue: int, source_page: int, source_slot: int, target_page: int, target_slot: int, count: int
) -> None:
    """Copies `count` slots (content, position, mask) from `source_page` at `source_slot` to
    `target_page` at `target_slot`. The source slots must be filled, and no empty slot may be
    left before the target's.
    Errors: `invalid-handle`, `invalid-argument`, `page-full`, `immutable`, `limit-exceeded`.
    """
    try:
        _allocate.copy_kvpage(
            as_u32(queue),
            as_u32(source_page),
            as_u32(source_slot),
            as_u32(target_page),
            as_u32(target_slot),
            as_u32(count),
        )
    except Err as error:
        raise PieError(error.value) from None


def kvpage_used(queue: int, pages: Iterable[int]) -> list[int]:
    """Number of filled (live or masked) slots of each page, as if every queued command had run.
    Errors: `invalid-handle`.
    """
    try:
        answer: list[int] = _allocate.kvpage_used(as_u32(queue), as_u32s(pages))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def truncate_kvpage(queue: int, pages: Iterable[int], used: Iterable[int]) -> None:
    """Empties the slots of pages from a number on: page `i` of the list keeps its first `used[i]`
    slots. Commands queued before still read and write the slots as they were; later ones fill
    them again. That is how steps that were queued ahead and are not needed are undone.
    Errors: `invalid-handle`, `invalid-argument` (more than are filled, lengths that disagree, a
    page twice), `immutable`.
    """
    try:
        _allocate.truncate_kvpage(as_u32(queue), as_u32s(pages), as_u32s(used))
    except Err as error:
        raise PieError(error.value) from None


def alloc_emb(queue: int, count: int) -> int:
    """Allocates embeds and returns the first address of the range. Errors: as `alloc_kvpage`."""
    try:
        answer: int = _allocate.alloc_emb(as_u32(queue), as_u32(count))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def dealloc_emb(queue: int, embeds: Iterable[int]) -> None:
    """Frees embeds once the commands queued before have taken effect; the addresses are invalid at
    once.
    Errors: `invalid-handle`.
    """
    try:
        _allocate.dealloc_emb(as_u32(queue), as_u32s(embeds))
    except Err as error:
        raise PieError(error.value) from None


def copy_emb(
    queue: int, sources: Iterable[int], targets: Iterable[int], positions: Iterable[int]
) -> None:
    """Copies embeds, each of `sources` to the one of `targets` at the same index, when the command
    runs. A source may occur several times. `positions` (spans, as of `embed_txt`) are those of
    the targets; if empty, each target gets its source's. All sources are read before a target
    is written.
    Errors: `invalid-handle`, `invalid-argument` (lengths that disagree, a source that nothing
    was written to, a target twice, a position outside the model's context), `limit-exceeded`
    (more than `max_batch_tokens`, too many queued commands).
    """
    try:
        _allocate.copy_emb(as_u32(queue), as_u32s(sources), as_u32s(targets), as_u32s(positions))
    except Err as error:
        raise PieError(error.value) from None


def pool_stats(queue: int) -> str:
    """State of the queue's model's pools, a JSON object: `kv_pages`, `kv_pages_free` (of these
    `kv_pages_cached` hold prefixes that are found until the pages are needed),
    `host_pages` and `host_pages_free` (for swapped pages), `embeds`, `embeds_free`, and this
    instance's `kv_pages_mine`, `host_pages_mine`, `embeds_mine`.
    Errors: `invalid-handle`.
    """
    try:
        answer: str = _allocate.pool_stats(as_u32(queue))
    except Err as error:
        raise PieError(error.value) from None
    return answer


# Interface `forward`
# The transformer's forward pass.


def forward(
    queue: int,
    input_pages: Iterable[int],
    input_embeds: Iterable[int],
    output_pages: Iterable[int],
    output_embeds: Iterable[int],
    mask: Iterable[int],
) -> None:
    """Runs the model over the input embeds, in order.

    Each input attends to every live slot of `input_pages`, and to those inputs whose position
    is lower, or equal and not after it in the list. An explicit `mask` replaces this rule: one
    row per input, flattened as `[runs, length, length, ...]` for each row, the lengths
    alternating hidden, visible, hidden, ... over the columns: the filled slots of `input_pages`
    in order, then the inputs. A masked slot is never attended to, whatever the mask says.

    If `output_pages` is not empty, the inputs' keys and values go into its empty slots, from
    the first on. The last inputs' hidden states go into `output_embeds`, as many as it names.
    Pages may be input and output at once: the inputs see the slots filled before this call.

    Errors: `invalid-handle`, `invalid-argument`, `page-full` (too little room), `immutable`,
    `limit-exceeded` (more inputs than `max_batch_tokens`, or more than 512 by default that can
    only run at once, such as those of a forward without output pages; a mask of over 262144
    numbers or 2^28 cells; too many queued commands), `unsupported` (a sampler's `attend` program
    is told of it, and it has a mask, no output pages, or positions that fall).
    """
    try:
        _forward.forward(
            as_u32(queue),
            as_u32s(input_pages),
            as_u32s(input_embeds),
            as_u32s(output_pages),
            as_u32s(output_embeds),
            as_u32s(mask),
        )
    except Err as error:
        raise PieError(error.value) from None


def mask_kvpage(queue: int, pages: Iterable[int], masks: Iterable[int]) -> None:
    """Sets which filled slots of pages are masked: one word per page, bit `i` set hides slot `i`.
    A bit of an empty slot is an error.
    Errors: `invalid-handle`, `invalid-argument`, `immutable`, `limit-exceeded`.
    """
    try:
        _forward.mask_kvpage(as_u32(queue), as_u32s(pages), as_u32s(masks))
    except Err as error:
        raise PieError(error.value) from None


def shift_kvpage(queue: int, pages: Iterable[int], distance: int) -> None:
    """Gives all that is in pages other positions, `distance` further on: keys are turned to them,
    so that later inputs see them there. What the tokens have seen stays as it was; positions
    need not be those of a context any more, as a gap is closed after pages were left out.
    Errors: `invalid-handle`, `invalid-argument` (further than the model's context), `immutable`,
    `swapped-out`, `limit-exceeded`; `unsupported`: a key is a latent, or a layer has a state.
    """
    try:
        _forward.shift_kvpage(as_u32(queue), as_u32s(pages), as_integer(distance, -(2**31), 2**31))
    except Err as error:
        raise PieError(error.value) from None


# Interface `adapter`
# Forward passes through a LoRA adapter: low-rank changes to the model's weights. The operator
# loads adapters; commands with different adapters, and without any, run in one batch.


def available_adapters(model: str) -> list[str]:
    """Names of the adapters that are loaded for a model.
    Errors: `unknown-model`, `unsupported`.
    """
    try:
        answer: list[str] = _adapter.available_adapters(as_text(model))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def forward_with_adapter(
    queue: int,
    adapter: str,
    input_pages: Iterable[int],
    input_embeds: Iterable[int],
    output_pages: Iterable[int],
    output_embeds: Iterable[int],
    mask: Iterable[int],
) -> None:
    """As `forward`, through an adapter. Keys and values in the pages are those of the
    adapter that computed them. An adapter stays loaded as long as an instance that has used it
    is alive.
    Errors: as `forward`, and `not-found` (no such adapter), `unsupported`.
    """
    try:
        _adapter.forward_with_adapter(
            as_u32(queue),
            as_text(adapter),
            as_u32s(input_pages),
            as_u32s(input_embeds),
            as_u32s(output_pages),
            as_u32s(output_embeds),
            as_u32s(mask),
        )
    except Err as error:
        raise PieError(error.value) from None


# Interface `introspect`
# Attention weights of inputs, which show the tokens that matter and those that can be dropped.

# The rows of the answer: one row (the average over layers and heads), one row per layer (the
# average over its heads), or one row per head, layer by layer.
Detail: TypeAlias = Literal["total", "layers", "heads"]


def forward_with_attention(
    queue: int,
    input_pages: Iterable[int],
    input_embeds: Iterable[int],
    output_pages: Iterable[int],
    output_embeds: Iterable[int],
    mask: Iterable[int],
    observed: int,
    detail: Detail,
    adapter: str,
) -> int:
    """As `forward`, and what the last `observed` inputs attend to. An empty `adapter` means
    none.
    Gives: attention, by `take_attention`.
    Errors: as `forward_with_adapter`, and `invalid-argument` (not 1 to as many as inputs are
    observed), `limit-exceeded` (an answer of over 524288 numbers, inputs times columns
    over 2^28), `unsupported`.
    """
    try:
        answer: int = _introspect.forward_with_attention(
            as_u32(queue),
            as_u32s(input_pages),
            as_u32s(input_embeds),
            as_u32s(output_pages),
            as_u32s(output_embeds),
            as_u32s(mask),
            as_u32(observed),
            _introspect.Detail[detail.upper()],
            as_text(adapter),
        )
    except Err as error:
        raise PieError(error.value) from None
    return answer


def take_attention(future: int) -> tuple[int, list[float]]:
    """Consumes a ready future of attention: how many rows, and their numbers, one row after the
    other. Columns are those of a mask: the filled slots of the input pages in order, then the
    inputs. A number is the sum over the observed inputs of their attention probabilities (of a
    softmax in float32, so each input adds 1 to a row, or 0 if it sees nothing); what is hidden
    has 0.
    Fields of `attention`: `rows`, `numbers`.
    Errors: `invalid-handle`, `not-ready`, or the error of the operation.
    """
    try:
        answer: tuple[int, list[float]] = _introspect.take_attention(as_u32(future))
    except Err as error:
        raise PieError(error.value) from None
    return answer


# Interface `offload`
# Swaps KV pages to host memory and back, or discards them, while their addresses stay valid.
#
# A swapped-out page can be freed, asked for its fill count, swapped in and discarded; any other
# use of it is the error `swapped-out`. It takes no page of the pool. Swaps are commands: they
# take effect in the order of their queue, and `synchronize` tells when.


def swap_out(queue: int, pages: Iterable[int]) -> None:
    """Moves pages to the server's host memory. Idempotent: pages that are swapped out stay so.
    Errors: `invalid-handle` (also for a page twice), `busy` (a page is shared: an export,
    another instance or another address references it), `out-of-resources` (host memory is
    full), `limit-exceeded`.
    """
    try:
        _offload.swap_out(as_u32(queue), as_u32s(pages))
    except Err as error:
        raise PieError(error.value) from None


def swap_in(queue: int, pages: Iterable[int]) -> None:
    """Brings pages back as they were, and discarded ones empty. Pages in the pool stay there. As
    with `alloc_kvpage`, instances launched later are ended if too few pages are free.
    Errors: `invalid-handle` (also for a page twice), `out-of-resources`, `limit-exceeded`.
    """
    try:
        _offload.swap_in(as_u32(queue), as_u32s(pages))
    except Err as error:
        raise PieError(error.value) from None


def discard(queue: int, pages: Iterable[int]) -> None:
    """Drops this instance's reference to the content of pages, wherever they are. The addresses
    stay valid: `swap_in` puts empty pages there. Other references to a page keep its content.
    Errors: `invalid-handle` (also for a page twice).
    """
    try:
        _offload.discard(as_u32(queue), as_u32s(pages))
    except Err as error:
        raise PieError(error.value) from None


def kv_costs(model: str) -> str:
    """The costs of keeping, swapping and recomputing pages, measured at the model's start, a JSON
    object: `page_bytes`, `page_size` (tokens), `swap_out` and `swap_in` (null without host
    memory, else `seconds`, the fixed part, and `bytes_per_second`), `prefill` (`seconds` of one
    forward of `tokens`, and `fit`, the `[c, a, b]` of `c + a n + b n^2` seconds), `decode`
    (`seconds` of one step of `sequences`), `out_beside_kernels` (whether a GPU goes on while
    pages leave). The server's policies go on from there by what it measures later.
    Errors: `unknown-model`, `unsupported`.
    """
    try:
        answer: str = _offload.kv_costs(as_text(model))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def advise(queue: int, pages: Iterable[int], wait: str) -> str:
    """Advises what to do with pages while the program waits for a tool, by a policy of the server
    (InferCept). It changes nothing. `wait` is a JSON object with optional keys: `tool`, a name
    of the program's own; `policy`, one of `preserve`, `discard`, `swap`, `min-waste`,
    `cheapest`, or the operator's; `elapsed_ns` of the wait; `expected_ns`, its expected total
    duration, if known; `can_discard`, false if the program cannot recompute the tokens. The
    answer is a JSON object: `choice`, one of `preserve`, `discard`, `swap`; `pages`, how many
    to swap out now; `seconds`, after which to ask again; `remaining`, the expected seconds left
    (from `expected_ns`, else from earlier waits of this user); `chunk`, the tokens to compute
    at once after a discard; `restore`, the seconds until the context is back after this choice.
    Errors: `invalid-handle` (also for a page twice), `invalid-argument`, `unsupported`.
    """
    try:
        answer: str = _offload.advise(as_u32(queue), as_u32s(pages), as_text(wait))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def note_wait(tool: str, nanoseconds: int) -> None:
    """Reports the duration of a finished wait for a tool, for `advise` to this and other instances
    of the user.
    Errors: `limit-exceeded` (the name is too long).
    """
    try:
        _offload.note_wait(as_text(tool), as_integer(nanoseconds, 0, 2**64))
    except Err as error:
        raise PieError(error.value) from None


# Interface `prefix-cache`
# The prefix cache: shared prefixes, found by their tokens. Each user has a cache of their own,
# unless the operator shares one among all users.
#
# The server tracks the provenance of this instance's pages from its first `match_prefix` of a
# model on. A page can enter the cache if it holds text: tokens of `embed_txt` and `embed_sampled`
# at the positions 0, 1, ..., each run by a `forward` (or all by one adapter) without a mask,
# whose input pages were those of all tokens before it, in order. An embed counts if it was the
# newest that the instance wrote, on the queue of the forward.


def match_prefix(queue: int, adapter: str, tokens: Iterable[int]) -> tuple[list[int], int]:
    """Maps the cached pages of the longest prefix of `tokens`, full pages only, and returns spans
    of them, and 0. They are immutable; `adapter` is that of the forwards that filled them, an
    empty text means none. If queued commands of any instance are computing more of these
    tokens, there are no spans, but a future that is ready when they have run or failed: `take`
    it, and call again.
    Errors: `invalid-handle`, `unsupported`, `not-found` (no such adapter), `limit-exceeded`.
    """
    try:
        answer: tuple[list[int], int] = _prefix_cache.match_prefix(
            as_u32(queue), as_text(adapter), as_u32s(tokens)
        )
    except Err as error:
        raise PieError(error.value) from None
    return answer


def insert_prefix(queue: int, pages: Iterable[int]) -> int:
    """Inserts the first pages of a text, in order. Pages that are full, or will be once the queued
    commands have run, become immutable and are found from then on; returns how many, 0 if the
    server does not know what the pages hold. The cache keeps unreferenced pages until their
    memory is needed, and evicts the least recently used first (LRU).
    Errors: `invalid-handle`, `swapped-out`.
    """
    try:
        answer: int = _prefix_cache.insert_prefix(as_u32(queue), as_u32s(pages))
    except Err as error:
        raise PieError(error.value) from None
    return answer


# Interface `input-text`
# Text into embeds.


def embed_txt(
    queue: int, tokens: Iterable[int], positions: Iterable[int], embeds: Iterable[int]
) -> None:
    """Embeds tokens at positions into embeds; the three have the same length. `positions` are
    spans, like handles: `[0, 9]` is the positions 0 to 8.
    Errors: `invalid-handle`, `invalid-argument` (a token outside the vocabulary, a position
    outside the model's context, lengths that disagree), `limit-exceeded`.
    """
    try:
        _input_text.embed_txt(as_u32(queue), as_u32s(tokens), as_u32s(positions), as_u32s(embeds))
    except Err as error:
        raise PieError(error.value) from None


# Interface `input-image`
# Images into embeds, which are inputs like those of text. The model's chat format determines the
# tokens around them.


def num_embs_needed(model: str, width: int, height: int) -> int:
    """The number of embeds that an image of this size in pixels takes.
    Errors: `unknown-model`, `unsupported` (the model reads text only), `invalid-argument` (no
    pixels, or one side more than 200 times the other), `limit-exceeded` (too many pixels).
    """
    try:
        answer: int = _input_image.num_embs_needed(as_text(model), as_u32(width), as_u32(height))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def num_positions_needed(model: str, width: int, height: int) -> int:
    """The number of positions that an image of this size in pixels takes: what follows it stands so
    much further on. They are fewer than its embeds where a model sees rows and columns (Qwen 3
    VL): as many as the longer of the two has embeds.
    Errors: as `num_embs_needed`.
    """
    try:
        answer: int = _input_image.num_positions_needed(
            as_text(model), as_u32(width), as_u32(height)
        )
    except Err as error:
        raise PieError(error.value) from None
    return answer


def image_size(image: bytes) -> tuple[int, int]:
    """Width and height of an image file as displayed (Exif orientation applied).
    Errors: `invalid-argument` (no image).
    """
    try:
        answer: tuple[int, int] = _input_image.image_size(as_bytes(image))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def embed_img(queue: int, image: bytes, positions: Iterable[int], embeds: Iterable[int]) -> None:
    """Embeds an image file. There are as many embeds as `num_embs_needed` says, row by row, and as
    many positions (spans, as of `embed_txt`) as `num_positions_needed` says. Where these are
    fewer, they follow one another, and all embeds stand at the first of them: their rows and
    columns are the embeds' own. An error beyond the file's header fails the command when it
    runs: the next `synchronize` is `invalid-argument`.
    Errors: `invalid-handle`, `unsupported`, `invalid-argument`, `limit-exceeded`.
    """
    try:
        _input_image.embed_img(as_u32(queue), as_bytes(image), as_u32s(positions), as_u32s(embeds))
    except Err as error:
        raise PieError(error.value) from None


# Interface `tokenize`
# Text to tokens and back.


def tokenize(model: str, text: str) -> list[int]:
    """Token ids of a text; special tokens written in the text are recognised, none is added.
    Errors: `unknown-model`, `limit-exceeded` (text too long).
    """
    try:
        answer: list[int] = _tokenize.tokenize(as_text(model), as_text(text))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def detokenize(model: str, tokens: Iterable[int]) -> str:
    """Text of token ids, special tokens included. Incomplete UTF-8 becomes U+FFFD.
    Errors: `unknown-model`, `invalid-argument`.
    """
    try:
        answer: str = _tokenize.detokenize(as_text(model), as_u32s(tokens))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def get_vocabs(model: str) -> list[bytes]:
    """The bytes of every token, by id. Large: ask once.
    Errors: `unknown-model`.
    """
    try:
        answer: list[bytes] = _tokenize.get_vocabs(as_text(model))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def special_tokens(model: str) -> list[tuple[str, int]]:
    """Special tokens, as their texts and ids.
    Errors: `unknown-model`.
    """
    try:
        answer: list[tuple[str, int]] = _tokenize.special_tokens(as_text(model))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def apply_chat_template(model: str, messages: str, add_generation_prompt: bool) -> str:
    """Renders messages, a JSON list of `{"role": ..., "content": ...}`, with the model's chat
    template, as `transformers` does. An object instead of the list has the template's arguments:
    `messages`, and `tools`, `documents`, `enable_thinking` or what else it takes; there,
    `chat_template` names one of several templates. `add_generation_prompt` appends what starts
    the assistant's turn. Control tokens in messages of users and tools are mere text, kept apart
    by code points that `tokenize` drops, unless the object has `control_tokens`, true.
    Errors: `unknown-model`, `unsupported` (the model has no template, or a broken one),
    `invalid-argument` (the template refuses the messages), `limit-exceeded` (it takes too long).
    """
    try:
        answer: str = _tokenize.apply_chat_template(
            as_text(model), as_text(messages), bool(add_generation_prompt)
        )
    except Err as error:
        raise PieError(error.value) from None
    return answer


# Interface `output-text`
# Output embeds into distributions over tokens, or into numbers.


def get_next_dist(queue: int, embed: int, k: int) -> int:
    """The `k` most likely next tokens after an output embed. `k` is at least 1; more than the
    vocabulary means the whole vocabulary; 256 is usual.
    Gives: a distribution, by `take_dist`.
    Errors: `invalid-handle`, `invalid-argument`, `limit-exceeded`.
    """
    try:
        answer: int = _output_text.get_next_dist(as_u32(queue), as_u32(embed), as_u32(k))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def take_dist(future: int) -> tuple[list[int], list[float]]:
    """Consumes a ready future of a distribution: token ids, and their probabilities (of the
    softmax over the whole vocabulary, temperature 1), most likely first.
    Fields of `distribution`: `tokens`, `probabilities`.
    Errors: `invalid-handle`, `not-ready`, or the error of the operation.
    """
    try:
        answer: tuple[list[int], list[float]] = _output_text.take_dist(as_u32(future))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def get_hidden(queue: int, embeds: Iterable[int]) -> int:
    """The mean of the hidden states in embeds (spans), of one embed its own. Those that a forward
    has written are after the model's final norm.
    Gives: numbers, by `take_hidden`.
    Errors: `invalid-handle`, `invalid-argument` (no embed, or one that holds nothing yet),
    `limit-exceeded` (more embeds than `max_batch_tokens`, too many queued commands).
    """
    try:
        answer: int = _output_text.get_hidden(as_u32(queue), as_u32s(embeds))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def take_hidden(future: int) -> list[float]:
    """Consumes a ready future of a hidden state: its numbers.
    Errors: `invalid-handle`, `not-ready`, or the error of the operation.
    """
    try:
        answer: list[float] = _output_text.take_hidden(as_u32(future))
    except Err as error:
        raise PieError(error.value) from None
    return answer


# Interface `sample`
# Output embeds into tokens, chosen where the model runs.
#
# A sampler keeps the state of one text: parameters, a seed, the number of tokens chosen, the
# counts of tokens, and the last one. A choice depends only on those, the distribution and the
# mask: the same seed gives the same tokens, whatever else the server does. (A different batch may
# round the distribution differently in the last bit.)


def create_sampler(queue: int, parameters: str) -> int:
    """Makes a sampler of the queue's model. `parameters` is a JSON object; an empty text is `{}`:
    `seed` (0 to 2^64 - 1; random by default), `logprobs` (0; the number of most likely tokens
    that `take_sample` also reports, 256 at most), and *fields*, such as `temperature` and
    `top_p`, which say what the logits go through behind the mask of `sample_masked` or
    `grammar`: docs/device-programs.md has all of them, in the order of their steps.

    In the place of fields there may be a *device program*: `program` is its name in the library,
    or a list of texts in its language, its own first, each with a file's name and the number of
    its first line; `constants` an object of values that the texts name, and `given` one of
    values for its state. The guest waits while texts are read that the server has not seen.

    Beside all of that, `attend` is a device program of the stage of this name, an object of
    `program`, `constants` and `given`: it chooses, layer by layer, what the forwards of `step`
    and of runs of this sampler read of their context. It is `unsupported` by models without keys
    or weights of heads. One that takes weights is also told those of its prompt: of the forwards
    of this queue from here up to the sampler's first choice, which read all that they may.
    Errors: `invalid-handle`, `invalid-argument`, `unsupported`, `limit-exceeded`,
    `out-of-resources`.
    """
    try:
        answer: int = _sample.create_sampler(as_u32(queue), as_text(parameters))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def sampler_facts(queue: int, sampler: int) -> str:
    """What a sampler's device programs need, a JSON object: `looks_back` (to be told by
    `feed_sampler` of tokens that it did not choose), `counts` (how often each occurs),
    `has_state` (that changes from token to token), `beside` (how many calls of `mix_logits`
    before a choice), `window` (how many of the prompt's last inputs `attend` takes the weights
    of: 0 for all, null for none).
    Errors: `invalid-handle`.
    """
    try:
        answer: str = _sample.sampler_facts(as_u32(queue), as_u32(sampler))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def destroy_sampler(queue: int, sampler: int) -> None:
    """Ends a sampler once the commands queued before have taken effect; its handle is invalid at
    once.
    Errors: `invalid-handle`.
    """
    try:
        _sample.destroy_sampler(as_u32(queue), as_u32(sampler))
    except Err as error:
        raise PieError(error.value) from None


def feed_sampler(queue: int, sampler: int, tokens: Iterable[int], generated: bool) -> None:
    """Tells a sampler of tokens that it did not choose, for programs that look back: `generated`
    ones, or those of the prompt. It knows the tokens that it chooses by itself.
    Errors: `invalid-handle`, `invalid-argument`, `limit-exceeded`.
    """
    try:
        _sample.feed_sampler(as_u32(queue), as_u32(sampler), as_u32s(tokens), bool(generated))
    except Err as error:
        raise PieError(error.value) from None


def read_state(queue: int, sampler: int) -> int:
    """Asks for the state of a sampler that is a device program, after the choices queued before:
    a JSON object that has, of each name that changes, a number, a boolean, or lists of them;
    null is a number that JSON has not.
    Gives: a JSON object, by `take_text`.
    Errors: `invalid-handle`, `invalid-argument` (no device program), `limit-exceeded`.
    """
    try:
        answer: int = _sample.read_state(as_u32(queue), as_u32(sampler))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def write_state(queue: int, sampler: int, state: str) -> None:
    """Gives names of a sampler that is a device program other values, from the next choice queued
    on: a JSON object with values as `create_sampler` takes them. What changes goes on from
    there, what does not has the value until it is given another.
    Errors: `invalid-handle`, `invalid-argument` (no device program, no such name, a value of
    another kind or size), `limit-exceeded`.
    """
    try:
        _sample.write_state(as_u32(queue), as_u32(sampler), as_text(state))
    except Err as error:
        raise PieError(error.value) from None


def mix_logits(queue: int, embed: int, sampler_queue: int, sampler: int) -> None:
    """Gives the next choice of a device program the logits after an embed, for it to read: of this
    model or another one with as many tokens. Called before a choice for each context beside that
    the program reads, in their order; a run can't have any.
    Errors: `invalid-handle`, `invalid-argument` (it reads no more, or models of different
    size), `limit-exceeded`, `out-of-resources`.
    """
    try:
        _sample.mix_logits(as_u32(queue), as_u32(embed), as_u32(sampler_queue), as_u32(sampler))
    except Err as error:
        raise PieError(error.value) from None


def sample(queue: int, embed: int, sampler: int) -> int:
    """Chooses a token that follows an output embed. The sampler moves on even if the future is
    cancelled.
    Gives: a token, by `take_sample`.
    Errors: `invalid-handle`, `invalid-argument`, `limit-exceeded`.
    """
    try:
        answer: int = _sample.sample(as_u32(queue), as_u32(embed), as_u32(sampler))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def sample_masked(queue: int, embed: int, sampler: int, mask: Iterable[int]) -> int:
    """As `sample`, among the tokens that a mask allows: bit `t % 32` of word `t / 32` is token
    `t`.
    Gives: a token, by `take_sample`.
    Errors: as `sample`.
    """
    try:
        answer: int = _sample.sample_masked(
            as_u32(queue), as_u32(embed), as_u32(sampler), as_u32s(mask)
        )
    except Err as error:
        raise PieError(error.value) from None
    return answer


def take_sample(future: int) -> tuple[int, float, list[int], list[float]]:
    """Consumes a ready future of a token: the token, its log-probability, and the most likely
    tokens, most likely first, with theirs. Log-probabilities are those of the model's own
    distribution, as in `take_dist`: before masks, and before what the sampler does.
    Fields of `sampled`: `token`, `logprob`, `top_tokens`, `top_logprobs`.
    Errors: `invalid-handle`, `not-ready`; `invalid-argument` (every token is ruled out); or the
    error of the operation.
    """
    try:
        answer: tuple[int, float, list[int], list[float]] = _sample.take_sample(as_u32(future))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def embed_sampled(queue: int, sampler: int, position: int, embed: int) -> None:
    """Embeds the token of the sampler's latest `sample` call, at a position, whether or not it is
    known already: the next steps can be queued before this one has run. If no token could be
    chosen, this command fails, and the commands behind it in its queue with it.
    Errors: `invalid-handle`, `invalid-argument` (nothing was sampled yet), `limit-exceeded`.
    """
    try:
        _sample.embed_sampled(as_u32(queue), as_u32(sampler), as_u32(position), as_u32(embed))
    except Err as error:
        raise PieError(error.value) from None


def step(
    queue: int,
    sampler: int,
    position: int,
    embed: int,
    input_pages: Iterable[int],
    output_page: int,
    adapter: str,
) -> int:
    """A generation's next step, in one call: `embed_sampled`; the forward of that embed over the
    input pages, through an adapter if one is named, with keys and values into a page and the
    hidden state into the embed itself; and `sample` of it, whose future is returned. An error
    leaves none of them queued.
    Gives: a token, by `take_sample`.
    Errors: as of these three functions, and of `forward_with_adapter`.
    """
    try:
        answer: int = _sample.step(
            as_u32(queue),
            as_u32(sampler),
            as_u32(position),
            as_u32(embed),
            as_u32s(input_pages),
            as_u32(output_page),
            as_text(adapter),
        )
    except Err as error:
        raise PieError(error.value) from None
    return answer


def start_run(
    queue: int,
    sampler: int,
    embed: int,
    position: int,
    own_embed: int,
    input_pages: Iterable[int],
    output_pages: Iterable[int],
    adapter: str,
    most: int,
    stops: Iterable[int],
) -> int:
    """Starts a *run*, which chooses up to `most` tokens in one call, and returns its handle. The
    first token is `sample` of `embed`. Each token is followed by the next as by `step`: it goes
    through the model at the next position, from `position` on, over the input pages and all
    that the run has written; keys and values fill the output pages and then pages that the run
    takes itself. Its hidden states go into `own_embed`; `embed` keeps what it holds. The run is
    over with the first of the `stops`, with its last token, or with an error.

    Commands behind it in its queue wait until it is over. Until `end_run` the output pages are
    `immutable` and show the fill counts that they have now. Of the output pages only the first
    that is not full may hold something, and then it has to be among the input pages.
    Errors: as of `step`; `invalid-argument` (no token wanted, or more than the model's context
    holds).
    """
    try:
        answer: int = _sample.start_run(
            as_u32(queue),
            as_u32(sampler),
            as_u32(embed),
            as_u32(position),
            as_u32(own_embed),
            as_u32s(input_pages),
            as_u32s(output_pages),
            as_text(adapter),
            as_u32(most),
            as_u32s(stops),
        )
    except Err as error:
        raise PieError(error.value) from None
    return answer


def speculate(queue: int, run: int, text: Iterable[int], most: int) -> None:
    """Has a run guess its next tokens from now on, up to `most` of them at a time, 1 to 16: what
    came after its last tokens where they came before, in `text`, the tokens of its context, or
    among its own (prompt lookup). Guesses go through the model together with the token before
    them, and those stand that are what the sampler chooses anyway: the tokens are the same as
    without, at any temperature, and come sooner where a text repeats. The server guesses only
    where that has been worth its time. Nothing changes where choices depend on more than the
    text and their number, as with a device program that has state or looks at the text, and for
    models with recurrent layers. Other texts that this one may repeat may stand before the
    context's tokens. With no text, nothing is looked up: the guesses are what the sampler chose
    behind the first wrong guess of the step before, then its last token again (Jacobi decoding).
    Errors: `invalid-handle`, `invalid-argument` (no guess, or more than 16; a number that is no
    token; more tokens than the model's context holds).
    """
    try:
        _sample.speculate(as_u32(queue), as_u32(run), as_u32s(text), as_u32(most))
    except Err as error:
        raise PieError(error.value) from None


def speculate_with(queue: int, run: int, draft_queue: int, draft_run: int, most: int) -> None:
    """Has a run guess its next tokens from now on as another run chooses them, of a smaller model
    with the same vocabulary: up to `most` at a time, 1 to 16. Both have begun behind the same
    text, and the other one has just been started. It goes as far as guesses are wanted then, and
    its tokens cannot be waited for; what was guessed wrongly is undone, in its pages too, and
    `take_tokens` gives what it has. The tokens of `run` are the same as without.
    Errors: `invalid-handle`, `unsupported`, `invalid-argument` (no guess, or more than 16; a run
    of another vocabulary, one whose tokens were taken or waited for, or one that guesses or
    drafts itself).
    """
    try:
        _sample.speculate_with(
            as_u32(queue), as_u32(run), as_u32(draft_queue), as_u32(draft_run), as_u32(most)
        )
    except Err as error:
        raise PieError(error.value) from None


def run_progress(queue: int, run: int, count: int) -> int:
    """Ready when `count` tokens of a run are there that were not taken, or the run is over. The run
    goes on by itself to a few tokens more than were asked for.
    Gives: nothing, by `take`.
    Errors: `invalid-handle`, `invalid-argument` (no token), `limit-exceeded`.
    """
    try:
        answer: int = _sample.run_progress(as_u32(queue), as_u32(run), as_u32(count))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def take_tokens(queue: int, run: int) -> list[int]:
    """Takes the tokens of a run that are there and were not taken; none if the run is over. The
    token that has ended the run is the last one.
    Errors: `invalid-handle`; or the error that has ended the run, once all tokens before it are
    taken.
    """
    try:
        answer: list[int] = _sample.take_tokens(as_u32(queue), as_u32(run))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def next_tokens(queue: int, run: int, count: int) -> list[int]:
    """Waits until `count` tokens of a run can be taken or it is over, and takes all that are
    there, in one call.
    Errors: as of `run_progress` and `take_tokens`.
    """
    try:
        answer: list[int] = _sample.next_tokens(as_u32(queue), as_u32(run), as_u32(count))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def run_text(
    queue: int,
    run: int,
    before: Iterable[int],
    ends: Iterable[str],
    hidden: Iterable[int],
    to_client: bool,
) -> int:
    """Has the server read a run as text, that of all its tokens, so that the guest is woken at its
    end alone. The text is that of the tokens' bytes, as `get_vocabs` has them; bytes that are no
    character are U+FFFD. The tokens `before` stand before the run's first one, which may end a
    character that they begin. A stop token has no text, nor have tokens in the spans `hidden`.
    The first of the strings `ends` that comes in the text ends the run; the text ends before it.

    With `to_client` the text goes to the client as it comes, in messages of whole characters as
    by `send`, while the client has room; what may be the start of one of the `ends` waits. The
    run goes a few tokens beyond what is sent. The future is ready when all has been sent;
    cancelled, no more is sent. The run's tokens can be taken as ever.
    Gives: the text and where it has ended, by `take_run_text`.
    Errors: `invalid-handle`, `invalid-argument` (an empty string, a span without its count),
    `limit-exceeded` (more than 1024 characters in `ends`, or 512 spans).
    """
    try:
        answer: int = _sample.run_text(
            as_u32(queue),
            as_u32(run),
            as_u32s(before),
            as_texts(ends),
            as_u32s(hidden),
            bool(to_client),
        )
    except Err as error:
        raise PieError(error.value) from None
    return answer


def take_run_text(future: int) -> tuple[str, int, int]:
    """Consumes a ready future of `run_text`: the text, how many of the run's tokens belong to it
    with the one that has ended it, and the number of the string in `ends` that has ended it, or
    how many there are if none has. Those tokens are what `end_run` should keep.
    Errors: `invalid-handle`, `not-ready`; or the error that has ended the run.
    """
    try:
        answer: tuple[str, int, int] = _sample.take_run_text(as_u32(future))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def end_run(queue: int, run: int, count: int) -> list[int]:
    """Ends a run, over or not. Its first `count` tokens stand, and all that comes after them is
    undone: the pages hold these tokens but the last, and the sampler goes on as if it had
    chosen no more. Returns, as spans, the pages that the run has taken and that hold tokens;
    the others are given back.
    Errors: `invalid-handle`, `invalid-argument` (more tokens than there are).
    """
    try:
        answer: list[int] = _sample.end_run(as_u32(queue), as_u32(run), as_u32(count))
    except Err as error:
        raise PieError(error.value) from None
    return answer


# Interface `grammar`
# Constrains tokens to a JSON schema, a regular expression or a context-free grammar.
#
# A *matcher* is a position in a compiled grammar: it knows the tokens that may come next. Where
# the text may end, the model's stop tokens are allowed as well. While a token of a matcher is
# being sampled, other uses of it are `busy`.


def compile_grammar(model: str, kind: str, text: str) -> int:
    """Compiles a grammar for a model's tokens. `kind` is `json-schema`, `regex` (Rust's syntax,
    over the whole text), `lark` or `ebnf` (EBNF in Lark's syntax, with the rule `start`, or
    llama.cpp's GBNF, with the rule `root`), or `sequence` (a JSON list of `[kind, text]`, each
    behind the one before). The same text is compiled once.

    A schema's keys come in its order, also of one within `lark` (`%json {...}`). Its
    `x-guidance` is an object of options: `strict` (false; objects and lists have nothing but
    what is named, where the schema does not say), `any_whitespace` (false: as Python's `json`
    writes it), `any_key_order` (false). What a grammar cannot hold a text to is refused by its
    name.

    In `lark` and `ebnf` a terminal, a rule of texts and regular expressions alone, takes as much
    text as it can.
    Gives: the grammar's handle, by `take_grammar`.
    Errors: `unknown-model`, `invalid-argument`, `limit-exceeded`; of the future:
    `invalid-argument` (the grammar is wrong), `limit-exceeded` (too large or too slow),
    `unsupported`.
    """
    try:
        answer: int = _grammar.compile_grammar(as_text(model), as_text(kind), as_text(text))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def take_grammar(future: int) -> int:
    """Consumes a ready future of a grammar and returns the grammar's handle.
    Errors: `invalid-handle`, `not-ready`, `limit-exceeded`, or the error of the operation.
    """
    try:
        answer: int = _grammar.take_grammar(as_u32(future))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def release_grammar(grammar: int) -> None:
    """Ends a grammar's handle; its matchers go on. Errors: `invalid-handle`."""
    try:
        _grammar.release_grammar(as_u32(grammar))
    except Err as error:
        raise PieError(error.value) from None


def create_matcher(grammar: int) -> int:
    """A matcher at a grammar's start. Errors: `invalid-handle`, `limit-exceeded`."""
    try:
        answer: int = _grammar.create_matcher(as_u32(grammar))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def destroy_matcher(matcher: int) -> None:
    """Ends a matcher. Errors: `invalid-handle`."""
    try:
        _grammar.destroy_matcher(as_u32(matcher))
    except Err as error:
        raise PieError(error.value) from None


def advance(matcher: int, tokens: Iterable[int]) -> bool:
    """Consumes tokens, all or none of them, at most 1024; whether the text may end then.
    Errors: `invalid-handle`, `invalid-argument` (a token that is not allowed), `busy`,
    `limit-exceeded` (the grammar is too complex).
    """
    try:
        answer: bool = _grammar.advance(as_u32(matcher), as_u32s(tokens))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def rollback(matcher: int, count: int) -> None:
    """Takes the last `count` tokens back. Errors: `invalid-handle`, `invalid-argument`, `busy`."""
    try:
        _grammar.rollback(as_u32(matcher), as_u32(count))
    except Err as error:
        raise PieError(error.value) from None


def count_allowed(matcher: int, tokens: Iterable[int]) -> int:
    """How many of the tokens, from the first on, `advance` would consume; nothing changes.
    Errors: `invalid-handle`, `invalid-argument`, `busy`.
    """
    try:
        answer: int = _grammar.count_allowed(as_u32(matcher), as_u32s(tokens))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def is_accepting(matcher: int) -> bool:
    """Whether the text may end here. Errors: `invalid-handle`."""
    try:
        answer: bool = _grammar.is_accepting(as_u32(matcher))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def is_finished(matcher: int) -> bool:
    """Whether the text must end here, or has ended with a stop token. Errors: `invalid-handle`."""
    try:
        answer: bool = _grammar.is_finished(as_u32(matcher))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def grammar_mask(matcher: int) -> list[int]:
    """The tokens allowed next: bit `t % 32` of word `t / 32` is token `t`. As `sample_masked`
    takes it.
    Errors: `invalid-handle`, `busy`, `limit-exceeded` (the grammar is too complex).
    """
    try:
        answer: list[int] = _grammar.grammar_mask(as_u32(matcher))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def grammar_forced(matcher: int) -> list[int]:
    """The tokens that the grammar forces next, possibly none, at most 1024 at once; they are not
    consumed.
    Errors: `invalid-handle`, `busy`.
    """
    try:
        answer: list[int] = _grammar.grammar_forced(as_u32(matcher))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def sample_constrained(queue: int, embed: int, sampler: int, matcher: int) -> int:
    """As `sample`, among the tokens that the matcher allows; the matcher then consumes the
    one chosen by itself, before the future is ready.
    Gives: a token, by `take_sample`.
    Errors: as `sample`, and `busy`.
    """
    try:
        answer: int = _grammar.sample_constrained(
            as_u32(queue), as_u32(embed), as_u32(sampler), as_u32(matcher)
        )
    except Err as error:
        raise PieError(error.value) from None
    return answer
