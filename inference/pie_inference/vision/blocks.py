"""Resizes an image to whole blocks of pixels, as Qwen 2 VL and its followers want it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from pie_inference.checkpoints.fields import Fields
from pie_inference.errors import LoadError
from pie_inference.vision.grid_transformer import GridSpec
from pie_inference.vision.preprocessing import (
    WHERE,
    Normalization,
    normalization,
    resampling,
    values_of,
)
from pie_py.wire.images import ImageRule, ImageSize

# Pixels of an image, where nothing is said.
_LEAST, _MOST = 56 * 56, 28 * 28 * 1280


@dataclass(frozen=True, slots=True)
class Blocks:
    """How the images of a checkpoint are prepared."""

    rule: ImageRule
    resample: Image.Resampling
    normalize: Normalization

    def __call__(self, image: Image.Image) -> NDArray[np.float32]:
        """Pixels `[3, height, width]` of an RGB image."""
        rows, columns = self.rule.grid(ImageSize(*image.size))
        side = self.rule.block
        return self.normalize(image.resize((columns * side, rows * side), self.resample))


def blocks_of_config(config: Mapping[str, Any], spec: GridSpec) -> Blocks:
    """Reads a preprocessor_config.json.

    Args:
        config: its values; they may lie below `image_processor`, as in a processor_config.json.
        spec: of the vision tower.

    Raises:
        LoadError: for what is not supported, or does not fit the tower.
    """
    config = values_of(config)
    fields = Fields(config, WHERE)
    sides = fields.count("patch_size", 14), fields.count("merge_size", 2)
    if sides != (spec.patch, spec.merge):
        raise LoadError(
            f"{WHERE}: patch_size {sides[0]} and merge_size {sides[1]}, but the vision tower has"
            f" {spec.patch} and {spec.merge}"
        )
    size = Fields(fields.table("size"), f"{WHERE}: size")
    least = fields.count("min_pixels", size.count("shortest_edge", _LEAST))
    most = fields.count("max_pixels", size.count("longest_edge", _MOST))
    if not (spec.patch * spec.merge) ** 2 <= most >= least:
        raise LoadError(f"{WHERE}: images of {least} to {most} pixels are not supported")
    return Blocks(
        rule=ImageRule(block=spec.patch * spec.merge, least=least, most=most),
        resample=resampling(config, Image.Resampling.BICUBIC),
        normalize=normalization(config, plain=False),
    )
