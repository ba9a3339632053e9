"""Philox4x32-10: random numbers by position instead of in turn.

Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC'11). A number depends on a key and a
counter alone, so it is the same whatever the batch, its order and its neighbours are.
"""

from __future__ import annotations

import torch

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_WORD = 0xFFFFFFFF
_ROUNDS = 10
_SMALLEST = 2.0**-33
_LARGEST = 1 - 2.0**-24  # the largest float32 below 1


def philox(counter: list[torch.Tensor], key: list[torch.Tensor]) -> list[torch.Tensor]:
    """Four random 32-bit words a counter.

    Args:
        counter: four words, int64 tensors that broadcast together.
        key: two words, int64 tensors that broadcast with them.

    Returns:
        Four words, int64 tensors of the broadcast shape.
    """
    a, b, c, d = counter
    first, second = key
    for _ in range(_ROUNDS):
        # The products wrap around in int64; their 64 bits are right all the same.
        left, right = a * _MULTIPLIERS[0], c * _MULTIPLIERS[1]
        a, b, c, d = (
            (right >> 32 & _WORD) ^ b ^ first,
            right & _WORD,
            (left >> 32 & _WORD) ^ d ^ second,
            left & _WORD,
        )
        first, second = first + _KEY_STEPS[0] & _WORD, second + _KEY_STEPS[1] & _WORD
    return [a, b, c, d]


def exponentials(keys: torch.Tensor, steps: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Exponential variates of tokens: float32 `[n, m]`, above 0.

    Args:
        keys: int64 `[n, 2]`, a seed's low and high word.
        steps: int64 `[n]`, below 2**32.
        tokens: ids, int64 `[n, m]`; or `[m]`, which must then be 0 .. m - 1 for every row.
    """
    zero = torch.zeros((), dtype=torch.int64, device=tokens.device)
    key = [keys[:, :1], keys[:, 1:]]
    if tokens.ndim == 1:  # all of them: one counter serves four
        count = tokens.shape[0]
        blocks = torch.arange(-(-count // 4), device=tokens.device)[None]
        words = torch.stack(philox([blocks, steps[:, None], zero, zero], key), dim=2)
        bits = words.flatten(1)[:, :count]
    else:
        words = torch.stack(philox([tokens >> 2, steps[:, None], zero, zero], key), dim=2)
        bits = words.gather(2, (tokens & 3)[:, :, None]).squeeze(2)
    # Near 0, where the winners of a race are, float32 is finest.
    uniform = (bits.to(torch.float32) * 2.0**-32).add_(_SMALLEST).clamp_(max=_LARGEST)
    return uniform.neg_().log1p_().neg_()
