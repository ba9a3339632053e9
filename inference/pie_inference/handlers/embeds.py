"""Handlers that fill embeds: with tokens, sampled tokens, images, and other embeds."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pie_inference.device import DeviceFuture, completed, upload_index
from pie_inference.errors import BadBatch
from pie_inference.handlers.base import ServedModel, require_below, require_lengths
from pie_inference.vision.images import BadImage, decode_image
from pie_py.wire.images import ImageSize
from pie_py.wire.plan import (
    BatchResult,
    CopyEmbed,
    EmbedImage,
    EmbedSampled,
    EmbedText,
    ImageMeasured,
    MeasureImage,
)


def embed_text(model: ServedModel, batch: EmbedText) -> None:
    """Writes token embeddings and positions."""
    require_lengths("embed_text", batch.tokens, batch.positions, batch.embeds)
    require_below("embed_text: token", batch.tokens, model.network.shape.vocab_size)
    require_below("embed_text: position", batch.positions, model.network.shape.max_position)
    require_below("embed_text: embed", batch.embeds, model.embeds.size)
    hidden = model.network.embed(upload_index(batch.tokens, model.device))
    model.embeds.write(batch.embeds, hidden, batch.positions, batch.tokens)


UNKNOWN = "the sampler's last sample failed, so there is no token to embed"


def embed_sampled(model: ServedModel, batch: EmbedSampled) -> DeviceFuture[BatchResult]:
    """Writes embeddings of the samplers' last tokens; reports rows whose sampler has none.

    Those get zeros.
    """
    require_lengths("embed_sampled", batch.samplers, batch.positions, batch.embeds)
    require_below("embed_sampled: sampler", batch.samplers, model.samplers.size)
    require_below("embed_sampled: position", batch.positions, model.network.shape.max_position)
    require_below("embed_sampled: embed", batch.embeds, model.embeds.size)
    tokens = model.samplers.tokens.index_select(0, upload_index(batch.samplers, model.device))
    # Not on a GPU: the host would wait for it.
    known = tokens.numpy() if model.device.type == "cpu" else None
    if known is not None and int(known.min(initial=0)) >= 0:
        model.embeds.write(batch.embeds, model.network.embed(tokens), batch.positions, known)
        return completed(BatchResult(refused={}))
    hidden = model.network.embed(tokens.clamp(min=0))
    hidden.masked_fill_((tokens < 0)[:, None], 0.0)
    model.embeds.write(batch.embeds, hidden, batch.positions, known)

    def answer(arrays: list[NDArray[Any]]) -> BatchResult:
        lacking = np.flatnonzero(arrays[0] < 0).tolist()
        return BatchResult(refused=dict.fromkeys(lacking, UNKNOWN))

    return DeviceFuture([tokens], answer)


def copy_embed(model: ServedModel, batch: CopyEmbed) -> None:
    """Writes hidden states of other embeds, and their positions where no others are given."""
    require_lengths("copy_embed", batch.sources, batch.positions, batch.embeds)
    require_below("copy_embed: source", batch.sources, model.embeds.size)
    given = np.maximum(batch.positions, 0)
    require_below("copy_embed: position", given, model.network.shape.max_position)
    require_below("copy_embed: embed", batch.embeds, model.embeds.size)
    pool = model.embeds
    positions = np.where(batch.positions < 0, pool.positions[batch.sources], given)
    pool.copy(batch.sources, batch.embeds, positions)


def embed_image(model: ServedModel, batch: EmbedImage) -> DeviceFuture[BatchResult]:
    """Writes what the model reads of images, and positions.

    Images that cannot be decoded are refused. Their embeds are zeroed, so that nothing of an
    earlier owner shows in what follows.
    """
    encoder = model.network.images
    if encoder is None:
        raise BadBatch("embed_image: the model reads text only")
    require_lengths("embed_image", batch.positions, batch.embeds)
    require_below("embed_image: position", batch.positions, model.network.shape.max_position)
    require_below("embed_image: embed", batch.embeds, model.embeds.size)
    count = batch.lengths.size
    if batch.sizes.shape != (count, 2):
        raise BadBatch(f"embed_image: sizes of shape {batch.sizes.shape} for {count} images")
    if batch.sizes.size and int(batch.sizes.min()) < 1:
        raise BadBatch("embed_image: an image without pixels")
    sizes = [ImageSize(*size) for size in batch.sizes.tolist()]
    try:
        counts = [encoder.measure(size).embeds for size in sizes]
    except BadImage as error:
        raise BadBatch(f"embed_image: {error}") from error
    if batch.embeds.size != sum(counts):
        raise BadBatch(f"embed_image: {batch.embeds.size} embeds for images of {sum(counts)}")
    refused: dict[int, str] = {}
    ends = np.cumsum(counts).tolist()
    for i, (data, size) in enumerate(zip(_files(batch), sizes, strict=True)):
        own = slice(ends[i] - counts[i], ends[i])
        embeds, positions = batch.embeds[own], batch.positions[own]
        try:
            seen = encoder.encode(decode_image(data, size))
            if len(seen.hidden) != counts[i]:
                raise BadImage(f"it takes {len(seen.hidden)} embeds, and its size {counts[i]}")
            model.embeds.write_image(embeds, seen, positions)
        except BadImage as error:
            refused[i] = str(error)
            model.embeds.clear(embeds)
            model.embeds.place(embeds, positions)
    return completed(BatchResult(refused=refused))


def measure_image(model: ServedModel | None, order: MeasureImage) -> ImageMeasured:
    """The cost of an image of a size; the answer may say that the model reads none of it."""
    asked = order.model, order.width, order.height
    images = None if model is None else model.network.images
    if images is None:
        return ImageMeasured(*asked, 0, 0, f"{order.model} reads no images")
    try:
        with torch.inference_mode():
            found = images.measure(ImageSize(order.width, order.height))
    except BadImage as error:
        return ImageMeasured(*asked, 0, 0, str(error))
    return ImageMeasured(*asked, *found, None)


def _files(batch: EmbedImage) -> list[bytes]:
    """The files, without their padding. Raises `BadBatch` if their lengths disagree with what there
    is.
    """
    words = (batch.lengths.astype(np.int64) + 3) // 4
    if (batch.lengths < 0).any() or int(words.sum()) != batch.files.size:
        raise BadBatch(f"embed_image: files of {batch.files.size} words, not {int(words.sum())}")
    ends = np.cumsum(words)
    return [
        batch.files[end - size : end].tobytes()[:length]
        for end, size, length in zip(
            ends.tolist(), words.tolist(), batch.lengths.tolist(), strict=True
        )
    ]
