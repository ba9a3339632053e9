"""Trait `forward`: the transformer's forward pass, and masks of slots.

A long forward is cut at places where its parts give what the whole gives. What a part computes lies
in pages for the next one. So a forward that keeps nothing can't be cut, nor can one between two
inputs of which the earlier one sees the later one. What can't be cut may have so many inputs at
most, because every other step waits for it.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pie_control.api.binder import queue_of
from pie_control.errors import ApiError, exceeded, invalid, unsupported
from pie_control.instances.instance import Instance
from pie_control.models.model import OpenQueue
from pie_control.resources.pools import PagePool
from pie_control.resources.samplers import Sampler
from pie_control.scheduler.commands.command import NOTHING
from pie_control.scheduler.commands.forward import (
    MAX_CELLS,
    NO_ADAPTER,
    ForwardCommand,
    Observation,
)
from pie_control.scheduler.commands.pages import MaskKvCommand, ShiftKvCommand
from pie_py.wire.plan import Int32, Uint32

# Where the keys and values of a forward's inputs go: [q] pages that receive some, [q] filled slots
# of each afterwards, [n] KV slots, one an input.
Room: TypeAlias = tuple[list[int], list[int], list[int]]


def by_positions(places: list[int]) -> Int32:
    """Where no input before the cut has a higher position than one behind it."""
    positions = np.array(places, np.int32)
    lowest = np.minimum.accumulate(positions[::-1])[::-1]
    return _after(np.maximum.accumulate(positions)[:-1] <= lowest[1:])


def by_mask(ends: list[int], context: int) -> Int32:
    """Where no input before the cut sees one behind it; `ends` has for each the column behind the
    last one that it sees, and `context` columns come before the inputs.
    """
    seen = np.maximum.accumulate(np.array(ends, np.int32)[:-1]) - context
    return _after(seen <= np.arange(1, len(ends)))


def _after(may: NDArray[np.bool_]) -> Int32:
    return (np.flatnonzero(may) + 1).astype(np.int32)


def without_last(cuts: Int32, inputs: list[int], outputs: list[int], observed: int) -> Int32:
    """The cuts before the inputs whose results are wanted from the last part: hidden states
    (`outputs`), and the attention of the last `observed` ones.

    The parts may have outputs of their own, but for those that a later part reads: inputs other
    than the one that an output is of.
    """
    count, last, read = len(inputs), observed, set(inputs)
    pairs = zip(inputs[count - len(outputs) :], outputs, strict=True)
    own = len(read) == count and all(to == of or to not in read for of, to in pairs)
    if not own and not read.isdisjoint(outputs):
        last = max(last, len(outputs))
    return cuts[cuts <= count - last]


def goes_on(pool: PagePool, pages: Int32, room: Room | None, *, in_order: bool) -> bool:
    """True if the later inputs may find the earlier ones in the pages, which are as they are before
    the forward, instead. If `in_order`, the columns must stay as they are, too: first what the
    pages hold, then the inputs.
    """
    if room is None or any(pool.used.item(page) for page in islice(room[0], 1, None)):
        return False
    first = room[0][0]
    if not pool.used.item(first):
        return True
    held = pages[pool.used[pages] > 0] if in_order else pages
    once = np.count_nonzero(held == first) == 1
    return once and (not in_order or held[-1] == first)


def check_pieces(cuts: Int32, count: int, most: int, *, is_kept: bool) -> None:
    """Refuses a forward with more inputs that must run at once than there may be.

    Raises:
        ApiError: `limit-exceeded`.
    """
    piece = int(np.diff(cuts, prepend=0, append=count).max())
    if piece <= most:
        return
    mend = "run it in parts, or let no input see later ones (by its mask or position)"
    if not is_kept:
        mend = "give it output pages, in which later inputs find the earlier ones"
    raise exceeded(
        f"{piece} inputs of this forward can only run at once, {most} at most may: {mend}"
    )


# Within fill counts, which are below 256, only an empty page's. NumPy takes four times as long to
# say so.
_NONE_FILLED = bytes(np.int32(0).nbytes)
MAX_MASK_NUMBERS = 1 << 18  # of one forward's run-length rows: 1 MiB


class ForwardSpans(NamedTuple):
    """The lists of a forward as a guest gives them: spans of handles, and run-length mask rows."""

    input_pages: list[int]
    input_embeds: list[int]  # what goes through the model
    output_pages: list[int]  # where keys and values go
    output_embeds: list[int]  # where hidden states go
    mask: list[int]  # empty for the causal rule


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
    spans = ForwardSpans(input_pages, input_embeds, output_pages, output_embeds, mask)
    enqueue_forward(queue_of(instance, queue, "forward"), spans)


def enqueue_forward(
    target: OpenQueue,
    spans: ForwardSpans,
    *,
    adapter: int = NO_ADAPTER,
    observe: Callable[[int, int], Observation] | None = None,
    observed: int = 0,
) -> Observation | None:
    """Queues a forward pass. The pages' fill counts change at once, as if it had run.

    What is wanted of the attention of the last `observed` inputs is asked of `observe` once all
    else is right, with the numbers of inputs and of columns (filled slots of the input pages, and
    inputs); its answer is returned.

    Raises:
        ApiError: as the contract has it; nothing has changed then.
    """
    space, pool = target.space, target.space.page_pool
    inputs = _find_inputs(target, spans.input_embeds)
    count = len(inputs)
    pages = space.pages.find(spans.input_pages, pool.size)
    used: Int32 = pool.used.take(pages)
    outputs = _find_outputs(target, spans, inputs)
    room = _find_room(target, spans.output_pages, count)
    # The worker lays out a cell per input and column if there is a mask or an observation.
    has_cells = bool(spans.mask) or observe is not None
    is_long = count > target.scheduler.step_tokens
    context = int(used.sum()) if has_cells or is_long else 0
    cells = count * (context + count) if has_cells else 0
    _check_cells(cells, count, context + count)
    rows, ends = None, None
    if spans.mask:
        ends = _check_mask(spans.mask, count, context + count)
        rows = np.array(spans.mask, np.int32)
    cuts = NOTHING
    if is_long:
        if goes_on(pool, pages, room, in_order=has_cells):
            cuts = by_mask(ends, context) if ends else by_positions(_places(target, inputs))
            cuts = without_last(cuts, inputs, outputs, observed)
        most = target.scheduler.most_at_once(context + count)
        check_pieces(cuts, count, most, is_kept=room is not None)
    observer = _prompt_observer(target, spans, inputs)
    target.queue.check_room()
    observation = observe(count, context + count) if observe is not None else None
    # Nothing fails from here on.
    if outputs is not inputs:
        _move_places(target, inputs, outputs)
    command = ForwardCommand(
        inputs, pages, used, False, None, [], outputs, rows, adapter, observation, cells, cuts
    )
    if observer is not None:
        command.attends = observer.slot
        command.is_changed = observer.attend is not None and bool(observer.attend.layers)
    target.queue.sees = spans.input_pages, spans.output_pages
    _queue(target, command, room)
    return observation


def _find_inputs(target: OpenQueue, spans: list[int]) -> list[int]:
    """Physical embeds `[n]` that a forward reads."""
    most = target.model.description.max_batch_tokens
    total = spans[1] if len(spans) == 2 else sum(spans[1::2])
    if total > most:
        raise exceeded(f"{total} inputs in one forward; {most} at most: run it in parts")
    inputs = target.space.embeds.find_list(spans, most)
    if not inputs:
        raise invalid("a forward without inputs; give at least one embed")
    _check_written(target.space.embed_pool.written, inputs)
    return inputs


def _prompt_observer(target: OpenQueue, spans: ForwardSpans, inputs: list[int]) -> Sampler | None:
    """The sampler whose `attend` program observes what the inputs attend to, if there is one."""
    handle = target.queue.prompt_observer
    if handle is None:
        return None
    found = target.space.samplers.before_choice(handle)
    if found is None:
        target.queue.prompt_observer = None  # what comes after its first choice is no prompt
        return None
    places = _places(target, inputs)
    if spans.mask or not spans.output_pages or places != sorted(places):
        raise unsupported(
            f"the `attend` program of sampler {handle}, which has yet to choose, is told what this"
            " forward attends to: that takes output pages, no mask and positions that do not fall;"
            " run it before the sampler is made"
        )
    return found


def _find_outputs(target: OpenQueue, spans: ForwardSpans, inputs: list[int]) -> list[int]:
    """Physical embeds `[o]` that receive hidden states; `inputs` itself if they are the same."""
    outputs = inputs  # a step's: they hold something already, and their positions stay
    if spans.output_embeds != spans.input_embeds:
        most = target.model.description.max_batch_tokens
        outputs = target.space.embeds.find_list(spans.output_embeds, most)
    if len(spans.output_embeds) != 2 or len(outputs) > len(inputs):
        _check_outputs(outputs, spans.output_embeds, len(inputs))
    return outputs


def _find_room(target: OpenQueue, spans: list[int], count: int) -> Room | None:
    """Where keys and values go; None if they go nowhere."""
    if not spans:
        return None
    pool = target.space.page_pool
    room = _room(pool, target.space.pages.find_list(spans, pool.size), count)
    if len(spans) > 2:
        _check_distinct(room[0], spans, "page")
    return room


def _check_cells(cells: int, count: int, columns: int) -> None:
    if cells > MAX_CELLS:
        raise exceeded(
            f"{count} inputs with a mask or observed, over {columns} columns: {cells} cells,"
            f" {MAX_CELLS} at most: run it in parts"
        )


def _places(target: OpenQueue, embeds: list[int]) -> list[int]:
    places = target.space.embed_pool.places
    return [places[embed] for embed in embeds]


def _move_places(target: OpenQueue, inputs: list[int], outputs: list[int]) -> None:
    """Outputs receive the hidden states of the last inputs, and their positions."""
    pool = target.space.embed_pool
    last = _places(target, inputs[len(inputs) - len(outputs) :])
    for output, place in zip(outputs, last, strict=True):
        pool.written[output] = True
        pool.places[output] = place


def check_step(target: OpenQueue, input_pages: list[int], output_page: int) -> tuple[Int32, Room]:
    """Checks the forward of one input, but for its embed and the queue's room. Returns what
    `queue_step` wants: physical input pages, and the place of keys and values.

    Raises:
        ApiError: as `enqueue_forward`.
    """
    space, pool = target.space, target.space.page_pool
    pages = space.pages.find(input_pages, pool.size)
    return pages, _room(pool, [space.pages.find_one(output_page)], 1)


def queue_step(
    target: OpenQueue, embed: int, pages: Int32, room: Room, adapter: int, attends: Sampler | None
) -> None:
    """Queues the forward of one embed, that takes its own hidden state, after `check_step`; of a
    sampler whose program chooses what is read, if one is given.
    """
    used: Int32 = target.space.page_pool.used.take(pages)
    embeds = [embed]
    command = ForwardCommand(embeds, pages, used, False, None, [], embeds, None, adapter)
    if attends is not None:
        command.attends, command.attend_step = attends.slot, attends.steps
    _queue(target, command, room)


def _queue(target: OpenQueue, command: ForwardCommand, room: Room | None) -> None:
    """Queues a forward that has been checked; the fill counts of the pages in `room` change."""
    pool = target.space.page_pool
    command.has_masked = pool.masked > 0 and bool(pool.masks[command.pages].any())
    if room is not None:
        changed, filled, command.output_slots = room
        command.output_pages = changed
        if len(changed) == 1:
            pool.used[changed[0]] = filled[0]
        else:
            pool.used[changed] = filled
    if _NONE_FILLED in command.page_used.tobytes():  # the worker need not see empty pages
        has_any = command.page_used > 0
        command.pages, command.page_used = command.pages[has_any], command.page_used[has_any]
    target.scheduler.enqueue(target.queue, command)


def mask_kvpage(instance: Instance, queue: int, pages: list[int], masks: Uint32) -> None:
    """Sets which filled slots of pages are masked."""
    target = queue_of(instance, queue, "forward")
    pool = target.space.page_pool
    physical = target.space.pages.find(pages, pool.size)
    if len(masks) != len(physical):
        raise invalid(f"{len(masks)} masks for {len(physical)} pages; give one a page")
    for page in physical.tolist():
        _check_mutable(pool, page)
    _check_distinct(physical.tolist(), pages, "page")
    beyond = masks.astype(np.uint64) >> pool.used[physical].astype(np.uint64)
    if beyond.any():
        i = int(np.argmax(beyond > 0))
        raise invalid(
            f"mask {int(masks[i]):#x} hides empty slots: page number {i} of the list has"
            f" {int(pool.used[physical[i]])} filled"
        )
    if len(physical) == 0:
        return
    target.queue.check_room()
    words = masks.astype(np.uint32)
    pool.set_masks(physical, words)
    target.scheduler.enqueue(target.queue, MaskKvCommand(physical, words))


def shift_kvpage(instance: Instance, queue: int, pages: list[int], distance: int) -> None:
    """Adds a distance to the positions of all that is in pages."""
    target = queue_of(instance, queue, "forward")
    facts, pool = target.model.description, target.space.page_pool
    if not facts.turns:
        raise unsupported(
            f"the keys of {facts.name!r} ({facts.architecture}) can't be turned to other positions:"
            " they are latents, or layers have a state; run the tokens again"
        )
    if abs(distance) > facts.max_position:
        raise invalid(
            f"a distance of {distance} positions; the model's context has {facts.max_position}"
        )
    physical = target.space.pages.find(pages, pool.size)
    for page in physical.tolist():
        _check_mutable(pool, page)
    _check_distinct(physical.tolist(), pages, "page")
    each = np.arange(pool.page_size, dtype=np.int32)
    filled = each < pool.used[physical][:, None]
    slots = (physical[:, None] * pool.page_size + each)[filled]
    if len(slots) == 0 or distance == 0:
        return
    target.queue.check_room()
    target.scheduler.enqueue(target.queue, ShiftKvCommand(physical, slots, distance))


def _check_written(written: NDArray[np.bool_], inputs: list[int]) -> None:
    if len(inputs) == 1 and written.item(inputs[0]):
        return
    if not all(map(written.item, inputs)):
        raise invalid(
            f"input number {int(np.argmin(written[inputs]))} is an embed that nothing was written"
            " to; embed a token into it first"
        )


def _check_outputs(outputs: list[int], spans: list[int], count: int) -> None:
    if len(outputs) > count:
        raise invalid(
            f"{len(outputs)} output embeds for {count} inputs; give as many as inputs at most"
        )
    _check_distinct(outputs, spans, "embed")


def _check_distinct(physical: list[int], spans: list[int], what: str) -> None:
    """Refuses a handle that is written twice; within one span there cannot be any."""
    if len(spans) > 2 and len(set(physical)) != len(physical):
        raise invalid(f"a {what} that is written to is in the list more than once")


def _check_mutable(pool: PagePool, page: int) -> None:
    if pool.immutable.item(page):
        raise ApiError(
            "immutable", "an exported page cannot change; copy it to a page of your own first"
        )


def _room(pool: PagePool, pages: list[int], count: int) -> Room:
    """The first `count` empty slots of distinct pages. Raises ApiError `page-full`, `immutable`."""
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


def _check_mask(mask: list[int], count: int, columns: int) -> list[int]:
    """Checks that a mask is one run-length row an input, each over all columns. Returns for each
    input the column behind the last one that it sees.
    """
    if len(mask) > MAX_MASK_NUMBERS:
        raise exceeded(f"a mask of {len(mask)} numbers; {MAX_MASK_NUMBERS} at most")
    ends = []
    at = 0
    for row in range(count):
        if at >= len(mask):
            raise invalid(f"a mask of {row} rows for {count} inputs")
        end = at + 1 + mask[at]
        if end > len(mask):
            raise invalid(
                f"mask row {row} says {mask[at]} runs, and {len(mask) - at - 1} numbers follow"
            )
        covered = sum(mask[at + 1 : end])
        if covered != columns:
            raise invalid(
                f"mask row {row} covers {covered} columns; there are {columns} (filled slots of the"
                " input pages, then inputs)"
            )
        ends.append(columns - (mask[end - 1] if mask[at] % 2 else 0))  # the last run may be hidden
        at = end
    if at != len(mask):
        raise invalid(f"{len(mask) - at} numbers follow the mask's {count} rows")
    return ends
