"""What an image file says of itself, read from its header only."""

from __future__ import annotations

import io
import warnings
from dataclasses import dataclass

from PIL import ExifTags, Image

# Formats whose header tells the size without anything being decoded. (Pillow makes room for all the
# pixels of a WebP when it opens one.)
FORMATS = ("PNG", "JPEG", "GIF", "BMP")
TURNED_FORMATS = ("JPEG",)  # cameras write how they were held
MAX_ASPECT = 200  # of the longer side to the shorter one
# Pillow would refuse large images by a limit of its own, for the whole process; ours is by the call.
Image.MAX_IMAGE_PIXELS = None
_SIDEWAYS = (5, 6, 7, 8)  # EXIF orientations that swap width and height


@dataclass(frozen=True, slots=True)
class ImageSize:
    """Width and height in pixels, when the image is upright."""

    width: int
    height: int


def image_size(data: bytes) -> ImageSize | None:
    """Size of an image file, or None if it is none, or of another format than `FORMATS`."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(io.BytesIO(data), formats=FORMATS) as opened:
                width, height = opened.size
                turned = opened.format in TURNED_FORMATS
                if turned and opened.getexif().get(ExifTags.Base.Orientation) in _SIDEWAYS:
                    width, height = height, width
                return ImageSize(width, height)
    except Exception:  # header parsers raise all kinds, from struct.error to SyntaxError
        return None
