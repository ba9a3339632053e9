"""Images, for models that read them (trait `input-image`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from inferlet import raw
from inferlet._loop import done

if TYPE_CHECKING:
    from inferlet.context import Context
    from inferlet.model import Model


class ImageSize(NamedTuple):
    """Width and height, pixels."""

    width: int
    height: int


def size_of(image: bytes) -> ImageSize:
    """Size of an image file, a PNG or JPEG.

    Raises:
        PieError: `invalid-argument` if it is none.
    """
    return ImageSize(*raw.image_size(image))


def tokens_of(model: Model, image: bytes) -> int:
    """How many places an image takes in a model's context, as many as so many tokens.

    Raises:
        PieError: `unsupported` if the model reads text only, `invalid-argument` if it is no image.
    """
    return raw.num_embs_needed(model.name, *raw.image_size(image))


async def append_image(context: Context, image: bytes) -> None:
    """What `Context.image` does."""
    model, queue = context.model, context._queue
    count = tokens_of(model, image)
    await context.flush()
    start = raw.alloc_emb(queue, count)
    try:
        raw.embed_img(queue, image, [len(context), count], [start, count])
        # Only now is known whether the file can be decoded: if not, nothing has happened yet.
        await done(raw.synchronize(queue))
        most = model.max_batch_tokens
        for first in range(0, count, most):
            part = min(most, count - first)
            context._run_embeds([start + first, part], output=first + part == count)
    finally:
        raw.dealloc_emb(queue, [start, count])
    await context.flush()
