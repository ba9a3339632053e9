"""Cuts an image into tiles, as Idefics 3 wants it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from pie_inference.checkpoints.fields import Fields
from pie_inference.errors import LoadError
from pie_inference.vision.preprocessing import (
    WHERE,
    Normalization,
    normalization,
    resampling,
    values_of,
)
from pie_py.wire.images import MAX_LONGEST, ImageSize, tiling


@dataclass(frozen=True, slots=True)
class Tiles:
    """How the images of a checkpoint are cut and prepared."""

    size: int  # height and width of a tile, pixels
    longest: int  # what the longer side is resized to first
    cuts: bool  # whether larger images are cut
    resample: Image.Resampling
    normalize: Normalization

    @property
    def most(self) -> int:
        """Tiles in a row, or a column, at most; 0 if nothing is cut."""
        cuts = self.cuts and self.longest > self.size
        return -(-min(self.longest, MAX_LONGEST) // self.size) if cuts else 0

    def __call__(self, image: Image.Image) -> tuple[NDArray[np.float32], int, int]:
        """Pixels `[tiles, 3, size, size]` of an RGB image, the whole one last, its rows and
        columns.
        """
        tile = self.size, self.size
        plan = tiling(ImageSize(*image.size), self.longest, self.size)
        image = image.resize((plan.resized.width, plan.resized.height), self.resample)
        if not self.most:
            return self.normalize(image.resize(tile, self.resample))[None], 0, 0
        image = image.resize((plan.fitted.width, plan.fitted.height), self.resample)
        cut = [
            image.crop((x, y, x + self.size, y + self.size))
            for y in range(0, plan.fitted.height, self.size)
            for x in range(0, plan.fitted.width, self.size)
        ]
        cut.append(image.resize(tile, self.resample))
        return np.stack([self.normalize(part) for part in cut]), plan.rows, plan.columns


def tiles_of_config(config: Mapping[str, Any], size: int) -> Tiles:
    """Reads a preprocessor_config.json.

    Args:
        config: its values; they may lie below `image_processor`, as in a processor_config.json.
        size: of the images that the vision tower takes.

    Raises:
        LoadError: for what is not supported.
    """
    config = values_of(config)
    fields = Fields(config, WHERE)
    tile = Fields(fields.table("max_image_size"), f"{WHERE}: max_image_size")
    if (found := tile.count("longest_edge", 364)) != size:
        raise LoadError(f"{WHERE}: tiles of {found} pixels, but the vision tower takes {size}")
    longest = Fields(fields.table("size"), f"{WHERE}: size").count("longest_edge", 4 * 364)
    return Tiles(
        size=size,
        longest=longest,
        cuts=fields.flag("do_image_splitting", True),
        resample=resampling(config, Image.Resampling.LANCZOS),
        normalize=normalization(config, plain=True),
    )
