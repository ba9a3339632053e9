"""Images, for models that read them (trait `input-image`)."""

from __future__ import annotations

from typing import NamedTuple

from inferlet import raw
from inferlet._sequence import UNKNOWN, Sequence
from inferlet.model import Model


class ImageSize(NamedTuple):
    """Width and height, pixels."""

    width: int
    height: int


def size_of(image: bytes) -> ImageSize:
    """Size of an image file.

    Raises:
        PieError: `invalid-argument` if it is no image.
    """
    return ImageSize(*raw.image_size(image))


def tokens_of(model: Model, image: bytes) -> int:
    """How many tokens' places an image takes among a context's tokens.

    Raises:
        PieError: `unsupported` if the model reads text only, `invalid-argument` if it is no image.
    """
    return raw.num_embs_needed(model.name, *raw.image_size(image))


async def append_image(sequence: Sequence, image: bytes) -> None:
    """Runs an image as what follows a sequence's tokens. Raises as `Context.image`."""
    model, queue = sequence.model, sequence.queue
    count = tokens_of(model, image)
    positions = raw.num_positions_needed(model.name, *raw.image_size(image))
    await sequence.flush()
    place = len(sequence)
    start = raw.alloc_emb(queue, count)
    try:
        raw.embed_img(queue, image, [place + sequence.shift, positions], [start, count])
        # Only the worker decodes the file. If it can't, the sequence has not changed yet.
        await sequence.synchronize()
        most = model.max_batch_tokens
        for first in range(0, count, most):
            part = min(most, count - first)
            last = first + part == count
            sequence.forward([UNKNOWN] * part, output=last, given=[start + first, part])
    finally:
        raw.dealloc_emb(queue, [start, count])
        sequence.note_image(place, len(sequence.tokens), positions)
    await sequence.flush()
