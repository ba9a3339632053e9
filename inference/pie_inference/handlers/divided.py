"""Runs forwards that do not fit in memory in parts, and refuses what is too large by itself."""

from __future__ import annotations

import gc

import numpy as np
import structlog
import torch

from pie_inference.device import DeviceFuture, completed
from pie_inference.handlers.base import ServedModel
from pie_inference.handlers.forward import forward, writes_outputs
from pie_inference.handlers.pages import clear
from pie_py.wire.plan import Attention, BatchResult, Forward, Int32

log = structlog.get_logger("pie.worker")

TOO_LARGE = (
    "out of memory: this forward needs more than the device has left; run fewer inputs at once,"
    " with smaller masks, or observe less attention"
)

Answer = tuple[DeviceFuture[Attention] | None, dict[int, str]]


def forward_within_memory(model: ServedModel, batch: Forward) -> DeviceFuture[BatchResult]:
    """As `forward`; it refuses the sequences for which there is no memory, and runs the others."""
    observed, refused = _in_parts(model, batch)
    if observed is None:
        return completed(BatchResult(refused=refused or None))
    return observed.then(lambda seen: BatchResult(attention=seen, refused=refused))


def _in_parts(model: ServedModel, batch: Forward) -> Answer:
    """What was observed, and why sequences were refused: halves a batch until its parts fit.

    A forward that fails for memory has written nothing but keys and values, which it writes again.
    """
    try:
        return forward(model, batch), {}
    except (torch.OutOfMemoryError, MemoryError):
        if model.ranks.size > 1:  # the others may have had enough
            raise
    # Outside the handler: there the error's frames would hold what the forward had taken.
    gc.collect()
    if model.device.type == "cuda":
        torch.cuda.empty_cache()
    count = batch.has_masked.size
    log.warning("no memory for a forward", sequences=count, inputs=batch.inputs.size)
    if count == 1:
        clear(model, writes_outputs(model, batch))
        return (completed(_nothing(1)) if batch.observed.any() else None), {0: TOO_LARGE}
    half = count // 2
    first, refused = _in_parts(model, part(batch, 0, half))
    second, more = _in_parts(model, part(batch, half, count))
    refused |= {half + i: text for i, text in more.items()}
    return _joined(first, half, second, count - half), refused


def part(batch: Forward, first: int, end: int) -> Forward:
    """Some consecutive sequences of a batch."""

    def offsets(starts: Int32) -> tuple[Int32, slice]:
        own = starts[first : end + 1]
        return (own - own[0]).astype(np.int32), slice(int(own[0]), int(own[-1]))

    def each(values: Int32) -> Int32:
        return values[first:end] if values.size else values

    input_starts, inputs = offsets(batch.input_starts)
    page_starts, pages = offsets(batch.page_starts)
    output_starts, outputs = offsets(batch.output_starts)
    mask_starts, mask = offsets(batch.mask_starts)
    return Forward(
        input_starts=input_starts,
        inputs=batch.inputs[inputs],
        page_starts=page_starts,
        pages=batch.pages[pages],
        page_used=batch.page_used[pages],
        has_masked=batch.has_masked[first:end],
        output_slots=batch.output_slots[inputs],
        output_starts=output_starts,
        outputs=batch.outputs[outputs],
        mask_starts=mask_starts,
        mask=batch.mask[mask],
        adapters=each(batch.adapters),
        observed=each(batch.observed),
        detail=each(batch.detail),
    )


def _joined(
    first: DeviceFuture[Attention] | None,
    count: int,
    second: DeviceFuture[Attention] | None,
    more: int,
) -> DeviceFuture[Attention] | None:
    """What both parts of a batch, of so many sequences, have observed."""
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
