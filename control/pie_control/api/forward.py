"""Trait `forward`: the transformer's forward pass, and masks of slots."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from operator import gt
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from pie_control.api.binder import implement
from pie_control.api.queues import queue_of
from pie_control.commands.forward import MAX_CELLS, NO_ADAPTER, ForwardCommand, Observation
from pie_control.commands.mask_page import MaskKvCommand
from pie_control.errors import ApiError
from pie_control.instances.instance import Instance
from pie_control.models.model import OpenQueue
from pie_control.resources.pools import PagePool
from pie_py.wire.plan import Int32, Uint32

# Within fill counts, which are below 256, only an empty page's. NumPy takes four times as long to
# say so.
_NONE_FILLED = bytes(np.int32(0).nbytes)
MAX_MASK_NUMBERS = 1 << 18  # of one forward's run-length rows: 1 MiB


def forward(
    instance: Instance,
    queue: int,
    input_pages: list[int],
    input_embeds: list[int],
    output_pages: list[int],
    output_embeds: list[int],
    mask: list[int],
) -> None:
    """Queues a forward pass."""
    enqueue_forward(
        queue_of(instance, queue, "forward"),
        input_pages,
        input_embeds,
        output_pages,
        output_embeds,
        mask,
    )


def enqueue_forward(
    target: OpenQueue,
    input_pages: list[int],
    input_embeds: list[int],
    output_pages: list[int],
    output_embeds: list[int],
    mask: list[int],
    *,
    adapter: int = NO_ADAPTER,
    observe: Callable[[int, int], Observation] | None = None,
) -> Observation | None:
    """Queues a forward pass. The pages' fill counts change at once, as if it had run.

    Args:
        target: the queue.
        input_pages: spans, as are the next three.
        input_embeds: what goes through the model.
        output_pages: where keys and values go.
        output_embeds: where hidden states go.
        mask: run-length rows, or empty.
        adapter: slot of the adapter.
        observe: called once all else is right, with the numbers of inputs and of columns (filled
            slots of the input pages, and inputs), for what is wanted of the attention.

    Returns:
        What `observe` returned.

    Raises:
        ApiError: as the contract has it; nothing has changed then.
    """
    space, pool = target.space, target.space.page_pool
    most = target.model.description.max_batch_tokens
    total = input_embeds[1] if len(input_embeds) == 2 else sum(input_embeds[1::2])
    if total > most:
        raise ApiError(
            "limit-exceeded", f"{total} inputs in one forward; {most} at most: run it in parts"
        )
    inputs = space.embeds.find_list(input_embeds, most)
    count = len(inputs)
    if count == 0:
        raise ApiError("invalid-argument", "a forward without inputs; give at least one embed")
    _check_written(space.embed_pool.written, inputs)
    pages = space.pages.find(input_pages, pool.size)
    used: Int32 = pool.used.take(pages)
    # A step's outputs are its inputs: they hold something already, and their positions stay.
    in_place = output_embeds == input_embeds
    outputs = inputs if in_place else space.embeds.find_list(output_embeds, most)
    if len(output_embeds) != 2 or len(outputs) > count:
        _check_outputs(outputs, output_embeds, count)
    room = None
    if output_pages:
        room = _room(pool, space.pages.find_list(output_pages, pool.size), count)
        if len(output_pages) > 2:
            _check_distinct(room[0], output_pages, "page")
    columns = int(used.sum()) + count if mask or observe is not None else 0
    if count * columns > MAX_CELLS:
        raise ApiError(
            "limit-exceeded",
            f"{count} inputs with a mask or observed, over {columns} columns: {count * columns}"
            f" cells, {MAX_CELLS} at most: run it in parts",
        )
    rows = None
    if mask:
        _check_mask(mask, count, columns)
        rows = np.array(mask, np.int32)
    target.queue.check_room()
    observation = observe(count, columns) if observe is not None else None

    places = space.embed_pool.places
    divisible = (
        count > target.scheduler.step_tokens
        and room is not None
        and rows is None
        and observation is None
        and _is_divisible(pool, [places[row] for row in inputs], pages, room[0])
    )
    if outputs and not in_place:
        last = [places[row] for row in inputs[-len(outputs) :]]
        for output, place in zip(outputs, last, strict=True):
            space.embed_pool.written[output] = True
            places[output] = place
    _queue(
        target,
        inputs,
        pages,
        used,
        room,
        outputs,
        rows,
        adapter,
        observation,
        count * columns,
        divisible,
    )
    return observation


def check_step(target: OpenQueue, input_pages: list[int], output_page: int) -> tuple[Int32, Room]:
    """Checks the forward of one input, but for its embed and the queue's room.

    Args:
        target: the queue.
        input_pages: spans.
        output_page: where keys and values go.

    Returns:
        What `queue_step` wants: physical input pages, and the place of keys and values.

    Raises:
        ApiError: as `enqueue_forward`.
    """
    space, pool = target.space, target.space.page_pool
    pages = space.pages.find(input_pages, pool.size)
    return pages, _room(pool, [space.pages.find_one(output_page)], 1)


def queue_step(target: OpenQueue, embed: int, pages: Int32, room: Room, adapter: int) -> None:
    """Queues the forward of one embed, that takes its own hidden state, after `check_step`."""
    used: Int32 = target.space.page_pool.used.take(pages)
    embeds = [embed]
    _queue(target, embeds, pages, used, room, embeds, None, adapter, None, 0, False)


def _queue(
    target: OpenQueue,
    inputs: list[int],
    pages: Int32,
    used: Int32,
    room: Room | None,
    outputs: list[int],
    rows: Int32 | None,
    adapter: int,
    observation: Observation | None,
    cells: int,
    divisible: bool,
) -> None:
    """Queues a forward that has been checked; the fill counts of the pages in `room` change."""
    pool = target.space.page_pool
    masked = pool.masked > 0 and bool(pool.masks[pages].any())
    slots: list[int] | None = None
    changed: list[int] = []
    if room is not None:
        changed, filled, slots = room
        if len(changed) == 1:
            pool.used[changed[0]] = filled[0]
        else:
            pool.used[changed] = filled
    if _NONE_FILLED in used.tobytes():  # the worker need not see empty pages
        pages, used = pages[used > 0], used[used > 0]
    command = ForwardCommand(
        inputs,
        pages,
        used,
        masked,
        slots,
        changed,
        outputs,
        rows,
        adapter,
        observation,
        cells,
        divisible,
    )
    target.scheduler.enqueue(target.queue, command)


def mask_kvpage(instance: Instance, queue: int, pages: list[int], masks: Uint32) -> None:
    """Sets which filled slots of pages are masked."""
    target = queue_of(instance, queue, "forward")
    pool = target.space.page_pool
    physical = target.space.pages.find(pages, pool.size)
    if len(masks) != len(physical):
        raise ApiError(
            "invalid-argument", f"{len(masks)} masks for {len(physical)} pages; give one a page"
        )
    for page in physical.tolist():
        _check_mutable(pool, page)
    _check_distinct(physical.tolist(), pages, "page")
    beyond = masks.astype(np.uint64) >> pool.used[physical].astype(np.uint64)
    if beyond.any():
        i = int(np.argmax(beyond > 0))
        raise ApiError(
            "invalid-argument",
            f"mask {int(masks[i]):#x} hides empty slots: page number {i} of the list has"
            f" {int(pool.used[physical[i]])} filled",
        )
    if len(physical) == 0:
        return
    target.queue.check_room()
    words = masks.astype(np.uint32)
    pool.set_masks(physical, words)
    target.scheduler.enqueue(target.queue, MaskKvCommand(physical, words))


def _check_written(written: NDArray[np.bool_], inputs: list[int]) -> None:
    if len(inputs) == 1 and written.item(inputs[0]):
        return
    if not all(map(written.item, inputs)):
        raise ApiError(
            "invalid-argument",
            f"input number {int(np.argmin(written[inputs]))} is an embed that nothing was written"
            " to; embed a token into it first",
        )


def _check_outputs(outputs: list[int], spans: list[int], count: int) -> None:
    if len(outputs) > count:
        raise ApiError(
            "invalid-argument",
            f"{len(outputs)} output embeds for {count} inputs; give as many as inputs at most",
        )
    _check_distinct(outputs, spans, "embed")


def _check_distinct(physical: list[int], spans: list[int], what: str) -> None:
    """Refuses a handle that is written twice; within one span there cannot be any."""
    if len(spans) > 2 and len(set(physical)) != len(physical):
        raise ApiError(
            "invalid-argument", f"a {what} that is written to is in the list more than once"
        )


def _check_mutable(pool: PagePool, page: int) -> None:
    if pool.immutable.item(page):
        raise ApiError(
            "immutable", "an exported page cannot change; copy it to a page of your own first"
        )


# Where the keys and values of a forward's inputs go: [q] pages that receive some, [q] filled slots
# of each afterwards, [n] KV slots, one an input.
Room: TypeAlias = tuple[list[int], list[int], list[int]]


def _room(pool: PagePool, pages: list[int], count: int) -> Room:
    """The first `count` empty slots of distinct pages.

    Raises:
        ApiError: `page-full`, `immutable`.
    """
    size = pool.page_size
    into: list[int] = []
    filled: list[int] = []
    slots: list[int] = []
    left = count
    for page in pages:
        used = pool.used.item(page)
        if used == size:
            continue
        _check_mutable(pool, page)
        start = page * size + used
        if left == 1 and not into:  # the hot path
            return [page], [used + 1], [start]
        taken = min(left, size - used)
        into.append(page)
        filled.append(used + taken)
        slots.extend(range(start, start + taken))
        left -= taken
        if not left:
            return into, filled, slots
    raise ApiError(
        "page-full",
        f"{count} inputs, and the output pages have {count - left} empty slots; allocate more",
    )


def _is_divisible(pool: PagePool, places: list[int], pages: Int32, outputs: list[int]) -> bool:
    """Whether the later of a forward's inputs may find the earlier ones in the pages instead.

    Args:
        pool: the pages as they are before the forward.
        places: [n] positions of the inputs.
        pages: [p] input pages.
        outputs: [q] pages that receive something.
    """
    if any(map(gt, places, islice(places, 1, None))):
        return False
    if any(pool.used.item(page) for page in islice(outputs, 1, None)):
        return False
    first = outputs[0]
    return not pool.used.item(first) or np.count_nonzero(pages == first) == 1


def _check_mask(mask: list[int], count: int, columns: int) -> None:
    """Checks that a mask is one run-length row an input, each over all columns."""
    if len(mask) > MAX_MASK_NUMBERS:
        raise ApiError(
            "limit-exceeded", f"a mask of {len(mask)} numbers; {MAX_MASK_NUMBERS} at most"
        )
    at = 0
    for row in range(count):
        if at >= len(mask):
            raise ApiError("invalid-argument", f"a mask of {row} rows for {count} inputs")
        end = at + 1 + mask[at]
        if end > len(mask):
            raise ApiError(
                "invalid-argument",
                f"mask row {row} says {mask[at]} runs, and {len(mask) - at - 1} numbers follow",
            )
        covered = sum(mask[at + 1 : end])
        if covered != columns:
            raise ApiError(
                "invalid-argument",
                f"mask row {row} covers {covered} columns; there are {columns}"
                " (filled slots of the input pages, then inputs)",
            )
        at = end
    if at != len(mask):
        raise ApiError(
            "invalid-argument", f"{len(mask) - at} numbers follow the mask's {count} rows"
        )


FUNCTIONS = implement("forward", forward, mask_kvpage, arrays=("masks",))
