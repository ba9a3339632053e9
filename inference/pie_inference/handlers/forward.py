"""Runs the transformer over ragged sequences, in parts if they do not fit in memory together."""

from __future__ import annotations

import gc
from collections.abc import Callable

import numpy as np
import structlog
import torch
from numpy.typing import NDArray

from pie_inference.attention import PreparedAttention
from pie_inference.attention.attended import AttendedAttention, AttendedRows
from pie_inference.attention.observed import ObservedInputs, WatchedAttention
from pie_inference.attention.prompt_observers import PromptObservers
from pie_inference.attention.sequences import (
    PartOfImage,
    Sequences,
    describe,
    lengths,
    output_rows,
    ranges,
    see_whole,
    short_offsets,
)
from pie_inference.device import DeviceFuture, Int32, completed, upload_index
from pie_inference.errors import BadBatch
from pie_inference.handlers.base import (
    NONE,
    ServedModel,
    require_below,
    require_lengths,
    require_offsets,
)
from pie_inference.handlers.pages import clear
from pie_inference.sampling.attend_programs import AttendStep
from pie_inference.sampling.layer_programs import LayerChanges, LayerStep
from pie_py.wire.plan import DETAILS, Attention, BatchResult, Clear, Forward

log = structlog.get_logger("pie.worker")

TOO_LARGE = (
    "out of memory: this forward needs more than the device has left; run fewer inputs at once,"
    " with smaller masks, or observe less attention"
)
PART_OF_IMAGE = (
    "inputs of an image see each other in this model, so one forward takes all of them (and"
    " `max_batch_tokens` must not be less)"
)

# Arrays of a batch: what starts of sequences count, and what there is of each, if at all.
RAGGED = {
    "input_starts": ("inputs", "output_slots"),
    "page_starts": ("pages", "page_used"),
    "output_starts": ("outputs",),
    "mask_starts": ("mask",),
}
OF_SEQUENCES = ("has_masked", "adapters", "observed", "detail", "attends", "attend_steps")

Answer = tuple[DeviceFuture[Attention] | None, dict[int, str]]


def forward_within_memory(model: ServedModel, batch: Forward) -> DeviceFuture[BatchResult]:
    """As `forward`; it refuses the sequences for which there is no memory, and runs the others."""
    observed, refused = _in_parts(model, batch)
    if observed is None:
        return completed(BatchResult(refused=refused or None))
    return observed.then(lambda seen: BatchResult(values=seen, refused=refused))


def _in_parts(model: ServedModel, batch: Forward) -> Answer:
    """The observations, and why sequences were refused: halves a batch until its parts fit.

    A forward that fails for memory has written nothing but keys and values, which it writes again.
    """
    try:
        return forward(model, batch), {}
    except (torch.OutOfMemoryError, MemoryError):
        if model.ranks.size > 1:  # the others may have had enough
            raise
        why = TOO_LARGE
    except PartOfImage:
        why = PART_OF_IMAGE
    # Outside the handler: there the error's frames would hold what the forward had taken.
    gc.collect()
    if model.device.type == "cuda":
        torch.cuda.empty_cache()
    count = batch.has_masked.size
    log.warning("a forward is halved", sequences=count, inputs=batch.inputs.size, why=why)
    if count == 1:
        clear(model, writes_outputs(model, batch))
        return (completed(_nothing(1)) if batch.observed.any() else None), {0: why}
    half = count // 2
    first, refused = _in_parts(model, part(batch, np.arange(half)))
    second, more = _in_parts(model, part(batch, np.arange(half, count)))
    refused |= {half + i: text for i, text in more.items()}
    return _joined(first, half, second, count - half), refused


def part(batch: Forward, sequences: NDArray[np.intp]) -> Forward:
    """Some sequences of a batch, in this order."""

    found: dict[str, Int32] = {}
    for starts, names in RAGGED.items():
        before = getattr(batch, starts)
        counts = lengths(before)[sequences]
        index = ranges(before[:-1][sequences], counts)
        found[starts] = short_offsets(counts)
        found |= {name: getattr(batch, name)[index] for name in names}
    for name in OF_SEQUENCES:
        values = getattr(batch, name)
        found[name] = values[sequences] if values.size else values
    return Forward(**found)


def _joined(
    first: DeviceFuture[Attention] | None,
    count: int,
    second: DeviceFuture[Attention] | None,
    more: int,
) -> DeviceFuture[Attention] | None:
    """The observations of both parts of a batch, of so many sequences."""
    if first is None and second is None:
        return None
    waited = [
        later or completed(_nothing(size)) for later, size in ((first, count), (second, more))
    ]

    def join(arrays: object) -> Attention:
        a, b = (later.get() for later in waited)
        starts = np.concatenate([a.starts, a.starts[-1] + b.starts[1:]]).astype(np.int32)
        return Attention(starts, np.concatenate([a.values, b.values]))

    return DeviceFuture((), join)


def _nothing(count: int) -> Attention:
    return Attention(np.zeros(count + 1, np.int32), np.zeros(0, np.float32))


def forward(model: ServedModel, batch: Forward) -> DeviceFuture[Attention] | None:
    """Computes hidden states of the inputs, and stores keys, values and the wanted outputs. Returns
    what was attended to, if the batch observes any input.

    An output embed gets the position of its input, and is part of no image.
    """
    _check(model, batch)
    if not batch.inputs.size:
        return None
    positions = model.embeds.positions[batch.inputs]
    sequences = describe(batch, positions, model.cache)
    images = model.embeds.images(batch.inputs)
    if images is not None and model.network.images is not None and model.network.images.whole:
        see_whole(sequences, images.rows.cpu().numpy(), images.places.cpu().numpy())
    if (cut := _first_of_another_kind(model, batch)) is not None:
        count = batch.has_masked.size
        first = forward(model, part(batch, np.arange(cut)))
        second = forward(model, part(batch, np.arange(cut, count)))
        return _joined(first, cut, second, count - cut)
    model.cache.positions[sequences.input_slots] = positions
    outputs = output_rows(batch)
    steps = (model.graphs or model.fused_steps) if images is None else None
    attended = observers = changes = None
    if batch.attends.size and (batch.attends >= 0).any():
        attended, observers = _programs(model, batch, sequences)
        changes = _changes(model, batch)
    watches = [each for each in (attended, observers) if each is not None]
    if steps is not None and steps.run(batch, sequences, positions, watches, changes):
        model.cache.masked[sequences.input_slots] = False
        model.embeds.place(batch.outputs, positions[outputs])
        _note_owners(model, batch)
        return None
    observed = None
    if batch.observed.any():
        shape = model.network.shape
        observed = ObservedInputs(batch, sequences, model.cache, shape.heads, shape.attention)
    noted = [each for each in (observed, observers) if each is not None]
    attention = _prepared(model, batch, sequences, attended)
    if noted:
        attention = WatchedAttention(attention, noted)
    attention.changes = changes
    computed = outputs  # rows that the last layer computes to the end
    if noted and not outputs.size:  # without rows it would not attend at all
        computed = np.zeros(1, np.int64)
    every_row = computed.size == batch.inputs.size
    owners = np.repeat(batch.adapters, np.diff(batch.input_starts)) if batch.adapters.size else None
    given = model.embeds.read(batch.inputs)
    if owners is not None:
        model.adapters.embed_(given, model.embeds.tokens[batch.inputs], owners)
    hidden = model.network.forward(
        given,
        upload_index(positions, model.device),
        attention,
        None if every_row else upload_index(computed, model.device),
        None if owners is None else model.adapters.rows(owners, None if every_row else computed),
        images,
    )
    model.cache.masked[sequences.input_slots] = False  # a new token is live
    if outputs.size:
        model.embeds.write(batch.outputs, hidden, positions[computed])
        _note_owners(model, batch)
    return None if observed is None else observed.result()


def _note_owners(model: ServedModel, batch: Forward) -> None:
    """The head may be another one for what an adapter was used for."""
    if batch.adapters.size:
        owners = np.repeat(batch.adapters, np.diff(batch.output_starts))
        model.embeds.owners[batch.outputs] = owners


def _programs(
    model: ServedModel, batch: Forward, sequences: Sequences
) -> tuple[AttendedRows | None, PromptObservers | None]:
    """Rows that programs of the stage `attend` choose for, and those that observe their prompt
    before its first token.
    """
    choosing = batch.attends >= 0
    programs = model.samplers.attend_programs.of
    if not programs.keys() >= {*batch.attends[choosing].tolist()}:
        raise BadBatch("forward: a sampler without a program of the stage `attend`")
    choosing[choosing] = [not programs[i].in_layers for i in batch.attends[choosing].tolist()]
    if not choosing.any():
        return None, None
    if model.key_bounds is None:
        raise BadBatch("forward: the model takes no programs of the stage `attend`")
    shape = model.network.shape
    last, heads = len(shape.attention) - 1, (shape.heads, shape.kv_heads)

    def begin(i: int) -> Callable[[int, int], AttendStep]:
        attender, step = programs[int(batch.attends[i])], int(batch.attend_steps[i])
        return lambda pages, tokens: AttendStep(attender, step, heads, pages, tokens, last)

    members = np.flatnonzero(choosing).tolist()
    rows = {i: begin(i) for i in members if batch.attend_steps[i]}
    prompts = {
        i: begin(i)
        for i in members
        if i not in rows and programs[int(batch.attends[i])].observes_prompt
    }
    cache, layers = model.cache, shape.attention
    attended = observers = None
    if rows:
        bounds = model.key_bounds
        attended = AttendedRows(sequences, rows, cache, bounds, layers, model.row_attention)
    if prompts:
        observers = PromptObservers(sequences, prompts, cache, layers)
    return attended, observers


def _changes(model: ServedModel, batch: Forward) -> LayerChanges | None:
    """Applies programs in the layers to their sequences; to prompts those that ask for them."""
    programs = model.samplers.attend_programs
    found: list[tuple[slice, LayerStep]] = []
    for i in np.flatnonzero(batch.attends >= 0).tolist():
        own, step = programs.of[int(batch.attends[i])], int(batch.attend_steps[i])
        if own.in_layers and (step or own.observes_prompt):
            if programs.lens is None:
                raise BadBatch("forward: no program runs in the layers of transformers' modules")
            first, end = int(batch.input_starts[i]), int(batch.input_starts[i + 1])
            if not step and own.executable.program.window:  # of a prompt, its last input
                if batch.output_starts[i] == batch.output_starts[i + 1]:
                    continue  # it is in another part
                first = end - 1
            found.append((slice(first, end), LayerStep(own, step, programs.lens)))
    return LayerChanges(found) if found else None


def _prepared(
    model: ServedModel,
    batch: Forward,
    sequences: Sequences,
    attended: AttendedRows | None,
) -> PreparedAttention:
    """The attention of a batch, layer by layer."""
    if attended is None:
        return model.attention.prepare(sequences)
    attention: PreparedAttention | None = None
    choosing = np.zeros(batch.has_masked.size, np.bool_)
    choosing[attended.members] = True
    if not choosing.all():
        others = part(batch, np.flatnonzero(~choosing))
        positions = model.embeds.positions[others.inputs]
        attention = model.attention.prepare(describe(others, positions, model.cache))
    return AttendedAttention(attention, attended, batch.inputs.size, model.device)


def _first_of_another_kind(model: ServedModel, batch: Forward) -> int | None:
    """Where a batch is to be cut so that how a sequence is computed does not depend on others."""
    if model.fused_steps is None or not model.fused_steps.prompts:
        return None
    changes = np.flatnonzero(np.diff(model.fused_steps.takes(batch)))
    return int(changes[0]) + 1 if changes.size else None


def writes_outputs(model: ServedModel, batch: Forward) -> Clear:
    """The slots of the inputs' keys and values, and the output embeds."""
    return Clear(batch.output_slots[batch.output_slots >= 0], batch.outputs, NONE)


def _check(model: ServedModel, batch: Forward) -> None:
    """Raises `BadBatch` unless all offsets and indices lie within what they point into."""
    count = batch.has_masked.size
    require_offsets("forward: input_starts", batch.input_starts, count, batch.inputs.size)
    require_offsets("forward: page_starts", batch.page_starts, count, batch.pages.size)
    require_offsets("forward: output_starts", batch.output_starts, count, batch.outputs.size)
    require_offsets("forward: mask_starts", batch.mask_starts, count, batch.mask.size)
    require_lengths("forward: inputs and output_slots", batch.inputs, batch.output_slots)
    require_lengths("forward: pages and page_used", batch.pages, batch.page_used)
    require_below("forward: input", batch.inputs, model.embeds.size)
    require_below("forward: page", batch.pages, model.cache.pages)
    require_below("forward: page_used", batch.page_used, model.cache.page_size + 1)
    require_below("forward: output slot + 1", batch.output_slots + 1, model.cache.slots + 1)
    require_below("forward: output", batch.outputs, model.embeds.size)
    if batch.adapters.size:
        require_lengths("forward: adapters", batch.adapters, batch.has_masked)
    if batch.attends.size:
        require_lengths("forward: attends", batch.attends, batch.attend_steps, batch.has_masked)
    if batch.observed.size:
        require_lengths("forward: observed", batch.observed, batch.detail, batch.has_masked)
        require_below("forward: detail", batch.detail, len(DETAILS))
        if np.any(batch.observed < 0) or np.any(batch.observed > np.diff(batch.input_starts)):
            raise BadBatch("forward: more inputs are observed than there are")
    if (lengths(batch.output_starts) > lengths(batch.input_starts)).any():
        raise BadBatch("forward: a sequence has more outputs than inputs")
