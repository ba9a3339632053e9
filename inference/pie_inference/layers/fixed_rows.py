"""Products whose rows do not depend on each other, for results that can be repeated.

Libraries choose a kernel, and with it the order of a sum, by the number of rows: a text's last bits
depend on what else is computed with it. Here a product always has the same number of rows, the last
ones filled up with zeros. That a row's place among them, and the number of threads, change nothing
is no promise of the libraries, so it is tried when a product is made.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

from pie_inference.errors import LoadError
from pie_inference.layers.linear import Linear

# With fewer, prompts take longer; with more, decoding does, and MKL's order in float32 begins to
# depend on the threads. 16 are what a tile of AMX has.
ROWS = {torch.float32: 8, torch.bfloat16: 16}


def by_rows(part: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """`part(x)` `[t, out]` of `x` `[t, in]`, by parts of so many rows as `ROWS` says."""
    count, rows = len(x), ROWS[x.dtype]
    if not count:
        return part(x)
    padded = F.pad(x, (0, 0, 0, -count % rows))
    parts = [part(padded[first : first + rows]) for first in range(0, count, rows)]
    return parts[0][:count] if len(parts) == 1 else torch.cat(parts)[:count]


class FixedRows(Linear):
    """Another product, with rows that do not depend on each other."""

    def __init__(self, product: Linear, inputs: int, dtype: torch.dtype) -> None:
        """Takes a product, its number of inputs and their dtype. Raises `LoadError` if this machine
        computes it differently in another place, or with another number of threads.
        """
        self._product = product
        row = torch.linspace(-1, 1, inputs).sin().to(dtype)
        threads = torch.get_num_threads()
        found: list[torch.Tensor] = []
        for some in (1, threads):
            torch.set_num_threads(some)
            found += product(row.repeat(ROWS[dtype], 1))
        if any(not torch.equal(each, found[0]) for each in found):
            raise LoadError(
                f"deterministic: on this machine a product of {inputs} inputs in {dtype} depends on"
                " a row's place or the threads"
            )

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """See `Linear`."""
        return by_rows(self._product, x)
