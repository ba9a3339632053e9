"""Text and images as one sequence, embedded and run by a worker's handlers."""

from __future__ import annotations

import itertools

import numpy as np
import torch

from pie_inference import handlers
from pie_py.wire.images import ImageSize, image_size
from pie_py.wire.plan import EmbedImage, EmbedText
from support.model_rig import Rig, ints


def batch_of(files: list[bytes], positions: list[int], embeds: list[int]) -> EmbedImage:
    words = b"".join(file + bytes(-len(file) % 4) for file in files)
    sizes = [image_size(file) or ImageSize(9, 9) for file in files]
    return EmbedImage(
        ints([(size.width, size.height) for size in sizes]),
        ints([len(file) for file in files]),
        np.frombuffer(words, np.uint32),
        ints(positions),
        ints(embeds),
    )


@torch.inference_mode()
def logits_with_images(rig: Rig, parts: list[list[int] | bytes], pieces: int = 1) -> torch.Tensor:
    """Logits `[tokens, vocab]` of text and images in turn, run in some pieces."""
    model = rig.model
    assert model.network.images is not None
    images = model.network.images
    at = position = 0
    for part in parts:
        if isinstance(part, list):
            count = positions = len(part)
        else:
            size = image_size(part)
            assert size is not None
            count, positions = images.measure(size)
        where = list(range(at, at + count))
        places = list(range(position, position + count))
        if isinstance(part, list):
            handlers.embeds.embed_text(model, EmbedText(ints(part), ints(places), ints(where)))
        else:
            places = [position] * count if images.in_rows else places
            assert (
                handlers.embeds.embed_image(model, batch_of([part], places, where)).get().refused
                == {}
            )
        at += count
        position += positions
    sequence = rig.sequence(at)
    cuts = np.linspace(0, at, pieces + 1).astype(int).tolist()
    for first, end in itertools.pairwise(cuts):
        rig.run(sequence, range(first, end), range(1024 + first, 1024 + end))
    return model.network.logits(model.embeds.read(ints(range(1024, 1024 + at)))).float()


def embed_image(rig: Rig, file: bytes, first: int) -> int:
    """Puts an image into embeds from `first` on; tells how many it took."""
    images, size = rig.model.network.images, image_size(file)
    assert images is not None
    assert size is not None
    where = list(range(first, first + images.measure(size).embeds))
    batch = batch_of([file], where, where)
    assert handlers.embeds.embed_image(rig.model, batch).get().refused == {}
    return len(where)
