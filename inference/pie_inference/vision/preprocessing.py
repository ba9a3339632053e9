"""Preprocessing of images for a vision tower, as checkpoints say: resize, cut, normalize."""

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
from pie_py.wire.images import MAX_LONGEST, ImageRule, ImageSize, tiling

# Means and deviations that checkpoints leave out, by what their processor is called.
CLIP_MEAN, CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
MAX_SQUARE = 4096  # pixels; a longer image is shrunk before it is padded, for the memory
PLAIN_MEAN = PLAIN_STD = (0.5, 0.5, 0.5)
WHERE = "preprocessor_config.json"  # in errors


@dataclass(frozen=True, slots=True)
class Normalization:
    """From the numbers of pixels, 0 to 255, to those that a tower sees."""

    factor: float  # the numbers are multiplied by
    mean: tuple[float, ...]  # is subtracted then
    std: tuple[float, ...]  # is divided by

    def __call__(self, image: Image.Image) -> NDArray[np.float32]:
        """Pixels `[3, height, width]` of an RGB image."""
        pixels = np.asarray(image, np.float32).transpose(2, 0, 1) * np.float32(self.factor)
        mean, std = (np.array(v, np.float32)[:, None, None] for v in (self.mean, self.std))
        found: NDArray[np.float32] = (pixels - mean) / std
        return found


def normalization(config: Mapping[str, Any], *, plain: bool) -> Normalization:
    """Reads the normalization of a preprocessor_config.json. Means and deviations are by default
    0.5 if `plain`, else those of CLIP. Raises `LoadError` if there is none, or for values that make
    no sense.
    """
    fields = Fields(config, "preprocessor_config.json")
    for step in ("do_rescale", "do_normalize"):
        if not fields.flag(step, True):
            raise LoadError(f"preprocessor_config.json: {step} false is not supported")
    return Normalization(
        factor=fields.number("rescale_factor", 1 / 255),
        mean=_colour(config, "image_mean", PLAIN_MEAN if plain else CLIP_MEAN),
        std=_colour(config, "image_std", PLAIN_STD if plain else CLIP_STD),
    )


@dataclass(frozen=True, slots=True)
class Preprocessing:
    """How the images of a checkpoint are prepared, in this order; None is left out."""

    size: int  # the tower's: height and width of what comes out
    square: tuple[int, int, int] | None  # pad to a square with this colour
    shortest: int | None  # resize so that the shorter side has this length; both sides if None
    crop: bool  # to the size, around the centre
    resample: Image.Resampling
    normalize: Normalization

    def __call__(self, image: Image.Image) -> NDArray[np.float32]:
        """Pixels `[3, size, size]` of an RGB image."""
        if self.square is not None:
            if max(image.size) > MAX_SQUARE:
                image.thumbnail((MAX_SQUARE, MAX_SQUARE), self.resample)
            image = _on_square(image, self.square)
        image = image.resize(self._resized(*image.size), self.resample)
        if self.crop:
            image = _centre(image, self.size)
        return self.normalize(image)

    def _resized(self, width: int, height: int) -> tuple[int, int]:
        if self.shortest is None:
            return self.size, self.size
        shorter, longer = min(width, height), max(width, height)
        stretched = int(self.shortest * longer / shorter)
        return (self.shortest, stretched) if width <= height else (stretched, self.shortest)


def values_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The values of a preprocessor_config.json; a processor_config.json has them in a table. Raises
    `LoadError` if images are to keep their size, which the tower may not take.
    """
    table = config.get("image_processor")
    values = table if isinstance(table, dict) else config
    if not Fields(values, WHERE).flag("do_resize", True):
        raise LoadError(f"{WHERE}: do_resize false is not supported")
    return values


def preprocessing(config: Mapping[str, Any], size: int) -> Preprocessing:
    """Reads a preprocessor_config.json, for a vision tower that takes images of that size. Raises
    `LoadError` for what is not supported.
    """
    config = values_of(config)
    fields = Fields(config, WHERE)
    kind = fields.text("image_processor_type", "CLIPImageProcessor")
    plain = kind.lower().startswith("siglip")
    normalize = normalization(config, plain=plain)
    pads = fields.flag("do_pad", False)
    if pads and not kind.lower().startswith("llava"):
        raise LoadError(f"{WHERE}: do_pad of a {kind} is not supported")
    shortest = _shortest(config)
    crop = fields.flag("do_center_crop", not plain)
    if shortest is None:
        _require_size(config, "size", size)
    if crop:
        _require_size(config, "crop_size", size)
    elif shortest is not None:
        raise LoadError(f"{WHERE}: size by the shortest edge without do_center_crop: not one size")
    return Preprocessing(
        size=size,
        square=_as_pixel(normalize.mean) if pads else None,
        shortest=shortest,
        crop=crop,
        resample=resampling(config, Image.Resampling.BICUBIC),
        normalize=normalize,
    )


def _shortest(config: Mapping[str, Any]) -> int | None:
    """Length of the shorter side after resizing, or None if both sides get one."""
    size = config.get("size")
    if isinstance(size, int) and not isinstance(size, bool):
        return size  # as the first processors wrote it
    if isinstance(size, dict) and "shortest_edge" in size:
        return Fields(size, "preprocessor_config.json: size").count("shortest_edge")
    return None


def _require_size(config: Mapping[str, Any], key: str, size: int) -> None:
    found = config.get(key)
    if isinstance(found, dict):
        found = found.get("height") if found.get("height") == found.get("width") else found
    if found is not None and found != size:
        raise LoadError(
            f"preprocessor_config.json: {key} is {found}, but the vision tower takes {size}"
        )


def _colour(config: Mapping[str, Any], key: str, default: tuple[float, ...]) -> tuple[float, ...]:
    found = config.get(key)
    if found is None:
        return default
    if not isinstance(found, list) or len(found) != 3:
        raise LoadError(f"preprocessor_config.json: {key!r} is {found!r}, not three numbers")
    return tuple(float(value) for value in found)


def _as_pixel(mean: tuple[float, ...]) -> tuple[int, int, int]:
    red, green, blue = (int(value * 255) for value in mean)
    return red, green, blue


def resampling(config: Mapping[str, Any], default: Image.Resampling) -> Image.Resampling:
    """The filter of a preprocessor_config.json. Raises `LoadError` if there is no such filter."""
    number: Any = config.get("resample", int(default))
    try:
        return Image.Resampling(number)
    except ValueError:
        raise LoadError(f"preprocessor_config.json: unknown resample {number!r}") from None


def _on_square(image: Image.Image, colour: tuple[int, int, int]) -> Image.Image:
    side = max(image.size)
    square = Image.new("RGB", (side, side), colour)
    square.paste(image, ((side - image.width) // 2, (side - image.height) // 2))
    return square


def _centre(image: Image.Image, size: int) -> Image.Image:
    """The middle of an image, with black around it if it is smaller."""
    left, top = (image.width - size) // 2, (image.height - size) // 2
    return image.crop((left, top, left + size, top + size))


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
        """Pixels `[tiles, 3, size, size]` of an RGB image, the whole last; rows and columns."""
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
    """Reads a preprocessor_config.json, for a vision tower that takes images of that size. Raises
    `LoadError` for what is not supported.
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
    """Reads a preprocessor_config.json, for a vision tower. Raises `LoadError` for what is not
    supported, or does not fit the tower.
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
