"""Random numbers by position instead of in turn.

A number depends on a seed, a step and a token alone, so it is the same whatever the batch, its
order and its neighbours are. The generator is SplitMix64 (Steele, Lea and Flood, "Fast splittable
pseudorandom number generators", 2014), whose n-th number is a hash of `start + n * GAMMA`: a
token's id is `n`, and seed and step are hashed to the start.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from pie_py.wire.plan import Float32

GAMMA = 0x9E3779B97F4A7C15
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_SMALLEST = 2.0**-33
_LARGEST = 1 - 2.0**-24  # the largest float32 below 1


def starts(seeds: NDArray[np.uint64], steps: NDArray[np.uint32]) -> NDArray[np.uint64]:
    """Where the numbers of each step start, `[n]`."""
    return _mix(_mix(seeds + np.uint64(GAMMA)) + steps.astype(np.uint64) * np.uint64(GAMMA))


def coins(seeds: NDArray[np.uint64], steps: NDArray[np.uint32]) -> Float32:
    """A random number of each step, 0 up to 1, that is none of its tokens': float32 `[n]`."""
    found: Float32 = (_mix(starts(seeds, steps)) >> np.uint64(40)).astype(np.float32) * 2.0**-24
    return found


def numbers(start: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Random 64-bit words `[n, m]` as int64, of the bits of `starts`, int64 `[n, 1]`, and the ids
    of tokens, int64 `[n, m]` or `[m]`.
    """
    # int64 wraps around as uint64 does; only its shifts bring in copies of the sign. In place: on a
    # CPU fresh memory takes as long as the arithmetic.
    word = (tokens + 1) * _signed(GAMMA) + start
    shifted = word >> 30
    word.bitwise_xor_(shifted.bitwise_and_(0x3FFFFFFFF)).mul_(_signed(_FIRST))
    torch.bitwise_right_shift(word, 27, out=shifted)
    word.bitwise_xor_(shifted.bitwise_and_(0x1FFFFFFFFF)).mul_(_signed(_SECOND))
    torch.bitwise_right_shift(word, 31, out=shifted)
    return word.bitwise_xor_(shifted.bitwise_and_(0x1FFFFFFFF))


def exponentials(start: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Exponential variates of tokens: float32 `[n, m]`, above 0. Arguments as of `numbers`."""
    bits = numbers(start, tokens).bitwise_right_shift_(32).bitwise_and_(0xFFFFFFFF)
    # Near 0, where the winners of a race are, float32 is finest.
    uniform = bits.to(torch.float32).mul_(2.0**-32).add_(_SMALLEST).clamp_(max=_LARGEST)
    return uniform.neg_().log1p_().neg_()


def _mix(word: NDArray[np.uint64]) -> NDArray[np.uint64]:
    word = (word ^ (word >> np.uint64(30))) * np.uint64(_FIRST)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(_SECOND)
    return word ^ (word >> np.uint64(31))


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word
