"""What images of a size take, as the worker measures it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import trio

from pie_control.errors import ApiError
from pie_py.wire.images import ImageSize
from pie_py.wire.plan import ImageMeasured, MeasureImage

REMEMBERED = 4096
_Key: TypeAlias = tuple[str, ImageSize]


class Measured(NamedTuple):
    """What an image takes."""

    embeds: int
    positions: int


@dataclass(slots=True, eq=False)
class _Waiting:
    done: trio.Event = field(default_factory=trio.Event)
    error: ApiError | None = None


class ImageSizes:
    """Asks the worker once for each size: a model's processor is what knows."""

    def __init__(self, send: Callable[[MeasureImage], None]) -> None:
        """Takes how to send to the worker."""
        self._send = send
        self._known: OrderedDict[_Key, Measured] = OrderedDict()
        self._waiting: dict[_Key, _Waiting] = {}

    def known(self, model: str, size: ImageSize) -> Measured | None:
        """What was measured before."""
        found = self._known.get((model, size))
        if found is not None:
            self._known.move_to_end((model, size))
        return found

    async def measured(self, model: str, size: ImageSize) -> Measured:
        """Measures an image of a size. Raises ApiError: `invalid-argument` of a size that the model
        does not read, `worker-lost`.
        """
        key = model, size
        if (found := self.known(*key)) is not None:
            return found
        waiting = self._waiting.get(key)
        if waiting is None:
            waiting = self._waiting[key] = _Waiting()
            self._send(MeasureImage(model, size.width, size.height))
        await waiting.done.wait()
        if waiting.error is not None:
            raise waiting.error
        return self._known[key]

    def on_measured(self, answer: ImageMeasured) -> None:
        """Takes the worker's answer."""
        key = answer.model, ImageSize(answer.width, answer.height)
        if answer.error is None:
            self._known[key] = Measured(answer.embeds, answer.positions)
            if len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
            self._end(key, None)
        else:
            self._end(key, ApiError("invalid-argument", answer.error))

    def on_lost(self) -> None:
        """The worker is gone; another one may have other models."""
        self._known.clear()
        for key in list(self._waiting):
            self._end(key, ApiError("worker-lost", "the worker was lost; it measured an image"))

    def _end(self, key: _Key, error: ApiError | None) -> None:
        if (waiting := self._waiting.pop(key, None)) is not None:
            waiting.error = error
            waiting.done.set()
