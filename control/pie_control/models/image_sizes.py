"""The costs of images by size, as the worker measures them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple, TypeAlias

import trio
from cachetools import LRUCache

from pie_control.errors import ApiError, invalid
from pie_py.wire.images import ImageSize
from pie_py.wire.plan import ImageMeasured, MeasureImage

REMEMBERED = 4096
_Key: TypeAlias = tuple[str, ImageSize]


class Measured(NamedTuple):
    """The cost of an image."""

    embeds: int
    positions: int


class ImageSizes:
    """Asks the worker once for each size: a model's processor is what knows."""

    def __init__(self, send: Callable[[MeasureImage], None]) -> None:
        self._send = send
        self._known: LRUCache[_Key, Measured] = LRUCache(REMEMBERED)
        self._turn = trio.Lock()  # one at a time: plans are run in between
        self._asked: _Key | None = None
        self._answered = trio.Event()
        self._error: ApiError | None = None

    def known(self, model: str, size: ImageSize) -> Measured | None:
        """The cost that was measured before."""
        return self._known.get((model, size))

    async def measured(self, model: str, size: ImageSize) -> Measured:
        """Measures an image of a size. Raises ApiError: `invalid-argument` of a size that the model
        does not read, `worker-lost`.
        """
        key = model, size
        async with self._turn:
            if (found := self.known(*key)) is not None:
                return found
            self._asked, self._answered, self._error = key, trio.Event(), None
            self._send(MeasureImage(model, size.width, size.height))
            try:
                await self._answered.wait()
            finally:
                self._asked = None
            if self._error is not None:
                raise self._error
            return self._known[key]

    def on_measured(self, answer: ImageMeasured) -> None:
        """Takes the worker's answer."""
        key = answer.model, ImageSize(answer.width, answer.height)
        if answer.error is None:
            self._known[key] = Measured(answer.embeds, answer.positions)
        if key == self._asked:
            self._end(invalid(answer.error) if answer.error else None)

    def on_lost(self, models: Collection[str]) -> None:
        """The worker of these models is gone; another one may have others of these names."""
        for key in [key for key in self._known if key[0] in models]:
            del self._known[key]
        if self._asked is not None and self._asked[0] in models:
            self._end(ApiError("worker-lost", "the worker was lost; it measured an image"))

    def _end(self, error: ApiError | None) -> None:
        self._error = error
        self._answered.set()
