"""The kinds of numbers of a GGUF, against llama.cpp's own library."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch

from pie_inference.checkpoints.gguf_kinds import KINDS, NAMES, Kind

BLOCKS = 1300  # more numbers than are widened at once


@pytest.mark.parametrize("number", KINDS, ids=lambda number: KINDS[number].name)
def test_numbers_are_those_of_the_library(number: int) -> None:
    kind, theirs = KINDS[number], gguf.GGMLQuantizationType(number)
    assert kind.name == theirs.name
    assert (kind.numbers, kind.size) == gguf.GGML_QUANT_SIZES[theirs]
    blocks = BLOCKS if kind.numbers > 1 else 100 * BLOCKS
    # Any bytes are blocks; factors may be infinite, or no numbers.
    stored = np.random.default_rng(number).integers(0, 256, (blocks, kind.size), dtype=np.uint8)
    with np.errstate(all="ignore"):
        wanted = torch.from_numpy(gguf.dequantize(stored, theirs).astype(np.float32).flatten())
    found = kind.widened(torch.from_numpy(stored).flatten())
    assert torch.equal(found.isnan(), wanted.isnan())
    assert torch.equal(
        found.nan_to_num(0).view(torch.int32), wanted.nan_to_num(0).view(torch.int32)
    )


def test_every_kind_has_a_name() -> None:
    known = {kind.value: kind.name for kind in gguf.GGMLQuantizationType}
    ours = NAMES | {number: kind.name for number, kind in KINDS.items()}
    assert ours.items() <= known.items()


def test_a_kind_of_few_bytes_is_widened_where_it_lies() -> None:
    """A tensor may begin anywhere in the file."""
    numbers = torch.arange(9, dtype=torch.float32)
    bytewise = torch.cat([torch.zeros(3, dtype=torch.uint8), numbers.view(torch.uint8)])
    kind: Kind = KINDS[0]
    assert torch.equal(kind.widened(bytewise[3:]), numbers)
