"""The steps of a plan: what an `Again` stands for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from pie_py.wire.plan import Again, Batch, EmbedSampled, EmbedText, Forward, Int32, Plan, Sample


def steps_of(plan: Plan, page_size: int) -> Iterator[list[Batch]]:
    """The batches of each step of a plan, made as they are asked for.

    Raises:
        ValueError: an `Again` does not follow a step that it can repeat.
    """
    batches = plan.batches
    first = next((i for i, batch in enumerate(batches) if isinstance(batch, Again)), len(batches))
    step = batches[:first]
    yield step
    for again in batches[first:]:
        match [batch for batch in step if batch.kind != EmbedText.kind][-3:], again:
            case [EmbedSampled() as embed, Forward() as forward, Sample() as sample], Again(slots):
                step = list(_following(embed, forward, sample, slots, page_size))
            case _:
                raise ValueError("not a plan: nothing can be done again there")
        yield step


def count_steps(plan: Plan) -> int:
    """How many steps a plan has."""
    return 1 + sum(isinstance(batch, Again) for batch in plan.batches)


def _following(
    embed: EmbedSampled, forward: Forward, sample: Sample, slots: Int32, page_size: int
) -> tuple[EmbedSampled, Forward, Sample]:
    """The step after another one.

    Raises:
        ValueError: that one is not of one input each, or of other sequences.
    """
    count = forward.has_masked.size
    sizes = {embed.embeds.size, forward.inputs.size, forward.output_slots.size, sample.embeds.size}
    if sizes != {count} or slots.size != count or forward.page_starts.size != count + 1:
        raise ValueError("not a plan: what is to be done again is no step of so many sequences")
    starts, pages, used = _seen_next(forward, page_size)
    keep = slots >= 0
    if not keep.all():
        slots = slots[keep]
        inside = np.repeat(keep, np.diff(starts))
        pages, used = pages[inside], used[inside]
        starts = np.concatenate([starts[:1], np.cumsum(np.diff(starts)[keep], dtype=np.int32)])
    each = np.arange(slots.size + 1, dtype=np.int32)
    return (
        EmbedSampled(embed.samplers[keep], embed.positions[keep] + 1, embed.embeds[keep]),
        replace(
            forward,
            input_starts=each,
            inputs=forward.inputs[keep],
            page_starts=starts,
            pages=pages,
            page_used=used,
            has_masked=forward.has_masked[keep],
            output_slots=slots,
            output_starts=each,
            outputs=forward.outputs[keep],
            mask_starts=np.zeros(slots.size + 1, np.int32),
            adapters=forward.adapters[keep] if forward.adapters.size else forward.adapters,
            attends=forward.attends[keep] if forward.attends.size else forward.attends,
            attend_steps=(
                forward.attend_steps[keep] + np.int32(1)
                if forward.attends.size
                else forward.attend_steps
            ),
        ),
        replace(
            sample,
            embeds=sample.embeds[keep],
            samplers=sample.samplers[keep],
            steps=sample.steps[keep] + np.uint32(1),
            top=sample.top[keep],
            masked=sample.masked[keep],
        ),
    )


def _seen_next(forward: Forward, page_size: int) -> tuple[Int32, Int32, Int32]:
    """Page starts, pages and their filled slots, with the slots that a forward has filled."""
    starts, pages, used = forward.page_starts, forward.pages, forward.page_used.copy()
    filled = forward.output_slots
    begun: NDArray[np.bool_] = filled % page_size == 0  # pages, which were not seen before
    used[starts[1:][~begun] - 1] += 1
    if begun.any():
        at = starts[1:][begun]
        pages = np.insert(pages, at, filled[begun] // page_size)
        used = np.insert(used, at, 1)
        starts = starts.copy()
        starts[1:] += np.cumsum(begun, dtype=np.int32)
    return starts, pages, used
