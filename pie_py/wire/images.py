"""An image file's size, the same for control process and worker, as its header tells it.

Little is looked at and nothing is decompressed, whatever the file holds.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from struct import error, unpack_from
from typing import NamedTuple

from PIL import Image

_MOST_PARTS = 1000  # that are looked at; cameras write some tens
_BYTES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4}
_WIDTH, _HEIGHT, _ORIENTATION, _TILE_WIDTH, _TILE_HEIGHT = 256, 257, 274, 322, 323  # of TIFF
_IN_XMP = re.compile(rb'tiff:Orientation(?:="|>)([1-8])')
_SIZES = {0xC0 + i for i in range(16) if i not in (4, 8, 12)}  # segments of a JPEG that tell it


class Header(NamedTuple):
    """Pixels as they are stored, and the number by which Exif tells their orientation."""

    width: int
    height: int
    orientation: int = 1


def read_header(data: bytes) -> Header | None:
    """The header of a PNG, JPEG, GIF, WebP, BMP or TIFF; None of another file."""
    for start, read in _READERS.items():
        if data.startswith(start):
            try:
                found = read(data)
            except (error, LookupError, ValueError):
                return None
            return found if found.width > 0 < found.height else None
    return None


def _png(data: bytes) -> Header:
    width, height = unpack_from(">II", data, 16)
    at = 8
    for _ in range(_MOST_PARTS):
        size, kind = unpack_from(">I4s", data, at)
        if kind in (b"eXIf", b"IDAT", b"IEND"):
            break
        at += 12 + size
    return Header(width, height, _orientation(data[at + 8 : at + 8 + size]))


def _jpeg(data: bytes) -> Header:
    """Until the pixels begin; the last one of several sizes counts."""
    at, width, height, turned = 2, 0, 0, 1
    for _ in range(_MOST_PARTS):
        start, kind = data[at], data[at + 1]
        if start != 0xFF:
            raise ValueError("no segment")
        if kind == 0xFF:  # padding
            at += 1
            continue
        size = max(2, *unpack_from(">H", data, at + 2))
        if kind == 0xE1 and turned == 1:
            turned = _orientation(data[at + 4 : at + 2 + size])
        elif kind in _SIZES:
            height, width = unpack_from(">HH", data, at + 5)
        elif kind == 0xDA:
            return Header(width, height, turned)
        at += 2 + size
    raise ValueError("too many segments")


def _gif(data: bytes) -> Header:
    """Few parts may precede the first frame: Pillow puts comments together one by one."""
    width, height, flags = unpack_from("<HHB", data, 6)
    at = 13 + (3 << (flags & 7) + 1 if flags & 0x80 else 0)  # behind the palette
    within = False  # an extension, which ends with an empty part
    for _ in range(_MOST_PARTS):
        if within:
            within = data[at] > 0
            at += 1 + data[at]
        elif data[at] == 0x2C:
            return Header(width, height)
        else:
            at, within = at + 2, True
    raise ValueError("too many parts")


def _webp(data: bytes) -> Header:
    kind = data[12:16]
    if data[8:12] != b"WEBP" or kind not in (b"VP8X", b"VP8L", b"VP8 "):
        raise ValueError("no WebP")
    if kind == b"VP8 ":
        width, height = (side & 0x3FFF for side in unpack_from("<HH", data, 26))
        return Header(width, height)
    if kind == b"VP8L":
        (bits,) = unpack_from("<I", data, 21)
        return Header((bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1)
    width, height = (1 + int.from_bytes(data[at : at + 3], "little") for at in (24, 27))
    at = 12
    for _ in range(_MOST_PARTS):
        kind, size = data[at : at + 4], int.from_bytes(data[at + 4 : at + 8], "little")
        if kind == b"EXIF":
            return Header(width, height, _orientation(data[at + 8 : at + 8 + size]))
        at += 8 + size + size % 2
    return Header(width, height)


def _bmp(data: bytes) -> Header:
    """Not of those in run lengths, which Pillow reads one by one."""
    (size,) = unpack_from("<I", data, 14)
    if size == 12:
        return Header(*unpack_from("<HH", data, 18))
    width, height, _, _, compression = unpack_from("<iiHHI", data, 18)
    if compression in (1, 2):
        raise ValueError("run lengths")
    return Header(width, abs(height))


def _tiff(data: bytes) -> Header:
    found = _numbers(data)
    width, height = found[_WIDTH], found[_HEIGHT]
    if found.get(_TILE_WIDTH, 0) * found.get(_TILE_HEIGHT, 0) > max(4 * width * height, 1 << 20):
        raise ValueError("a tile is larger than the image")
    return Header(width, height, found.get(_ORIENTATION, 1))


def _numbers(data: bytes) -> dict[int, int]:
    """Single numbers of the first directory of a TIFF, as which Exif is written as well. Raises
    `ValueError`: it is none, or its values lie over one another, and Pillow would copy each.
    """
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(data[:4])
    if order is None:
        raise ValueError("no TIFF")
    (at,) = unpack_from(f"{order}I", data, 4)
    (count,) = unpack_from(f"{order}H", data, at)
    found, size = {}, 0
    for entry in range(at + 2, at + 2 + 12 * count, 12):
        tag, kind, items = unpack_from(f"{order}HHI", data, entry)
        size += items * _BYTES.get(kind, 0)
        if items == 1 and kind in (3, 4):
            (found[tag],) = unpack_from(order + "_HI"[kind - 2], data, entry + 8)
    if size > len(data) or count > _MOST_PARTS:
        raise ValueError("values lie over one another")
    return found


def _orientation(notes: bytes) -> int:
    """The orientation that Exif, or XMP, tells."""
    try:
        return _numbers(notes.removeprefix(b"Exif\0\0")).get(_ORIENTATION, 1)
    except (error, ValueError):
        found = _IN_XMP.search(notes)
        return 1 if found is None else int(found[1])


_READERS: dict[bytes, Callable[[bytes], Header]] = {
    b"\x89PNG\r\n\x1a\n": _png,
    b"\xff\xd8\xff": _jpeg,
    b"GIF8": _gif,
    b"RIFF": _webp,
    b"BM": _bmp,
    b"II*\0": _tiff,
    b"MM\0*": _tiff,
}

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
