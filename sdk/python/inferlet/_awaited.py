# Generated from sdk/wit/inferlet.wit by `python -m codegen`; do not edit.

"""The contract's functions that take time, awaitable: each waits for its future and returns what it
gives. One that would block waits until there is room.

If the waiting task is cancelled, so is the future.
"""

from __future__ import annotations

from collections.abc import Sequence

from inferlet import raw
from inferlet._loop import ready
from inferlet.errors import PieError
from inferlet.raw import Detail, LogLevel


async def synchronize(queue: int) -> None:
    """Ready when every command queued before it has taken effect; then reports the first error
    among them that nothing has reported yet.
    Errors: `invalid-handle`, `limit-exceeded`.
    """
    future = raw.synchronize(queue)
    await ready(future)
    return raw.take(future)


async def sleep(nanoseconds: int) -> None:
    """Ready after this time.
    Errors: `limit-exceeded`.
    """
    future = raw.sleep(nanoseconds)
    await ready(future)
    return raw.take(future)


async def launch(program: str, args: Sequence[str]) -> str:
    """Starts a child instance of a program (its name or content hash), as the same user. A child
    ends with its parent, and when its future is cancelled. It has no client: parent and child
    talk through `messaging`.
    Errors: `not-found`, `limit-exceeded` (too many children, or generations of them). Of the
    future: `failed-dependency` (the child failed; the message is the child's own error text),
    `cancelled` (it was killed), `limit-exceeded`, `worker-lost` or `invalid-argument`
    (it could not be started).
    """
    future = raw.launch(program, args)
    await ready(future)
    return raw.take_text(future)


async def send(message: str) -> None:
    """Sends text to the client. The server keeps a bounded number of bytes for a client that does
    not read (back-pressure).
    Errors: `limit-exceeded` (one message too large).
    """
    while True:
        try:
            return raw.send(message)
        except PieError as error:
            if error.code != "would-block":
                raise
        await writable()


async def send_blob(data: bytes) -> None:
    """Sends bytes to the client.
    Errors: as `send`.
    """
    while True:
        try:
            return raw.send_blob(data)
        except PieError as error:
            if error.code != "would-block":
                raise
        await writable()


async def writable() -> None:
    """Ready when `send` has room again.
    Errors: `limit-exceeded`.
    """
    future = raw.writable()
    await ready(future)
    return raw.take(future)


async def receive() -> str:
    """The client's next text. Cancelled, it leaves the text for the next call.
    Errors: `limit-exceeded`.
    """
    future = raw.receive()
    await ready(future)
    return raw.take_text(future)


async def receive_blob() -> bytes:
    """The client's next bytes. Cancelled, it leaves them for the next call.
    Errors: `limit-exceeded`.
    """
    future = raw.receive_blob()
    await ready(future)
    return raw.take_blob(future)


async def http_get(url: str, headers: Sequence[tuple[str, str]]) -> tuple[int, list[tuple[str, str]], int]:
    """`http_request` with GET, without a body, with the server's time-out."""
    future = raw.http_get(url, headers)
    await ready(future)
    return raw.take_response(future)


async def http_post(url: str, headers: Sequence[tuple[str, str]], body: bytes) -> tuple[int, list[tuple[str, str]], int]:
    """`http_request` with POST and the server's time-out."""
    future = raw.http_post(url, headers, body)
    await ready(future)
    return raw.take_response(future)


async def http_request(method: str, url: str, headers: Sequence[tuple[str, str]], body: bytes, timeout_ms: int) -> tuple[int, list[tuple[str, str]], int]:
    """Starts a request (GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS) to an `http://` or
    `https://` URL; ready when the answer's headers have arrived, whatever its status. Redirects
    are followed; a redirect to another origin drops headers that carry secrets. `timeout_ms`
    bounds the time from this call to the last byte of the body; 0 is the server's time-out.
    Unless `headers` have an Accept-Encoding, a gzip body is unpacked.
    Errors: `invalid-argument`, `permission-denied` (a host that is not allowed),
    `limit-exceeded` (size, requests under way, requests per second, open bodies).
    """
    future = raw.http_request(method, url, headers, body, timeout_ms)
    await ready(future)
    return raw.take_response(future)


async def read_body(body: int, most: int) -> bytes:
    """The next bytes of a body, as soon as there are any, at most `most` and at most 1 MiB; none at
    the end. One read at a time.
    Errors: `invalid-handle`, `invalid-argument`, `busy`, `limit-exceeded`; of the future:
    `remote-failed`, `timed-out`, `limit-exceeded` (the body is too large).
    """
    future = raw.read_body(body, most)
    await ready(future)
    return raw.take_blob(future)


async def mcp_list_tools(server: str) -> str:
    """A server's tools, a JSON list of `{"name", "title", "description", "input_schema",
    "output_schema"}`.
    Errors: `not-found`, `limit-exceeded`; of the future: `remote-failed` (the server did not
    start, died, or refused), `timed-out`, `limit-exceeded` (the answer is too large).
    """
    future = raw.mcp_list_tools(server)
    await ready(future)
    return raw.take_text(future)


async def mcp_call_tool(server: str, tool: str, arguments: str) -> str:
    """A tool's answer to `arguments`, a JSON object: a JSON object with `content` (a list of MCP
    content blocks), `is_error` (the tool's own failure), and `structured` (what the tool's
    output schema describes, or null).
    Errors: `not-found`, `invalid-argument`, `limit-exceeded`; of the future: as
    `mcp_list_tools`.
    """
    future = raw.mcp_call_tool(server, tool, arguments)
    await ready(future)
    return raw.take_text(future)


async def broadcast(topic: str, message: str) -> int:
    """Sends to every current subscriber of a topic among this user's instances, this one included,
    and returns how many there are. All or none: if the box of one subscriber is full, nothing
    is sent and the error names it. So no subscriber misses a message.
    Errors: `invalid-argument`, `limit-exceeded` (message too large).
    """
    while True:
        try:
            return raw.broadcast(topic, message)
        except PieError as error:
            if error.code != "would-block":
                raise
        await broadcast_room(topic)


async def broadcast_room(topic: str) -> None:
    """Ready when the box of every subscriber has room.
    Errors: `invalid-argument`, `limit-exceeded`.
    """
    future = raw.broadcast_room(topic)
    await ready(future)
    return raw.take(future)


async def next_message(subscription: int) -> str:
    """The subscription's next message, in the order of the broadcasts. Cancelled, it leaves the
    message for the next call.
    Errors: `invalid-handle`, `limit-exceeded`.
    """
    future = raw.next_message(subscription)
    await ready(future)
    return raw.take_text(future)


async def push(topic: str, message: str) -> None:
    """Appends to the user's work queue of a topic, which is bounded (back-pressure).
    Errors: `invalid-argument`, `limit-exceeded` (message too large, too many
    queues).
    """
    while True:
        try:
            return raw.push(topic, message)
        except PieError as error:
            if error.code != "would-block":
                raise
        await push_room(topic)


async def push_room(topic: str) -> None:
    """Ready when the work queue has room.
    Errors: `invalid-argument`, `limit-exceeded`.
    """
    future = raw.push_room(topic)
    await ready(future)
    return raw.take(future)


async def pull(topic: str) -> str:
    """The oldest message of the work queue (FIFO); waits for one. Each message goes to exactly one
    puller; pullers are served in the order of their calls. Cancelled, it leaves the message for
    the next puller.
    Errors: `invalid-argument`, `limit-exceeded`.
    """
    future = raw.pull(topic)
    await ready(future)
    return raw.take_text(future)


async def store_get(key: str) -> bytes:
    """A key's value, or the error `not-found`.
    Errors: `invalid-argument`, `limit-exceeded`.
    """
    while True:
        try:
            future = raw.store_get(key)
            await ready(future)
            return raw.take_blob(future)
        except PieError as error:
            if error.code != "would-block":
                raise
        await store_room()


async def store_set(key: str, value: bytes) -> None:
    """Sets a key's value, new or instead of its old one.
    Errors: `invalid-argument`, `limit-exceeded` (value too large; of the future:
    quota).
    """
    while True:
        try:
            future = raw.store_set(key, value)
            await ready(future)
            return raw.take(future)
        except PieError as error:
            if error.code != "would-block":
                raise
        await store_room()


async def store_delete(key: str) -> None:
    """Removes a key; idempotent: a missing key is no error.
    Errors: `invalid-argument`, `limit-exceeded`.
    """
    while True:
        try:
            future = raw.store_delete(key)
            await ready(future)
            return raw.take(future)
        except PieError as error:
            if error.code != "would-block":
                raise
        await store_room()


async def store_list(prefix: str, after: str, limit: int) -> list[str]:
    """The keys that begin with `prefix` and come after `after`, in the order of their UTF-8 bytes,
    at most `limit` (1 to 1000) of them. An empty `after` is before every key.
    Errors: `invalid-argument`, `limit-exceeded`.
    """
    while True:
        try:
            future = raw.store_list(prefix, after, limit)
            await ready(future)
            return raw.take_texts(future)
        except PieError as error:
            if error.code != "would-block":
                raise
        await store_room()


async def store_room() -> None:
    """Ready when operations are accepted again.
    Errors: `limit-exceeded`.
    """
    future = raw.store_room()
    await ready(future)
    return raw.take(future)


async def store_commit(expected: Sequence[tuple[str, bytes]], absent: Sequence[str], writes: Sequence[tuple[str, bytes]], deletes: Sequence[str]) -> None:
    """Makes all changes at once, if each of the `expected` keys has just this value and none of
    the `absent` keys exists; otherwise nothing changes and the future's error is `conflict`. At
    most 1000 keys in conditions, and as many in changes; none twice.
    Errors: `invalid-argument`, `limit-exceeded` (value too large, too many keys;
    of the future: quota).
    """
    while True:
        try:
            future = raw.store_commit(expected, absent, writes, deletes)
            await ready(future)
            return raw.take(future)
        except PieError as error:
            if error.code != "would-block":
                raise
        await store_room()


async def forward_with_attention(queue: int, input_pages: Sequence[int], input_embeds: Sequence[int], output_pages: Sequence[int], output_embeds: Sequence[int], mask: Sequence[int], observed: int, detail: Detail, adapter: str) -> tuple[int, list[float]]:
    """As `forward`, and what the last `observed` inputs attend to. An empty `adapter` means
    none.
    Errors: as `forward_with_adapter`, and `invalid-argument` (not 1 to as many as inputs are
    observed), `limit-exceeded` (an answer of over 524288 numbers, inputs times columns
    over 2^28), `unsupported`.
    """
    future = raw.forward_with_attention(queue, input_pages, input_embeds, output_pages, output_embeds, mask, observed, detail, adapter)
    await ready(future)
    return raw.take_attention(future)


async def get_next_dist(queue: int, embed: int, k: int) -> tuple[list[int], list[float]]:
    """The `k` most likely next tokens after an output embed. `k` is at least 1; more than the
    vocabulary means the whole vocabulary; 256 is usual.
    Errors: `invalid-handle`, `invalid-argument`, `limit-exceeded`.
    """
    future = raw.get_next_dist(queue, embed, k)
    await ready(future)
    return raw.take_dist(future)


async def get_hidden(queue: int, embeds: Sequence[int]) -> list[float]:
    """The mean of the hidden states in embeds (spans), of one embed its own. Those that a forward
    has written are after the model's final norm.
    Errors: `invalid-handle`, `invalid-argument` (no embed, or one that holds nothing yet),
    `limit-exceeded` (more embeds than `max_batch_tokens`, too many queued commands).
    """
    future = raw.get_hidden(queue, embeds)
    await ready(future)
    return raw.take_hidden(future)


async def read_state(queue: int, sampler: int) -> str:
    """Asks for the state of a sampler that is a device program, after the choices queued before:
    a JSON object that has, of each name that changes, a number, a boolean, or lists of them;
    null is a number that JSON has not.
    Errors: `invalid-handle`, `invalid-argument` (no device program), `limit-exceeded`.
    """
    future = raw.read_state(queue, sampler)
    await ready(future)
    return raw.take_text(future)


async def sample(queue: int, embed: int, sampler: int) -> tuple[int, float, list[int], list[float]]:
    """Chooses a token that follows an output embed. The sampler moves on even if the future is
    cancelled.
    Errors: `invalid-handle`, `invalid-argument`, `limit-exceeded`.
    """
    future = raw.sample(queue, embed, sampler)
    await ready(future)
    return raw.take_sample(future)


async def sample_masked(queue: int, embed: int, sampler: int, mask: Sequence[int]) -> tuple[int, float, list[int], list[float]]:
    """As `sample`, among the tokens that a mask allows: bit `t % 32` of word `t / 32` is token
    `t`.
    Errors: as `sample`.
    """
    future = raw.sample_masked(queue, embed, sampler, mask)
    await ready(future)
    return raw.take_sample(future)


async def step(queue: int, sampler: int, position: int, embed: int, input_pages: Sequence[int], output_page: int, adapter: str) -> tuple[int, float, list[int], list[float]]:
    """A generation's next step, in one call: `embed_sampled`; the forward of that embed over the
    input pages, through an adapter if one is named, with keys and values into a page and the
    hidden state into the embed itself; and `sample` of it, whose future is returned. An error
    leaves none of them queued.
    Errors: as of these three functions, and of `forward_with_adapter`.
    """
    future = raw.step(queue, sampler, position, embed, input_pages, output_page, adapter)
    await ready(future)
    return raw.take_sample(future)


async def run_progress(queue: int, run: int, count: int) -> None:
    """Ready when `count` tokens of a run are there that were not taken, or the run is over. The run
    goes on by itself to a few tokens more than were asked for.
    Errors: `invalid-handle`, `invalid-argument` (no token), `limit-exceeded`.
    """
    future = raw.run_progress(queue, run, count)
    await ready(future)
    return raw.take(future)


async def run_text(queue: int, run: int, before: Sequence[int], ends: Sequence[str], hidden: Sequence[int], to_client: bool) -> tuple[str, int, int]:
    """Has the server read a run as text, that of all its tokens, so that the guest is woken at its
    end alone. The text is that of the tokens' bytes, as `get_vocabs` has them; bytes that are no
    character are U+FFFD. The tokens `before` stand before the run's first one, which may end a
    character that they begin. A stop token has no text, nor have tokens in the spans `hidden`.
    The first of the strings `ends` that comes in the text ends the run; the text ends before it.

    With `to_client` the text goes to the client as it comes, in messages of whole characters as
    by `send`, while the client has room; what may be the start of one of the `ends` waits. The
    run goes a few tokens beyond what is sent. The future is ready when all has been sent;
    cancelled, no more is sent. The run's tokens can be taken as ever.
    Errors: `invalid-handle`, `invalid-argument` (an empty string, a span without its count),
    `limit-exceeded` (more than 1024 characters in `ends`, or 512 spans).
    """
    future = raw.run_text(queue, run, before, ends, hidden, to_client)
    await ready(future)
    return raw.take_run_text(future)


async def compile_grammar(model: str, kind: str, text: str) -> int:
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
    Errors: `unknown-model`, `invalid-argument`, `limit-exceeded`; of the future:
    `invalid-argument` (the grammar is wrong), `limit-exceeded` (too large or too slow),
    `unsupported`.
    """
    future = raw.compile_grammar(model, kind, text)
    await ready(future)
    return raw.take_grammar(future)


async def sample_constrained(queue: int, embed: int, sampler: int, matcher: int) -> tuple[int, float, list[int], list[float]]:
    """As `sample`, among the tokens that the matcher allows; the matcher then consumes the
    one chosen by itself, before the future is ready.
    Errors: as `sample`, and `busy`.
    """
    future = raw.sample_constrained(queue, embed, sampler, matcher)
    await ready(future)
    return raw.take_sample(future)
