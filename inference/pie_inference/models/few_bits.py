"""Which weights stay in 4 or 8 bits, as they are stored or rounded on request."""

from __future__ import annotations

import re
from collections.abc import Callable

import torch

from pie_inference.checkpoints.sources import Source
from pie_inference.errors import LoadError
from pie_inference.layers.grouped import GROUP, Packed, fits, packed, rounded
from pie_inference.layers.native import library

BITS = {"int8": 8, "int4": 4}
# They choose experts, which rounding changes. What reads tokens or makes them gets 8 bits, as in
# most GGUF.
ROUTERS = re.compile(r"\.(gate|router|layer|shared_expert_gate|classifier)\.weight$")
_OUTER = re.compile(r"(embed_tokens|lm_head)\.weight$")


def keeper(
    kept: dict[str, Packed], quantize: str | None, possible: bool
) -> Callable[[str, Source], bool]:
    """A function that puts weights into `kept` that stay in few bits and are not there yet, for
    `load_tensors`. Raises `LoadError` if weights are to be rounded and this model, device or
    machine cannot have it.
    """
    if quantize is not None and not (possible and library()):
        raise LoadError(
            "quantize: needs a C compiler (cc), and a model that reads no images on one CPU"
        )

    def keep(name: str, source: Source) -> bool:
        if name in kept:
            return True
        if not possible or len(source.shape) != 2:
            return False
        found = source.groups()
        if found is not None:
            numbers, scales, _, _ = found
            group = numbers.shape[1] // scales.shape[1]
            finite = all(part.sum().isfinite() for part in found[1:3])
            if not finite or not fits(numbers.shape[1], group) or not library():
                return False
            kept[name] = packed(*found)
            return True
        if quantize is None or not fits(source.shape[1], GROUP) or ROUTERS.search(name):
            return False
        tensor = source.read()
        if not tensor.sum(dtype=torch.float32).isfinite():
            return False
        kept[name] = rounded(tensor, 8 if _OUTER.search(name) else BITS[quantize])
        return True

    return keep
