"""Interface `input-image`: embeds of images."""

from __future__ import annotations

from inferlet._bindings import Err
from inferlet._bindings import input_image as interface
from inferlet.errors import PieError
from inferlet.raw._convert import as_bytes, as_text, as_u32, as_u32s


def num_embs_needed(model: str, width: int, height: int) -> int:
    """How many embeds an image of so many pixels takes.
    Errors: `unknown-model`, `unsupported` (the model reads text only), `invalid-argument` (no
    pixels, or one side more than 200 times the other), `limit-exceeded` (too many pixels).
    """
    try:
        answer: int = interface.num_embs_needed(as_text(model), as_u32(width), as_u32(height))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def image_size(image: bytes) -> tuple[int, int]:
    """Width and height of an image file, a PNG or JPEG, as it is to be looked at.
    Errors: `invalid-argument` (no image).
    """
    try:
        answer: tuple[int, int] = interface.image_size(as_bytes(image))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def embed_img(queue: int, image: bytes, positions: list[int], embeds: list[int]) -> None:
    """Embeds an image file. There are as many positions (spans, as
    of `embed_txt`) and embeds as `num_embs_needed` says. What is wrong beyond the file's header
    fails the command when it runs: `invalid-argument`, of the next `synchronize`.
    Errors: `invalid-handle`, `unsupported`, `invalid-argument`, `limit-exceeded`.
    """
    try:
        interface.embed_img(as_u32(queue), as_bytes(image), as_u32s(positions), as_u32s(embeds))
    except Err as error:
        raise PieError(error.value) from None
