"""Interface `runtime`: models, queues, futures, clocks, children."""

from __future__ import annotations

from typing import Literal, TypeAlias

from inferlet._bindings import Err
from inferlet._bindings import runtime as interface
from inferlet.errors import PieError
from inferlet.raw._convert import as_integer, as_text, as_texts, as_u32, as_u32s

LogLevel: TypeAlias = Literal["debug", "info", "warning", "error"]


def get_arg() -> list[str]:
    """The arguments given at launch, in order."""
    answer: list[str] = interface.get_arg()
    return answer


def instance_id() -> str:
    """This instance's identifier, unique on the server."""
    answer: str = interface.instance_id()
    return answer


def user() -> str:
    """The user who launched this instance."""
    answer: str = interface.user()
    return answer


def version() -> str:
    """The server's version."""
    answer: str = interface.version()
    return answer


def available_models() -> list[str]:
    """Names of the models being served. The first one is the server's default."""
    answer: list[str] = interface.available_models()
    return answer


def available_traits(model: str) -> list[str]:
    """Names of the traits that a model offers.
    Errors: `unknown-model`.
    """
    try:
        answer: list[str] = interface.available_traits(as_text(model))
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
        answer: str = interface.model_info(as_text(model))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def create_queue(model: str) -> int:
    """Creates a command queue of a model. Commands of one queue take effect in order; queues are
    independent of each other.
    Errors: `unknown-model`, `limit-exceeded`.
    """
    try:
        answer: int = interface.create_queue(as_text(model))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def destroy_queue(queue: int) -> None:
    """Destroys a queue. Commands already in it still take effect.
    Errors: `invalid-handle`.
    """
    try:
        interface.destroy_queue(as_u32(queue))
    except Err as error:
        raise PieError(error.value) from None


def synchronize(queue: int) -> int:
    """A future that is ready when every command queued before it has taken effect. Consume it with
    `take`, which reports the first error among them that nothing has reported yet.
    Errors: `invalid-handle`, `limit-exceeded`.
    """
    try:
        answer: int = interface.synchronize(as_u32(queue))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def set_queue_priority(queue: int, priority: int) -> None:
    """Priority of a queue, 0 unless set; higher goes first within a batch. At most 100, at least -100.
    Errors: `invalid-handle`, `invalid-argument`.
    """
    try:
        interface.set_queue_priority(as_u32(queue), as_integer(priority, -(2**31), 2**31))
    except Err as error:
        raise PieError(error.value) from None


def wait(futures: list[int]) -> list[int]:
    """Suspends the instance until at least one of the futures is ready, and returns those that are,
    in the order given. A ready future stays ready until it is taken or cancelled. An empty list
    gives every other instance a turn and returns an empty list.
    Errors: `invalid-handle`.
    """
    try:
        answer: list[int] = interface.wait(as_u32s(futures))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def take(future: int) -> None:
    """Consumes a ready future that carries no value (`synchronize`, `sleep`, `session.writable`).
    Errors: `invalid-handle`, `not-ready`, or the error of what it stood for.
    """
    try:
        interface.take(as_u32(future))
    except Err as error:
        raise PieError(error.value) from None


def take_text(future: int) -> str:
    """Consumes a ready future that carries text (`receive`, `launch`, `next_message`, `pull`,
    `mcp_list_tools`, `mcp_call_tool`).
    Errors: as `take`.
    """
    try:
        answer: str = interface.take_text(as_u32(future))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def take_texts(future: int) -> list[str]:
    """Consumes a ready future that carries a list of texts (`store_list`).
    Errors: as `take`.
    """
    try:
        answer: list[str] = interface.take_texts(as_u32(future))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def take_blob(future: int) -> bytes:
    """Consumes a ready future that carries bytes (`receive_blob`, `store_get`, `read_body`).
    Errors: as `take`.
    """
    try:
        answer: bytes = interface.take_blob(as_u32(future))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def cancel(future: int) -> None:
    """Gives a future up, ready or not. What it stands for is undone where it can be: a message stays
    in the mailbox, a child instance is killed, a command that has not been sent yields no result.
    Errors: `invalid-handle`.
    """
    try:
        interface.cancel(as_u32(future))
    except Err as error:
        raise PieError(error.value) from None


def now() -> int:
    """Nanoseconds since the Unix epoch."""
    answer: int = interface.now()
    return answer


def monotonic_now() -> int:
    """Nanoseconds of a clock that never goes back, from an arbitrary start."""
    answer: int = interface.monotonic_now()
    return answer


def sleep(nanoseconds: int) -> int:
    """A future that is ready after this many nanoseconds. Consume it with `take`.
    Errors: `limit-exceeded`.
    """
    try:
        answer: int = interface.sleep(as_integer(nanoseconds, 0, 2**64))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def random_bytes(count: int) -> bytes:
    """Random bytes fit for cryptography, at most 65536.
    Errors: `invalid-argument`.
    """
    try:
        answer: bytes = interface.random_bytes(as_u32(count))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def log(level: LogLevel, message: str) -> None:
    """Writes a line to the instance's log (`pie-py logs`). The log keeps the newest lines."""
    interface.log(interface.LogLevel[level.upper()], as_text(message))


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
        answer: int = interface.launch(as_text(program), as_texts(args))
    except Err as error:
        raise PieError(error.value) from None
    return answer
