"""The decoding of image files, and what an image costs."""

from __future__ import annotations

import io
import warnings
from typing import NamedTuple

from PIL import Image

from pie_py.wire.images import FORMATS, ImageSize, read_header, upright_size

# By the orientations that Exif numbers.
_TURNS = dict(enumerate(map(Image.Transpose, (0, 3, 1, 5, 4, 6, 2)), 2))


class Measured(NamedTuple):
    """The cost of an image of a size."""

    embeds: int
    positions: int


class BadImage(Exception):
    """A file that holds no image that can be decoded; the text says why."""


def decode_image(data: bytes, size: ImageSize) -> Image.Image:
    """The first image of a file, upright, as RGB; what is transparent, on white. The size is its
    header's, which has been checked: a file may name another one later. Raises `BadImage` if it
    cannot be decoded.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about corrupt metadata
            with Image.open(io.BytesIO(data), formats=FORMATS) as opened:
                header = read_header(data)
                if header is None or upright_size(header) != size:
                    raise ValueError("it says two different sizes")
                turn = _TURNS.get(header.orientation)
                if opened.format == "TIFF":  # Pillow turns these
                    header, turn = header._replace(width=size.width, height=size.height), None
                if opened.size != header[:2]:
                    raise ValueError("it says two different sizes")
                opened.load()
                upright = opened if turn is None else opened.transpose(turn)
                if upright.size != (size.width, size.height):
                    raise ValueError("it says two different sizes")
                return _on_white(upright)
    except Exception as error:  # decoders raise all kinds, from struct.error to SyntaxError
        raise BadImage(f"the image cannot be decoded: {error}") from error


def _on_white(image: Image.Image) -> Image.Image:
    """As RGB."""
    if not image.has_transparency_data:
        return image.convert("RGB")
    white = Image.new("RGBA", image.size, "white")
    white.alpha_composite(image.convert("RGBA"))
    return white.convert("RGB")
