"""An image file's header, and its embeds and positions, the same for control process and worker."""

from __future__ import annotations

import math
from dataclasses import dataclass

from PIL import Image

from pie_py.wire.image_headers import Header, read_header

FORMATS = ("PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF")
MAX_LONGEST = 4096  # pixels, of an image that is cut into tiles
MAX_ASPECT = 200  # of the longer side to the shorter one
# Pillow would refuse large images by a limit of its own, for the whole process; ours is by the
# call.
Image.MAX_IMAGE_PIXELS = None
_SIDEWAYS = (5, 6, 7, 8)  # EXIF orientations that swap width and height


@dataclass(frozen=True, slots=True)
class ImageSize:
    """Width and height in pixels, when the image is upright."""

    width: int
    height: int


@dataclass(frozen=True, slots=True)
class ImageRule:
    """The number of embeds of an image in a model: fixed without `tile` and `block`."""

    whole: int = 0  # of an image that is not cut
    tile: int = 0  # side of the tiles that images are cut into, pixels
    longest: int = 0  # what the longer side is resized to before, pixels
    per_tile: int = 0
    per_row: int = 0  # of tiles
    cut: int = 0  # of one that is cut, in addition to its rows
    block: int = 0  # side of the square that becomes an embed, pixels; then nothing above holds
    least: int = 0  # pixels that an image is resized to have, at least
    most: int = 0

    def embeds(self, size: ImageSize) -> int:
        """Embeds of an image."""
        if self.block:
            return math.prod(self.grid(size))
        if self.longest <= self.tile:
            return self.whole
        plan = tiling(size, self.longest, self.tile)
        return self.cut + plan.rows * (self.per_row + plan.columns * self.per_tile)

    def positions(self, size: ImageSize) -> int:
        """Positions that an image takes: with `block` its embeds stand in a square of so many."""
        return max(self.grid(size)) if self.block else self.embeds(size)

    def grid(self, size: ImageSize) -> tuple[int, int]:
        """Rows and columns of an image's embeds, with `block`: its shape, within the bounds of its
        pixels, as Qwen 2 VL resizes it.
        """
        pixels = size.width * size.height
        sides = size.height / self.block, size.width / self.block
        rows, columns = (round(side) for side in sides)
        found = rows * columns * self.block**2
        if found > self.most:
            shrink = math.sqrt(pixels / self.most)
            rows, columns = (
                max(1, math.floor(side / shrink / self.block)) for side in (size.height, size.width)
            )
        elif found < self.least:
            grow = math.sqrt(self.least / pixels)
            rows, columns = (
                math.ceil(side * grow / self.block) for side in (size.height, size.width)
            )
        return rows, columns


@dataclass(frozen=True, slots=True)
class Tiling:
    """How Idefics 3 cuts an image."""

    resized: ImageSize  # first
    fitted: ImageSize  # then, to whole tiles
    rows: int
    columns: int


def tiling(size: ImageSize, longest: int, tile: int) -> Tiling:
    """Cuts an image whose longer side is resized to `longest`, more than a tile, into square tiles
    of a side.
    """
    width, height = _scaled(size.width, size.height, longest)
    width, height = width + width % 2, height + height % 2
    if max(width, height) > MAX_LONGEST:
        width, height = _scaled(width, height, MAX_LONGEST)
    resized = ImageSize(max(width, 1), max(height, 1))
    wide = -(-resized.width // tile) * tile
    high = -(-resized.height // tile) * tile
    aspect = resized.width / resized.height
    if resized.width >= resized.height:
        high = -(-int(wide / aspect) // tile) * tile
    else:
        wide = -(-int(high * aspect) // tile) * tile
    wide, high = max(wide, tile), max(high, tile)
    return Tiling(resized, ImageSize(wide, high), high // tile, wide // tile)


def _scaled(width: int, height: int, longest: int) -> tuple[int, int]:
    """Width and height of the same shape, the longer one as told."""
    aspect = width / height
    return (longest, int(longest / aspect)) if width >= height else (int(longest * aspect), longest)


def image_size(data: bytes) -> ImageSize | None:
    """Size of an image file, turned as its camera was held; None if it is none, or of another
    format than `FORMATS`.
    """
    found = read_header(data)
    return None if found is None else upright_size(found)


def upright_size(header: Header) -> ImageSize:
    """Size of an image, turned as its camera was held."""
    if header.orientation in _SIDEWAYS:
        return ImageSize(header.height, header.width)
    return ImageSize(header.width, header.height)
