"""The pool of embeds of one model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from pie_inference.device import Int32, upload_index, zeros


@dataclass(frozen=True, slots=True)
class ImageInputs:
    """Those of a forward's inputs that are parts of images with places."""

    rows: torch.Tensor  # [n] int64, which inputs
    places: torch.Tensor  # [n, 3] int64, see `Seen`
    features: torch.Tensor  # [n, layers, hidden], what is added after the first layers


class Seen(NamedTuple):
    """An image as a model reads it, ready to be inputs beside embedded tokens."""

    hidden: torch.Tensor  # [n, hidden]
    # `[n, 3]` int64, of models whose images have rows and columns how much further on each is in
    # three directions; of models whose images are seen whole, its place among the inputs that see
    # each other, how many they are, and 0.
    places: torch.Tensor | None
    features: torch.Tensor | None  # [n, layers, hidden], added after the first layers


class EmbedPool:
    """Hidden states `[embeds + 1, hidden]` on the device, and the position of each on the host.

    Of models whose images have places, an embed also has its own, if it is of one, and features
    that are added to the hidden states after the first layers.
    """

    def __init__(
        self,
        embeds: int,
        hidden: int,
        dtype: torch.dtype,
        device: torch.device,
        layers: int | None = None,
    ) -> None:
        """Allocates the pool, zeroed, and one more row, `padding`: recorded steps write unused rows
        there. Further features are added after so many layers; None if images have no
        places.
        """
        self._device = device
        self.size = self.padding = embeds
        self.hidden = zeros((embeds + 1, hidden), dtype, device)
        self.positions: Int32 = np.zeros(embeds, np.int32)
        # What an adapter may change: the token whose embedding an embed is, and the adapter that it
        # was computed with; -1 for none.
        self.tokens: Int32 = np.full(embeds, -1, np.int32)
        self.owners: Int32 = np.full(embeds, -1, np.int32)
        # -1 is no part of an image.
        self._places: Int32 = np.full((embeds, 3), -1, np.int32)
        self._have_places = layers is not None
        self._features = zeros((embeds, layers or 0, hidden), dtype, device)

    def read(self, embeds: Int32) -> torch.Tensor:
        """Hidden states of embeds, `[n, hidden]`."""
        return self.hidden.index_select(0, upload_index(embeds, self._device))

    def images(self, embeds: Int32) -> ImageInputs | None:
        """The places of inputs in images, in rows and columns; None if none is of one."""
        if not self._have_places:
            return None
        places = self._places[embeds]
        rows = np.flatnonzero(places[:, 0] >= 0)
        if not rows.size:
            return None
        features = self._features.index_select(0, upload_index(embeds[rows], self._device))
        return ImageInputs(
            upload_index(rows, self._device),
            upload_index(places[rows], self._device),
            features,
        )

    def write(
        self,
        embeds: Int32,
        hidden: torch.Tensor,
        positions: Int32,
        tokens: NDArray[np.integer[Any]] | None = None,
    ) -> None:
        """Sets hidden states and positions of embeds, and the tokens whose embeddings they are."""
        self.put(embeds, hidden)
        self.place(embeds, positions)
        if tokens is not None:
            self.tokens[embeds] = tokens

    def put(self, embeds: Int32, hidden: torch.Tensor) -> None:
        """Sets hidden states alone."""
        self.hidden.index_copy_(0, upload_index(embeds, self._device), hidden)

    def place(self, embeds: Int32, positions: Int32) -> None:
        """Sets positions of embeds that are of no image."""
        self.positions[embeds] = positions
        self.tokens[embeds] = self.owners[embeds] = -1
        if self._have_places:
            self._places[embeds] = -1

    def write_image(self, embeds: Int32, seen: Seen, positions: Int32) -> None:
        """Sets all that embeds of an image have, at positions `[n]`."""
        self.write(embeds, seen.hidden, positions)
        if seen.places is None:
            return
        self._places[embeds] = seen.places.cpu().numpy()
        at = upload_index(embeds, self._device)
        if seen.features is None:
            self._features.index_fill_(0, at, 0)
        else:
            self._features.index_copy_(0, at, seen.features)

    def copy(
        self,
        sources: Int32,
        targets: Int32,
        positions: Int32,
    ) -> None:
        """Makes embeds copies of others, at positions `[n]`; all are read before any is written."""
        tokens, owners = self.tokens[sources], self.owners[sources]
        features = self._features.index_select(0, upload_index(sources, self._device))
        places = torch.from_numpy(self._places[sources])
        self.write_image(targets, Seen(self.read(sources), places, features), positions)
        self.tokens[targets], self.owners[targets] = tokens, owners

    def clear(self, embeds: Int32) -> None:
        """Writes zeros, at position 0."""
        if embeds.size:
            self.place(embeds, np.zeros(1, np.int32))
            self.hidden.index_fill_(0, upload_index(embeds, self._device), 0)
