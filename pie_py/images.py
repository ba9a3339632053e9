"""What an image file says of itself, read from its header only."""

from __future__ import annotations

import io
import warnings
from dataclasses import dataclass

from PIL import ExifTags, Image

FORMATS = ("PNG", "JPEG")
MAX_ASPECT = 200  # of the longer side to the shorter one
# Pillow would refuse large images by a limit of its own, for the whole process; ours is by the call.
Image.MAX_IMAGE_PIXELS = None
_SIDEWAYS = (5, 6, 7, 8)  # EXIF orientations that swap width and height
_MAX_SEGMENTS = 1000  # before the pixels of a JPEG; cameras write some tens
_PNG_START = b"\x89PNG\r\n\x1a\n"
_PNG_HEADER = 33  # bytes: the start, and the chunk that tells the size


@dataclass(frozen=True, slots=True)
class ImageSize:
    """Width and height in pixels, when the image is upright."""

    width: int
    height: int


def image_size(data: bytes) -> ImageSize | None:
    """Size of an image file, or None if it is none, or of another format than `FORMATS`.

    It takes little time whatever the file holds: nothing is decompressed, and only so many segments
    are read.
    """
    if data.startswith(_PNG_START):
        data = data[:_PNG_HEADER] + b"\0\0\0\0IDAT"  # what lies between may be compressed
    elif not _few_segments(data):
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(io.BytesIO(data), formats=FORMATS) as opened:
                return upright_size(opened)
    except Exception:  # header parsers raise all kinds, from struct.error to SyntaxError
        return None


def upright_size(image: Image.Image) -> ImageSize:
    """Size of an image, turned as its camera was held."""
    if image.format != "PNG" and image.getexif().get(ExifTags.Base.Orientation) in _SIDEWAYS:
        return ImageSize(image.height, image.width)
    return ImageSize(image.width, image.height)


def _few_segments(jpeg: bytes) -> bool:
    """Whether the pixels of a JPEG begin after not too many segments."""
    at = 2
    for _ in range(_MAX_SEGMENTS):
        if jpeg[at : at + 1] != b"\xff":
            return False
        marker = jpeg[at + 1 : at + 2]
        if marker == b"\xff":  # padding
            at += 1
        elif marker == b"\xda":  # the pixels
            return True
        else:
            at += 2 + max(2, int.from_bytes(jpeg[at + 2 : at + 4]))
    return False
