"""An image file's size, the same for control process and worker."""

from __future__ import annotations

from dataclasses import dataclass

from PIL import Image

from pie_py.wire.image_headers import Header, read_header

FORMATS = ("PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF")
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
