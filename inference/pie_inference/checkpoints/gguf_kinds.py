"""The kinds of numbers in a GGUF, and what they stand for.

Most store blocks of 32 or 256 numbers in few bits, with factors of each block. Products and sums
are rounded in the order of llama.cpp's own reference, so that every number is the one it has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

from pie_inference.errors import LoadError

_NUMBERS = 1 << 17  # are widened at once: in the cache, and worth the calls
# Sixteen numbers of four bits, not evenly spaced; and those of OCP Microscaling, doubled.
_NONLINEAR = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_FP4 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


Split = tuple[torch.Tensor, torch.Tensor, torch.Tensor | int]


@dataclass(frozen=True, slots=True)
class Kind:
    """How numbers are stored."""

    name: str  # in llama.cpp
    numbers: int  # in a block
    size: int  # of a block, in bytes
    # Of plain numbers, their dtype; of others, what makes of blocks `[n, size]`, uint8, whole
    # numbers `[n, numbers]` of at most 8 bits, the scale of each part of a block, `[n, parts]`, and
    # its least value, or the whole number that stands for 0; None: the package `gguf` widens them.
    form: torch.dtype | Callable[[torch.Tensor], Split] | None
    bits: int = 8  # of these whole numbers, 4 or 8

    def widened(self, stored: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Numbers `[n]` of whole blocks `[bytes]`, uint8, each rounded to the dtype at once."""
        if isinstance(self.form, torch.dtype):
            # A copy, for a tensor may begin anywhere in the file.
            return stored.clone().view(self.form).to(dtype)
        if self.form is None:
            return _by_library(self.name, stored.view(-1, self.size)).to(dtype)
        found = torch.empty(len(stored) // self.size, self.numbers, dtype=dtype)
        for start, (numbers, scales, least) in self._pieces(stored):
            parts = numbers.view(*scales.shape, -1).float()
            if isinstance(least, int):
                parts = parts.sub_(least).mul_(scales[..., None])
            else:
                parts = parts.mul_(scales[..., None]).add_(least[..., None])
            found[start : start + len(numbers)] = parts.flatten(1)
        return found.flatten()

    def groups(self, stored: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The numbers of whole blocks `[bytes]`, if not plain: whole numbers `[n]`, uint8, and
        the scale and least value of each group of equally many, float32.
        """
        numbers = torch.empty(len(stored) // self.size, self.numbers, dtype=torch.uint8)
        found: list[tuple[torch.Tensor, torch.Tensor]] = []
        for start, (part, scales, least) in self._pieces(stored):
            numbers[start : start + len(part)] = part
            found.append((scales, scales * -least if isinstance(least, int) else least))
        scales, least = (torch.cat(each).flatten() for each in zip(*found, strict=True))
        return numbers.flatten(), scales, least

    def _pieces(self, stored: torch.Tensor) -> Iterator[tuple[int, Split]]:
        assert self.form is not None
        assert not isinstance(self.form, torch.dtype)
        blocks = stored.view(-1, self.size)
        step = max(_NUMBERS // self.numbers, 1)
        for start in range(0, len(blocks), step):
            yield start, self.form(blocks[start : start + step])


def _by_library(name: str, blocks: torch.Tensor) -> torch.Tensor:
    """Numbers of blocks `[n, size]`, float32. Raises `LoadError` without the library."""
    try:
        from gguf import GGMLQuantizationType, quants
    except ImportError as error:
        raise LoadError(
            f"numbers of {name} are read by the package gguf, and there is none ({error}):"
            " `pip install 'pie-py[gguf]'`"
        ) from None
    kind = GGMLQuantizationType[name]
    stored, step = blocks.numpy(), _NUMBERS // 256
    with np.errstate(all="ignore"):  # of blocks without finite factors, which are looked at later
        parts = [
            quants.dequantize(stored[at : at + step], kind) for at in range(0, len(stored), step)
        ]
    return torch.from_numpy(np.concatenate(parts).ravel())


def _half(blocks: torch.Tensor, at: int = 0) -> torch.Tensor:
    """A float16 of each block, `[n, 1]`."""
    return blocks[:, at : at + 2].contiguous().view(torch.float16).float()


def _bits(stored: torch.Tensor, bits: int, together: int) -> torch.Tensor:
    """Numbers of few bits, of `[n, bytes]`: those in the lowest bits of `together` bytes, then
    those in the next bits of the same bytes, and so on; then the next bytes. `[n, numbers]`.
    """
    parts = stored.reshape(len(stored), -1, together)
    mask = (1 << bits) - 1
    return torch.stack([(parts >> shift) & mask for shift in range(0, 8, bits)], 2).flatten(1)


def _q4_0(blocks: torch.Tensor) -> Split:
    return _bits(blocks[:, 2:], 4, 16), _half(blocks), 8


def _q4_1(blocks: torch.Tensor) -> Split:
    return _bits(blocks[:, 4:], 4, 16), _half(blocks), _half(blocks, 2)


def _fifth(blocks: torch.Tensor, at: int) -> torch.Tensor:
    """Numbers of 32 highest bits and 32 times four lower ones."""
    return _bits(blocks[:, at + 4 :], 4, 16) | (_bits(blocks[:, at : at + 4], 1, 1) << 4)


def _q5_0(blocks: torch.Tensor) -> Split:
    return _fifth(blocks, 2), _half(blocks), 16


def _q5_1(blocks: torch.Tensor) -> Split:
    return _fifth(blocks, 4), _half(blocks), _half(blocks, 2)


def _q8_0(blocks: torch.Tensor) -> Split:
    return blocks[:, 2:] ^ 128, _half(blocks), 128  # the sign's bit is that of 128


def _q2_k(blocks: torch.Tensor) -> Split:
    scales = blocks[:, :16]
    scale, less = _half(blocks, 80) * (scales & 15).float(), _half(blocks, 82) * (scales >> 4)
    return _bits(blocks[:, 16:80], 2, 32), scale, -less


def _q3_k(blocks: torch.Tensor) -> Split:
    scales = _bits(blocks[:, 96:104], 4, 8) | (_bits(blocks[:, 104:108], 2, 4) << 4)
    numbers = _bits(blocks[:, 32:96], 2, 32) | (_bits(blocks[:, :32], 1, 32) << 2)
    return numbers, _half(blocks, 108) * (scales.float() - 32), 4


def _scales(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The scales of the eight parts of a block, and their least values, `[n, 8]`."""
    first, second, third = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scale = torch.cat([first & 63, (third & 15) | ((first >> 2) & 48)], 1)
    less = torch.cat([second & 63, (third >> 4) | ((second >> 2) & 48)], 1)
    return _half(blocks) * scale.float(), -(_half(blocks, 2) * less.float())


def _q4_k(blocks: torch.Tensor) -> Split:
    return _bits(blocks[:, 16:], 4, 32), *_scales(blocks)


def _q5_k(blocks: torch.Tensor) -> Split:
    high = _bits(blocks[:, 16:48], 1, 32)
    return _bits(blocks[:, 48:], 4, 32) | (high << 4), *_scales(blocks)


def _q6_k(blocks: torch.Tensor) -> Split:
    numbers = _bits(blocks[:, :128], 4, 64) | (_bits(blocks[:, 128:192], 2, 32) << 4)
    return numbers, _half(blocks, 208) * blocks[:, 192:208].view(torch.int8).float(), 32


def _named(stored: torch.Tensor, numbers: tuple[int, ...], zero: int) -> torch.Tensor:
    """Of sixteen numbers, those that four bits name, and `zero` more."""
    return torch.tensor([n + zero for n in numbers], dtype=torch.uint8)[_bits(stored, 4, 16).int()]


def _iq4_nl(blocks: torch.Tensor) -> Split:
    return _named(blocks[:, 2:], _NONLINEAR, 128), _half(blocks), 128


def _iq4_xs(blocks: torch.Tensor) -> Split:
    scales = _bits(blocks[:, 4:8], 4, 1) | (_bits(blocks[:, 2:4], 2, 1) << 4)
    return _named(blocks[:, 8:], _NONLINEAR, 128), _half(blocks) * (scales.float() - 32), 128


def _mxfp4(blocks: torch.Tensor) -> Split:
    exponents = blocks[:, :1].int()
    # Half a power of two, of which the two least are no normal numbers.
    bits = torch.where(exponents < 2, (1 << 21) << exponents, (exponents - 1) << 23)
    return _named(blocks[:, 1:], _FP4, 12), bits.view(torch.float32), 12


KINDS = {
    0: Kind("F32", 1, 4, torch.float32),
    1: Kind("F16", 1, 2, torch.float16),
    2: Kind("Q4_0", 32, 18, _q4_0, bits=4),
    3: Kind("Q4_1", 32, 20, _q4_1, bits=4),
    6: Kind("Q5_0", 32, 22, _q5_0),
    7: Kind("Q5_1", 32, 24, _q5_1),
    8: Kind("Q8_0", 32, 34, _q8_0),
    10: Kind("Q2_K", 256, 84, _q2_k, bits=4),
    11: Kind("Q3_K", 256, 110, _q3_k, bits=4),
    12: Kind("Q4_K", 256, 144, _q4_k, bits=4),
    13: Kind("Q5_K", 256, 176, _q5_k),
    14: Kind("Q6_K", 256, 210, _q6_k),
    16: Kind("IQ2_XXS", 256, 66, None),
    17: Kind("IQ2_XS", 256, 74, None),
    18: Kind("IQ3_XXS", 256, 98, None),
    19: Kind("IQ1_S", 256, 50, None),
    20: Kind("IQ4_NL", 32, 18, _iq4_nl),
    21: Kind("IQ3_S", 256, 110, None),
    22: Kind("IQ2_S", 256, 82, None),
    23: Kind("IQ4_XS", 256, 136, _iq4_xs),
    29: Kind("IQ1_M", 256, 56, None),
    30: Kind("BF16", 1, 2, torch.bfloat16),
    34: Kind("TQ1_0", 256, 54, None),
    35: Kind("TQ2_0", 256, 66, None),
    39: Kind("MXFP4", 32, 17, _mxfp4),
    40: Kind("NVFP4", 64, 36, None),
}
# Others, as errors call them.
NAMES = {9: "Q8_1", 15: "Q8_K", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64"}
