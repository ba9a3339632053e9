"""Handlers of samplers: made, and given tokens that they did not choose."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pie_inference.device import DeviceFuture
from pie_inference.errors import BadBatch
from pie_inference.handlers.base import ServedModel, require_below, require_lengths, require_offsets
from pie_py.device_programs.language import REMEMBERED
from pie_py.device_programs.program import ProgramFault
from pie_py.wire.device_programs import packed_states, unpacked, unpacked_states
from pie_py.wire.plan import BatchResult, FeedSampler, ReadState, SetSampler, WriteState


def set_sampler(model: ServedModel, batch: SetSampler) -> None:
    """Puts new samplers into slots; whatever was there is forgotten."""
    pool = model.samplers
    count = batch.samplers.size
    require_lengths("set_sampler", batch.samplers, batch.rows)
    require_below("set_sampler: sampler", batch.samplers, pool.size)
    require_below("set_sampler: row + 1", batch.rows + 1, pool.count_rows + 1)
    if batch.seeds.shape != (count, 2):
        raise BadBatch("set_sampler: seeds are not [n, 2]")
    require_lengths("set_sampler: freed", batch.freed)
    require_below("set_sampler: freed", batch.freed, pool.size)
    pool.device_programs.drop(batch.freed.tolist())
    pool.attend_programs.drop(batch.freed.tolist())
    try:
        bound, attend = unpacked(batch, pool.vocabulary)
    except ProgramFault as error:
        raise BadBatch(f"set_sampler: {error}") from None
    remembering = np.array([one.program.uses(*REMEMBERED) for one in bound], np.bool_)
    if (remembering & (batch.rows < 0)).any():
        raise BadBatch("set_sampler: a device program needs a row of remembered tokens")
    pool.set(batch.samplers, batch.seeds, batch.rows, bound)
    pool.attend_programs.set(batch.samplers.tolist(), attend)


def read_state(model: ServedModel, batch: ReadState) -> DeviceFuture[BatchResult]:
    """Reads what changes of device programs' state."""
    require_lengths("read_state", batch.samplers, batch.steps)
    require_below("read_state: sampler", batch.samplers, model.samplers.size)
    programs, attending = model.samplers.device_programs, model.samplers.attend_programs
    both = zip(batch.samplers.tolist(), batch.steps.tolist(), strict=True)
    found = [programs.state(*each) or attending.state(*each) for each in both]
    counts = [len(values) for values in found]
    tensors = [value for values in found for value in values]

    def answer(arrays: list[NDArray[Any]]) -> BatchResult:
        each = iter(arrays)
        parts = [b"".join(next(each).tobytes() for _ in range(count)) for count in counts]
        return BatchResult(values=packed_states(parts))

    return DeviceFuture(tensors, answer)


def write_state(model: ServedModel, batch: WriteState) -> None:
    """Gives device programs other values."""
    require_lengths("write_state", batch.samplers, batch.steps, batch.names, batch.lengths)
    require_below("write_state: sampler", batch.samplers, model.samplers.size)
    try:
        values = unpacked_states(batch)
        samplers, steps, names = batch.samplers, batch.steps, batch.names
        for each in zip(samplers.tolist(), steps.tolist(), names.tolist(), values, strict=True):
            model.samplers.device_programs.give(*each)
    except ProgramFault as error:
        raise BadBatch(f"write_state: {error}") from None


def feed_sampler(model: ServedModel, batch: FeedSampler) -> None:
    """Gives tokens to device programs that look back."""
    count = batch.samplers.size
    require_lengths("feed_sampler", batch.samplers, batch.generated, batch.steps)
    require_offsets("feed_sampler: starts", batch.starts, count, batch.tokens.size)
    require_below("feed_sampler: sampler", batch.samplers, model.samplers.size)
    require_below("feed_sampler: token", batch.tokens, model.network.shape.vocab_size)
    lengths = np.diff(batch.starts)
    within = np.arange(batch.tokens.size) - np.repeat(batch.starts[:-1], lengths)
    model.samplers.feed(
        np.repeat(batch.samplers, lengths),
        batch.tokens,
        np.repeat(batch.generated, lengths).astype(np.bool_),
        np.repeat(batch.steps, lengths) + within,
        np.repeat(lengths, lengths) - within - 1,
    )
