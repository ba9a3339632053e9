"""Trait `input-image`: images into embeds."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from pie_control.api.binder import queue_of
from pie_control.api.text import positions_of
from pie_control.errors import exceeded, invalid
from pie_control.instances.instance import Instance
from pie_control.instances.turns import SlowCalls
from pie_control.models.image_sizes import ImageSizes, Measured
from pie_control.models.model import ModelService, OpenQueue
from pie_control.models.served import ServedModels
from pie_control.scheduler.commands.embeds import EmbedImageCommand
from pie_py.wire.images import FORMATS, MAX_ASPECT, ImageSize
from pie_py.wire.images import image_size as size_in_header

IMAGE_BYTES = 64 << 20  # of image files that an instance has queued
IMAGE_PIXELS = 1 << 25  # of one image: small files may hold very many


# Functions that may suspend the guest: the worker measures an image of a size that is new to it.
MEASURED_CALLS = ("num-embs-needed", "num-positions-needed", "embed-img")


class ImageCalls:
    """Embedding of images by the served models."""

    def __init__(self, models: ServedModels, sizes: ImageSizes, answers: SlowCalls) -> None:
        self._models, self._sizes, self._answers = models, sizes, answers

    def num_embs_needed(self, instance: Instance, model: str, width: int, height: int) -> Any:
        """Embeds that an image of a size takes."""
        size = ImageSize(width, height)
        return self._with(instance, self._models.service(model), size, lambda m: m.embeds)

    def num_positions_needed(self, instance: Instance, model: str, width: int, height: int) -> Any:
        """Positions that an image of a size takes."""
        size = ImageSize(width, height)
        return self._with(instance, self._models.service(model), size, lambda m: m.positions)

    def embed_img(
        self, instance: Instance, queue: int, image: bytes, positions: list[int], embeds: list[int]
    ) -> Any:
        """Queues the embedding of an image, of which only the header is looked at here."""
        target = queue_of(instance, queue, "input-image")
        size = _size(image)
        made = partial(_embed, target, size, image, positions, embeds)
        return self._with(instance, target.model, size, made)

    def _with(
        self,
        instance: Instance,
        service: ModelService,
        size: ImageSize,
        made: Callable[[Measured], Any],
    ) -> Any:
        """The answer about a size. Raises ApiError `unsupported`, as `_check_size`."""
        service.check_trait("input-image")
        _check_size(size)
        name = service.description.name
        if (known := self._sizes.known(name, size)) is not None:
            return made(known)

        async def work() -> Any:
            return made(await self._sizes.measured(name, size))

        return self._answers.start(instance, work)


def image_size(instance: Instance, image: bytes) -> tuple[int, int]:
    """Width and height of an image file, from its header."""
    found = _size(image)
    return found.width, found.height


def _embed(
    target: OpenQueue,
    size: ImageSize,
    image: bytes,
    positions: list[int],
    embeds: list[int],
    measured: Measured,
) -> None:
    pool, facts = target.space.embed_pool, target.model.description
    wanted = measured.embeds
    rows = target.space.embeds.find_list(embeds, pool.size)
    if len(rows) != wanted:
        raise invalid(f"{len(rows)} embeds for an image that takes {wanted}")
    if len(embeds) > 2 and len(set(rows)) != wanted:
        raise invalid("an embed is in the list more than once")
    places = positions_of(positions, measured.positions, facts.max_position)
    if facts.image_rows:
        if places != list(range(places[0], places[0] + len(places))):
            raise invalid("the positions of an image follow one another")
        places = places[:1] * wanted
    target.queue.check_room()
    _check_bytes(target, len(image))

    for row, place in zip(rows, places, strict=True):
        pool.written[row] = True
        pool.places[row] = place
    target.scheduler.enqueue(target.queue, EmbedImageCommand(size, image, places, rows))


def _size(image: bytes) -> ImageSize:
    """Size of an image file. Raises ApiError `invalid-argument`."""
    found = size_in_header(image)
    if found is None:
        raise invalid(
            f"{len(image)} bytes that are no image ({', '.join(FORMATS)} files are decoded)"
        )
    return found


def _check_size(size: ImageSize) -> None:
    """Refuses sizes that no model sees, and image bombs: small files of very many pixels.

    Raises:
        ApiError: `invalid-argument`, `limit-exceeded`.
    """
    if size.width == 0 or size.height == 0:
        raise invalid(f"an image of {size.width} x {size.height} pixels")
    if size.width * size.height > IMAGE_PIXELS:
        raise exceeded(
            f"an image of {size.width} x {size.height} pixels; {IMAGE_PIXELS} pixels at most: make"
            " it smaller"
        )
    if max(size.width, size.height) > MAX_ASPECT * min(size.width, size.height):
        raise invalid(
            f"an image of {size.width} x {size.height} pixels is too long a strip; its sides may"
            f" differ {MAX_ASPECT}-fold: cut it into parts"
        )


def _check_bytes(target: OpenQueue, size: int) -> None:
    """Refuses more bytes of images than an instance may have queued.

    Raises:
        ApiError: `limit-exceeded`.
    """
    queued = sum(
        len(item.file)
        for queue in target.queue.account.active
        for item in queue.pending
        if isinstance(item, EmbedImageCommand)
    )
    if queued + size > IMAGE_BYTES:
        raise exceeded(
            f"{queued} bytes of images are queued and {IMAGE_BYTES} may be; wait for some"
            " (synchronize) before queueing more"
        )
