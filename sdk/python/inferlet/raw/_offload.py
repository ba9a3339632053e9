"""Interface `offload`: pages in the host's memory."""

from __future__ import annotations

from inferlet._bindings import Err
from inferlet._bindings import offload as interface
from inferlet.errors import PieError
from inferlet.raw._convert import as_integer, as_text, as_u32, as_u32s


def swap_out(queue: int, pages: list[int]) -> None:
    """Moves pages to the server's host memory; their addresses stay. Those that are away already stay
    so. Until `swap_in`, any other use of them is `swapped-out`.
    Errors: `invalid-handle` (a page twice, too), `busy` (an export, another instance or another
    address holds a page, too), `out-of-resources` (the host pool is full), `limit-exceeded`.
    """
    try:
        interface.swap_out(as_u32(queue), as_u32s(pages))
    except Err as error:
        raise PieError(error.value) from None


def swap_in(queue: int, pages: list[int]) -> None:
    """Brings pages back as they were, and discarded ones empty. Those that are in the pool stay there.
    Errors: `invalid-handle` (a page twice, too), `out-of-resources`, `limit-exceeded`.
    """
    try:
        interface.swap_in(as_u32(queue), as_u32s(pages))
    except Err as error:
        raise PieError(error.value) from None


def discard(queue: int, pages: list[int]) -> None:
    """Gives up the content of pages, wherever they are, and the memory behind them. The addresses
    stay: `swap_in` puts empty pages there. Others who hold a page keep it.
    Errors: `invalid-handle` (a page twice, too).
    """
    try:
        interface.discard(as_u32(queue), as_u32s(pages))
    except Err as error:
        raise PieError(error.value) from None


def advise(queue: int, pages: list[int], wait: str) -> str:
    """What to do with pages while the program waits for a tool, by a policy of the server: a JSON object
    with `choice`, `pages`, `seconds`, `remaining`, `chunk`. It changes nothing. `wait` is a JSON object
    that may have `tool`, `policy`, `elapsed_ns`, `can_discard`.
    Errors: `invalid-handle` (a page twice, too), `invalid-argument`, `unsupported`.
    """
    try:
        answer: str = interface.advise(as_u32(queue), as_u32s(pages), as_text(wait))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def note_wait(tool: str, nanoseconds: int) -> None:
    """Tells how long a wait for a tool has lasted, for `advise` to this and other instances of the user.
    Errors: `limit-exceeded` (the name is too long).
    """
    try:
        interface.note_wait(as_text(tool), as_integer(nanoseconds, 0, 2**64))
    except Err as error:
        raise PieError(error.value) from None


def kv_costs(model: str) -> str:
    """What keeping, moving and recomputing pages costs, a JSON object: `page_bytes`, `page_size`,
    `swap_out` and `swap_in` (`seconds` and `bytes_per_second`, or null), `prefill` (`tokens`,
    `seconds`, `fit`), `decode` (`sequences`, `seconds`).
    Errors: `unknown-model`, `unsupported`.
    """
    try:
        answer: str = interface.kv_costs(as_text(model))
    except Err as error:
        raise PieError(error.value) from None
    return answer
