"""Runs the transformer over ragged sequences."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pie_inference.attention.observed import ObservedAttention
from pie_inference.attention.sequences import describe
from pie_inference.device import DeviceFuture, upload_index
from pie_inference.errors import BadBatch
from pie_inference.handlers.base import (
    NONE,
    ServedModel,
    require_below,
    require_lengths,
    require_offsets,
)
from pie_py.wire.plan import DETAILS, Attention, Clear, Forward


def forward(model: ServedModel, batch: Forward) -> DeviceFuture[Attention] | None:
    """Computes hidden states of the inputs, and stores keys, values and the wanted outputs.

    An output embed gets the position of its input, and is part of no image.

    Returns:
        What was attended to, if the batch observes any input.
    """
    _check(model, batch)
    if not batch.inputs.size:
        return None
    positions = model.embeds.positions[batch.inputs]
    sequences = describe(batch, positions, model.cache)
    model.cache.positions[sequences.input_slots] = positions
    outputs = _output_rows(batch)
    images = model.embeds.images(batch.inputs)
    graphs = model.graphs if images is None else None  # recorded steps know of no image
    if graphs is not None and graphs.run(batch, sequences, positions):
        model.cache.masked[sequences.input_slots] = False
        model.embeds.place(batch.outputs, positions[outputs])
        return None
    observes = bool(batch.observed.any())
    attention = model.attention.prepare(sequences, ordered=not observes)
    observed = None
    if observes:
        shape = model.network.shape
        observed = ObservedAttention(
            attention, batch, sequences, model.cache, shape.heads, shape.attention
        )
    computed = outputs  # rows that the last layer computes to the end
    if observed is not None and not outputs.size:  # without rows it would not attend at all
        computed = np.zeros(1, np.int32)
    every_row = computed.size == batch.inputs.size  # then results are in the order of the layers
    inputs, targets = batch.inputs, batch.outputs
    owners = np.repeat(batch.adapters, np.diff(batch.input_starts)) if batch.adapters.size else None
    if (order := attention.order) is not None:
        # From here on everything is numbered by places: where the layers have the inputs.
        inputs, positions = inputs[order], positions[order]
        images = model.embeds.images(inputs)
        owners = None if owners is None else owners[order]
        if every_row:
            targets = targets[order]
        else:
            places = np.empty(order.size, np.int32)
            places[order] = np.arange(order.size, dtype=np.int32)
            computed = places[computed]
    hidden = model.network.forward(
        model.embeds.read(inputs),
        upload_index(positions, model.device),
        observed or attention,
        None if every_row else upload_index(computed, model.device),
        None if owners is None else model.adapters.rows(owners, None if every_row else computed),
        images,
    )
    model.cache.masked[sequences.input_slots] = False  # a new token is live
    if outputs.size:
        model.embeds.write(targets, hidden, positions if every_row else positions[computed])
    return None if observed is None else observed.result()


def writes_outputs(model: ServedModel, batch: Forward) -> Clear:
    """The slots of the inputs' keys and values, and the output embeds."""
    return Clear(batch.output_slots[batch.output_slots >= 0], batch.outputs, NONE)


def _output_rows(batch: Forward) -> NDArray[np.int32]:
    """Inputs whose hidden states are wanted: the last ones of each sequence."""
    counts = np.diff(batch.output_starts)
    firsts = batch.input_starts[1:] - counts - batch.output_starts[:-1]
    rows: NDArray[np.int32] = np.repeat(firsts, counts) + np.arange(counts.sum(), dtype=np.int32)
    return rows


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
    if batch.observed.size:
        require_lengths("forward: observed", batch.observed, batch.detail, batch.has_masked)
        require_below("forward: detail", batch.detail, len(DETAILS))
        if np.any(batch.observed < 0) or np.any(batch.observed > np.diff(batch.input_starts)):
            raise BadBatch("forward: more inputs are observed than there are")
    if np.any(np.diff(batch.output_starts) > np.diff(batch.input_starts)):
        raise BadBatch("forward: a sequence has more outputs than inputs")
