"""Decodes image files that come from anybody."""

from __future__ import annotations

import io
import warnings

from PIL import Image, ImageOps

from pie_py.images import FORMATS, TURNED_FORMATS


class BadImage(Exception):
    """A file that holds no image that can be decoded; the text says why."""


def decode_image(data: bytes) -> Image.Image:
    """The first frame of an image file, upright, as RGB.

    Raises:
        BadImage: if it cannot be decoded.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow's own, lower limit, and corrupt metadata
            with Image.open(io.BytesIO(data), formats=FORMATS) as opened:
                opened.load()
                upright: Image.Image = opened
                if opened.format in TURNED_FORMATS:
                    upright = ImageOps.exif_transpose(opened)
                return upright.convert("RGB")
    except Exception as error:  # decoders raise all kinds, from struct.error to SyntaxError
        raise BadImage(f"the image cannot be decoded: {error}") from error
