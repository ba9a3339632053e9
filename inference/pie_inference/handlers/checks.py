"""Checks that a batch names memory that exists, before its indices reach a tensor.

The control process decides what a program may ask for: limits, owners, sizes of batches. None of
that is checked here again. What is checked is what a worker cannot survive if the control process
has a bug: on a GPU an index outside a tensor ends the process and every model in it, and on a CPU a
negative one quietly reads the memory of another program. These checks are single passes over small
arrays.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pie_inference.errors import BadBatch


def require_below(what: str, values: NDArray[np.int32], limit: int) -> None:
    """Raises `BadBatch` unless every value is in `0 .. limit - 1`."""
    # As unsigned numbers, negative ones are larger than any limit: one comparison serves both.
    if values.size and int(values.view(np.uint32).max()) >= limit:
        raise BadBatch(f"{what}: {_worst(values, limit)} is outside 0 .. {limit - 1}")


def require_offsets(what: str, starts: NDArray[np.int32], count: int, end: int) -> None:
    """Raises `BadBatch` unless `starts` is `count + 1` ascending offsets from 0 to `end`."""
    if (
        starts.shape != (count + 1,)
        or starts[0] != 0
        or starts[-1] != end
        or (starts[1:] < starts[:-1]).any()
    ):
        raise BadBatch(f"{what}: not {count + 1} ascending offsets from 0 to {end}")


def require_lengths(what: str, *arrays: NDArray[np.generic]) -> None:
    """Raises `BadBatch` unless the arrays are vectors of one length."""
    if len({array.shape for array in arrays}) != 1 or arrays[0].ndim != 1:
        raise BadBatch(f"{what}: arrays of different shapes {[a.shape for a in arrays]}")


def _worst(values: NDArray[np.int32], limit: int) -> int:
    return int(values[(values < 0) | (values >= limit)][0])
