"""The kinds of numbers in a GGUF, and what they stand for.

Most store blocks of 32 or 256 numbers in few bits, with factors of each block. Products and sums
are rounded in the order of llama.cpp's own reference, so that every number is the one it has.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

_NUMBERS = 1 << 15  # are widened at once: by one thread, in its cache
# Sixteen numbers of four bits, not evenly spaced; and those of OCP Microscaling, doubled.
_NONLINEAR = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_FP4 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


@dataclass(frozen=True, slots=True)
class Kind:
    """How numbers are stored.

    Attributes:
        name: in llama.cpp.
        numbers: in a block.
        size: of a block, in bytes.
        widen: blocks `[n, size]`, uint8, to what they stand for `[n, numbers]`, float32.
    """

    name: str
    numbers: int
    size: int
    widen: Callable[[torch.Tensor], torch.Tensor]

    def widened(self, stored: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Numbers `[n]` of whole blocks `[bytes]`, uint8, each rounded to the dtype at once."""
        blocks = stored.view(-1, self.size)
        found = torch.empty(len(blocks), self.numbers, dtype=dtype)
        step = max(_NUMBERS // self.numbers, 1)
        for start in range(0, len(blocks), step):
            found[start : start + step] = self.widen(blocks[start : start + step])
        return found.flatten()


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


def _plain(dtype: torch.dtype) -> Callable[[torch.Tensor], torch.Tensor]:
    def widen(blocks: torch.Tensor) -> torch.Tensor:
        # A copy, for a tensor may begin anywhere in the file.
        return blocks.clone().view(dtype).float()

    return widen


def _q4_0(blocks: torch.Tensor) -> torch.Tensor:
    return (_bits(blocks[:, 2:], 4, 16).float() - 8) * _half(blocks)


def _q4_1(blocks: torch.Tensor) -> torch.Tensor:
    return (_bits(blocks[:, 4:], 4, 16).float() * _half(blocks)) + _half(blocks, 2)


def _fifth(blocks: torch.Tensor, at: int) -> torch.Tensor:
    """Numbers of 32 highest bits and 32 times four lower ones."""
    high = _bits(blocks[:, at : at + 4], 1, 1)
    return (_bits(blocks[:, at + 4 :], 4, 16) | (high << 4)).float()


def _q5_0(blocks: torch.Tensor) -> torch.Tensor:
    return (_fifth(blocks, 2) - 16) * _half(blocks)


def _q5_1(blocks: torch.Tensor) -> torch.Tensor:
    return (_fifth(blocks, 4) * _half(blocks)) + _half(blocks, 2)


def _q8_0(blocks: torch.Tensor) -> torch.Tensor:
    return blocks[:, 2:].view(torch.int8).float() * _half(blocks)


def _scaled(
    numbers: torch.Tensor, scales: torch.Tensor, less: torch.Tensor | None = None
) -> torch.Tensor:
    """Numbers `[n, 256]` times the scale of each part `[n, parts]`, less something of each."""
    parts = numbers.view(*scales.shape, -1).float() * scales[..., None]
    return (parts if less is None else parts.sub_(less[..., None])).flatten(1)


def _q2_k(blocks: torch.Tensor) -> torch.Tensor:
    scales, low = blocks[:, :16], _half(blocks, 82)
    scale, less = _half(blocks, 80) * (scales & 15).float(), low * (scales >> 4).float()
    return _scaled(_bits(blocks[:, 16:80], 2, 32), scale, less)


def _q3_k(blocks: torch.Tensor) -> torch.Tensor:
    scales = _bits(blocks[:, 96:104], 4, 8) | (_bits(blocks[:, 104:108], 2, 4) << 4)
    # The highest bit is set where nothing is taken off.
    less = (_bits(blocks[:, :32], 1, 32) ^ 1) << 2
    numbers = _bits(blocks[:, 32:96], 2, 32).to(torch.int8) - less.to(torch.int8)
    return _scaled(numbers, _half(blocks, 108) * (scales.float() - 32))


def _scales(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What the eight parts of a block are multiplied by, and what is taken off, `[n, 8]`."""
    first, second, third = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scale = torch.cat([first & 63, (third & 15) | ((first >> 2) & 48)], 1)
    less = torch.cat([second & 63, (third >> 4) | ((second >> 2) & 48)], 1)
    return _half(blocks) * scale.float(), _half(blocks, 2) * less.float()


def _q4_k(blocks: torch.Tensor) -> torch.Tensor:
    return _scaled(_bits(blocks[:, 16:], 4, 32), *_scales(blocks))


def _q5_k(blocks: torch.Tensor) -> torch.Tensor:
    high = _bits(blocks[:, 16:48], 1, 32)
    return _scaled(_bits(blocks[:, 48:], 4, 32) | (high << 4), *_scales(blocks))


def _q6_k(blocks: torch.Tensor) -> torch.Tensor:
    numbers = _bits(blocks[:, :128], 4, 64) | (_bits(blocks[:, 128:192], 2, 32) << 4)
    scales = blocks[:, 192:208].view(torch.int8).float()
    return _scaled(numbers.to(torch.int8) - 32, _half(blocks, 208) * scales)


def _named(stored: torch.Tensor, numbers: tuple[int, ...]) -> torch.Tensor:
    """Of sixteen numbers, those that four bits name."""
    return torch.tensor(numbers, dtype=torch.float32)[_bits(stored, 4, 16).int()]


def _iq4_nl(blocks: torch.Tensor) -> torch.Tensor:
    return _named(blocks[:, 2:], _NONLINEAR) * _half(blocks)


def _iq4_xs(blocks: torch.Tensor) -> torch.Tensor:
    scales = _bits(blocks[:, 4:8], 4, 1) | (_bits(blocks[:, 2:4], 2, 1) << 4)
    return _scaled(_named(blocks[:, 8:], _NONLINEAR), _half(blocks) * (scales.float() - 32))


def _mxfp4(blocks: torch.Tensor) -> torch.Tensor:
    exponents = blocks[:, :1].int()
    # Half a power of two, of which the two least are no normal numbers.
    bits = torch.where(exponents < 2, (1 << 21) << exponents, (exponents - 1) << 23)
    return _named(blocks[:, 1:], _FP4) * bits.view(torch.float32)


KINDS = {
    0: Kind("F32", 1, 4, _plain(torch.float32)),
    1: Kind("F16", 1, 2, _plain(torch.float16)),
    2: Kind("Q4_0", 32, 18, _q4_0),
    3: Kind("Q4_1", 32, 20, _q4_1),
    6: Kind("Q5_0", 32, 22, _q5_0),
    7: Kind("Q5_1", 32, 24, _q5_1),
    8: Kind("Q8_0", 32, 34, _q8_0),
    10: Kind("Q2_K", 256, 84, _q2_k),
    11: Kind("Q3_K", 256, 110, _q3_k),
    12: Kind("Q4_K", 256, 144, _q4_k),
    13: Kind("Q5_K", 256, 176, _q5_k),
    14: Kind("Q6_K", 256, 210, _q6_k),
    20: Kind("IQ4_NL", 32, 18, _iq4_nl),
    23: Kind("IQ4_XS", 256, 136, _iq4_xs),
    30: Kind("BF16", 1, 2, _plain(torch.bfloat16)),
    39: Kind("MXFP4", 32, 17, _mxfp4),
}
# Others, as errors call them.
NAMES = {
    9: "Q8_1", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 21: "IQ3_S",
    22: "IQ2_S", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 34: "TQ1_0",
    35: "TQ2_0", 40: "NVFP4",
}  # fmt: skip
