"""The interface of models that read images, and the decoding of image files."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from PIL import Image, ImageOps

from pie_py.wire.images import FORMATS, ImageRule, ImageSize, upright_size


@dataclass(frozen=True, slots=True)
class ImageEncoder:
    """Turns images into embeds."""

    rule: ImageRule  # how many embeds and positions an image takes
    # Hidden states `[embeds, hidden]` of each image, ready to be inputs beside embedded tokens.
    # Behind each is what is added after the model's first `image_layers` layers:
    # `[embeds, (1 + image_layers) * hidden]`.
    encode: Callable[[list[Image.Image]], list[torch.Tensor]]


class BadImage(Exception):
    """A file that holds no image that can be decoded; the text says why."""


def decode_image(data: bytes, size: ImageSize) -> Image.Image:
    """The image of a file, upright, as RGB. The size is that of its header, which has been checked:
    a file may name another one later. Raises `BadImage` if it cannot be decoded.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about corrupt metadata
            with Image.open(io.BytesIO(data), formats=FORMATS) as opened:
                if upright_size(opened) != size:
                    raise ValueError("it says two different sizes")
                opened.load()
                turned = opened.format != "PNG"
                upright = ImageOps.exif_transpose(opened) if turned else opened
                if (upright.width, upright.height) != (size.width, size.height):
                    raise ValueError("it says two different sizes")
                return upright.convert("RGB")
    except Exception as error:  # decoders raise all kinds, from struct.error to SyntaxError
        raise BadImage(f"the image cannot be decoded: {error}") from error
