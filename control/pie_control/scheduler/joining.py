"""Batches of commands and of runs joined: they go to the worker as one."""

from __future__ import annotations

import numpy as np

from pie_control.commands.command import NOTHING
from pie_control.commands.forward import NO_ADAPTER
from pie_py.wire.plan import Batch, EmbedSampled, Forward, Int32, Sample


def joined(commands: Batch, steps: EmbedSampled | Forward | Sample) -> Batch:
    """One batch of a batch of commands and of one of the same kind of runs, in this order."""
    match commands, steps:
        case EmbedSampled() as first, EmbedSampled() as second:
            return EmbedSampled(
                np.concatenate([first.samplers, second.samplers]),
                np.concatenate([first.positions, second.positions]),
                np.concatenate([first.embeds, second.embeds]),
            )
        case Sample() as first, Sample() as second:
            return Sample(
                np.concatenate([first.embeds, second.embeds]),
                np.concatenate([first.samplers, second.samplers]),
                np.concatenate([first.steps, second.steps]),
                np.concatenate([first.top, second.top]),
                np.concatenate([first.masked, second.masked]),
                first.masks,
                _mixed(first.mixed, second.samplers.size),
            )
        case Forward() as first, Forward() as second:
            return _joined_forwards(first, second)
    raise TypeError(f"{commands.kind} and {steps.kind} are not one batch")


def _joined_forwards(first: Forward, second: Forward) -> Forward:
    before, after = first.has_masked.size, second.has_masked.size

    def each(one: Int32, two: Int32, absent: int) -> Int32:
        if not one.size and not two.size:
            return NOTHING
        parts = (one, before), (two, after)
        filled = [part if part.size else np.full(n, absent, np.int32) for part, n in parts]
        return np.concatenate(filled)

    return Forward(
        input_starts=_starts(first.input_starts, second.input_starts),
        inputs=np.concatenate([first.inputs, second.inputs]),
        page_starts=_starts(first.page_starts, second.page_starts),
        pages=np.concatenate([first.pages, second.pages]),
        page_used=np.concatenate([first.page_used, second.page_used]),
        has_masked=np.concatenate([first.has_masked, second.has_masked]),
        output_slots=np.concatenate([first.output_slots, second.output_slots]),
        output_starts=_starts(first.output_starts, second.output_starts),
        outputs=np.concatenate([first.outputs, second.outputs]),
        mask_starts=_starts(first.mask_starts, second.mask_starts),
        mask=np.concatenate([first.mask, second.mask]),
        adapters=each(first.adapters, second.adapters, NO_ADAPTER),
        observed=each(first.observed, second.observed, 0),
        detail=each(first.detail, second.detail, 0),
    )


def _mixed(first: Int32, runs: int) -> Int32:
    """What commands mix in, and so many runs, which mix nothing in."""
    return np.pad(first, ((0, runs), (0, 0)), constant_values=-1) if first.size else NOTHING


def _starts(first: Int32, second: Int32) -> Int32:
    """Offsets of both, one after the other."""
    return np.concatenate([first, second[1:] + first[-1]])
