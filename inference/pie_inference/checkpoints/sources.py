"""Sources of a checkpoint's tensors: read from its files, or made of what those hold."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

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

    def groups(self, at: int | None = None) -> Groups | None:
        """A weight, or one entry of several, as whole numbers in groups, if it is stored so."""
        return None


class Groups(NamedTuple):
    """A weight `numbers * scales + least`, scales and least values of each group of inputs."""

    numbers: torch.Tensor  # [out, in], uint8
    scales: torch.Tensor  # [out, groups], float32
    least: torch.Tensor  # [out, groups], float32
    bits: int  # of a number, 4 or 8


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
        self,
        shape: Shape,
        make: Callable[..., torch.Tensor],
        *parts: Source | None,
        groups: Callable[..., Groups | None] | None = None,
    ) -> None:
        """Takes the function, and the sources of its arguments; None for one that lacks. `groups`
        makes a weight in groups of them, if there are any.
        """
        self.shape = shape
        self._make, self._parts = make, parts
        self._groups = groups

    def read(self, at: int | None = None) -> torch.Tensor:
        """See `Source.read`."""
        return self._make(*(None if part is None else part.read(at) for part in self._parts))

    def groups(self, at: int | None = None) -> Groups | None:
        """See `Source.groups`."""
        if self._groups is None:
            return None
        return self._groups(*(None if part is None else part.read(at) for part in self._parts))


class ByRows(Made):
    """A tensor whose rows are those of others, arranged."""

    def groups(self, at: int | None = None) -> Groups | None:
        """See `Source.groups`."""
        stored = (None if part is None else part.groups(at) for part in self._parts)
        found = [groups for groups in stored if groups is not None]
        forms = {(groups.bits, groups.scales.shape[1]) for groups in found}
        if len(found) < len(self._parts) or len(forms) > 1:
            return None
        numbers, scales, least, (bits, *_) = zip(*found, strict=True)
        return Groups(self._make(*numbers), self._make(*scales), self._make(*least), bits)


class Entry(Source):
    """One entry of a tensor's first dimension."""

    def __init__(self, whole: Source, number: int) -> None:
        """Takes the whole, and which entry."""
        self.shape = whole.shape[1:]
        self._whole, self._number = whole, number

    def read(self, at: int | None = None) -> torch.Tensor:
        """See `Source.read`."""
        found = self._whole.read(self._number)
        return found if at is None else found[at]

    def groups(self, at: int | None = None) -> Groups | None:
        """See `Source.groups`."""
        return self._whole.groups(self._number) if at is None else None


def unreadable(file: Path, error: Exception) -> LoadError:
    """A sentence about a file."""
    return LoadError(f"{file} cannot be read, download it again: {error}")
