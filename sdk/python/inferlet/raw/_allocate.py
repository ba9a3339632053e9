"""Interface `allocate`: pages and embeds."""

from __future__ import annotations

from inferlet._bindings import Err
from inferlet._bindings import allocate as interface
from inferlet.errors import PieError
from inferlet.raw._convert import as_text, as_u32, as_u32s


def alloc_kvpage(queue: int, count: int) -> int:
    """Allocates pages, all slots empty, and returns the first address of the range.
    Errors: `invalid-handle`, `invalid-argument`, `out-of-resources` (more than the model has),
    `limit-exceeded`.
    """
    try:
        answer: int = interface.alloc_kvpage(as_u32(queue), as_u32(count))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def dealloc_kvpage(queue: int, pages: list[int]) -> None:
    """Frees pages once the commands queued before have taken effect; the addresses end at once.
    Errors: `invalid-handle`.
    """
    try:
        interface.dealloc_kvpage(as_u32(queue), as_u32s(pages))
    except Err as error:
        raise PieError(error.value) from None


def export_kvpage(queue: int, pages: list[int], name: str, shared: bool) -> None:
    """Publishes pages under a name. They become immutable, and live until the export is released
    and no instance maps them. Private to the user unless `shared`.
    Errors: `invalid-handle`, `invalid-argument`, `already-exists`, `busy` (a queued command still
    writes one of them: synchronize first), `limit-exceeded`.
    """
    try:
        interface.export_kvpage(as_u32(queue), as_u32s(pages), as_text(name), bool(shared))
    except Err as error:
        raise PieError(error.value) from None


def import_kvpage(queue: int, name: str) -> list[int]:
    """Maps exported pages into this instance, read-only, and returns spans of addresses.
    Errors: `invalid-handle`, `not-found`, `limit-exceeded`.
    """
    try:
        answer: list[int] = interface.import_kvpage(as_u32(queue), as_text(name))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def list_exports(queue: int) -> list[str]:
    """Names of the exports of the queue's model that this user may import.
    Errors: `invalid-handle`.
    """
    try:
        answer: list[str] = interface.list_exports(as_u32(queue))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def release_export(queue: int, name: str) -> None:
    """Withdraws an export of this user. Pages already mapped stay.
    Errors: `invalid-handle`, `not-found`, `permission-denied`.
    """
    try:
        interface.release_export(as_u32(queue), as_text(name))
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
        interface.copy_kvpage(
            as_u32(queue),
            as_u32(source_page),
            as_u32(source_slot),
            as_u32(target_page),
            as_u32(target_slot),
            as_u32(count),
        )
    except Err as error:
        raise PieError(error.value) from None


def kvpage_used(queue: int, pages: list[int]) -> list[int]:
    """Number of filled (live or masked) slots of each page, as if every queued command had run.
    Errors: `invalid-handle`.
    """
    try:
        answer: list[int] = interface.kvpage_used(as_u32(queue), as_u32s(pages))
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
        interface.truncate_kvpage(as_u32(queue), as_u32s(pages), as_u32s(used))
    except Err as error:
        raise PieError(error.value) from None


def alloc_emb(queue: int, count: int) -> int:
    """Allocates embeds and returns the first address of the range. Errors: as `alloc_kvpage`."""
    try:
        answer: int = interface.alloc_emb(as_u32(queue), as_u32(count))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def dealloc_emb(queue: int, embeds: list[int]) -> None:
    """Frees embeds once the commands queued before have taken effect; the addresses end at once.
    Errors: `invalid-handle`.
    """
    try:
        interface.dealloc_emb(as_u32(queue), as_u32s(embeds))
    except Err as error:
        raise PieError(error.value) from None


def copy_emb(queue: int, sources: list[int], targets: list[int], positions: list[int]) -> None:
    """Copies embeds: `targets` become what `sources` are when the command's turn comes, one by one. A
    source may be named several times. `positions` (spans, as of `embed_txt`) are those of the
    targets; without any, each keeps its source's. All sources are read before a target is written.
    Errors: `invalid-handle`, `invalid-argument` (lengths that disagree, a source that nothing was
    written to, a target twice, a position outside the model's context), `limit-exceeded` (more than
    `max_batch_tokens`, too many queued commands).
    """
    try:
        interface.copy_emb(as_u32(queue), as_u32s(sources), as_u32s(targets), as_u32s(positions))
    except Err as error:
        raise PieError(error.value) from None


def pool_stats(queue: int) -> str:
    """State of the queue's model's pools, a JSON object: `kv_pages`, `kv_pages_free`,
    `host_pages` and `host_pages_free` (for swapped pages), `embeds`, `embeds_free`, and this
    instance's `kv_pages_mine`, `host_pages_mine`, `embeds_mine`.
    Errors: `invalid-handle`.
    """
    try:
        answer: str = interface.pool_stats(as_u32(queue))
    except Err as error:
        raise PieError(error.value) from None
    return answer
