"""Sources of a checkpoint's tensors: read from its files, or made of what those hold."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from pie_inference.errors import LoadError

Shape = tuple[int, ...]


class Source(ABC):
    """A tensor that has not been read yet."""

    shape: Shape

    @abstractmethod
    def read(self, at: int | None = None) -> torch.Tensor:
        """The tensor, or of its first dimension only one entry. Raises `LoadError` if its file
        cannot be read.
        """


Sources = Mapping[str, Source]  # by the tensor's name


class Stored(Source):
    """A tensor in a safetensors file that is open."""

    def __init__(self, file: Path, opened: Any, name: str) -> None:
        """Reads only its shape."""
        self._file, self._opened, self._name = file, opened, name
        self.shape = tuple(opened.get_slice(name).get_shape())

    def read(self, at: int | None = None) -> torch.Tensor:
        """See `Source.read`."""
        try:
            if at is None:
                tensor: torch.Tensor = self._opened.get_tensor(self._name)
            else:
                tensor = self._opened.get_slice(self._name)[at]
        except (SafetensorError, OSError) as error:
            raise unreadable(self._file, error) from None
        return tensor


class Made(Source):
    """A tensor that is computed from others, which have the same first dimension."""

    def __init__(
        self, shape: Shape, make: Callable[..., torch.Tensor], *parts: Source | None
    ) -> None:
        """Takes the function, and the sources of its arguments; None for one that lacks."""
        self.shape = shape
        self._make, self._parts = make, parts

    def read(self, at: int | None = None) -> torch.Tensor:
        """See `Source.read`."""
        return self._make(*(None if part is None else part.read(at) for part in self._parts))


class Int8(Made):
    """A weight that is stored as int8 `[out, in]` and a scale for each output `[out, 1]`, for
    activations that are rounded to int8 row by row.
    """

    def __init__(
        self, make: Callable[..., torch.Tensor], numbers: Source, scale: Source, *parts: Source
    ) -> None:
        """Takes what widens `parts`, and those of them that a product in int8 takes."""
        super().__init__(numbers.shape, make, *parts)
        self.numbers, self.scale = numbers, scale


class Entry(Source):
    """One entry of a tensor's first dimension, rearranged."""

    def __init__(
        self,
        whole: Source,
        number: int,
        arrange: Callable[[torch.Tensor], torch.Tensor],
        shape: Shape,
    ) -> None:
        """Takes the whole, and which entry; `arrange` gives it its shape."""
        self.shape = shape
        self._whole, self._number, self._arrange = whole, number, arrange

    def read(self, at: int | None = None) -> torch.Tensor:
        """See `Source.read`."""
        found = self._arrange(self._whole.read(self._number))
        return found if at is None else found[at]


def unreadable(file: Path, error: Exception) -> LoadError:
    """What to say of a file."""
    return LoadError(f"{file} cannot be read, download it again: {error}")
