"""Quantized checkpoints: their tensors, as the numbers that they stand for.

What is stored in fewer bits is widened when it is read; the model computes in its dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import structlog
import torch

from pie_inference.checkpoints.fields import Fields
from pie_inference.checkpoints.sources import Made, Sources
from pie_inference.errors import LoadError

log = structlog.get_logger("pie.worker.load")

# The sixteen numbers of four bits (OCP Microscaling, E2M1).
FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)


def check_quantization(config: Mapping[str, Any]) -> None:
    """Looks at `quantization_config` before anything is read.

    Raises:
        LoadError: if the method is not supported.
    """
    _method(config)


def dequantized(config: Mapping[str, Any], stored: Sources) -> Sources:
    """The tensors that a quantized checkpoint's stand for; of another one, those that it stores.

    Raises:
        LoadError: if the method, or a variant of it, is not supported.
    """
    found = _method(config)
    if found is None:
        return stored
    name, method = found
    log.warning("quantized weights are widened to the model's dtype", method=name)
    return method(Fields(config["quantization_config"], "quantization_config"), stored)


def _method(config: Mapping[str, Any]) -> tuple[str, Method] | None:
    table = Fields(config).table("quantization_config")
    if not table:
        return None
    name = Fields(table, "quantization_config").text("quant_method", "unnamed")
    if name not in METHODS:
        raise LoadError(
            f"config.json: quantized weights of the method {name!r} are not supported (supported:"
            f" {', '.join(METHODS)}); take the model's checkpoint in bfloat16, or one of those"
        )
    return name, METHODS[name]


def mxfp4(_: Fields, stored: Sources) -> Sources:
    """Blocks of 32 numbers of four bits, and a power of two for each (OCP Microscaling)."""
    found = dict(stored)
    for name in stored:
        whole, end, _rest = name.partition("_blocks")
        if end and not _rest and f"{whole}_scales" in stored:
            blocks, scales = found.pop(name), found.pop(f"{whole}_scales")
            experts, rows, groups, half = blocks.shape
            found[whole] = Made((experts, groups * half * 2, rows), _from_mxfp4, blocks, scales)
    return found


def _from_mxfp4(blocks: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Of `[..., rows, groups, 16]` bytes, low half first, `[..., groups * 32, rows]`."""
    numbers = torch.tensor(FP4)
    halves = torch.stack([blocks & 15, blocks >> 4], -1).flatten(-2)
    values = torch.ldexp(numbers[halves.int()], scales.int().unsqueeze(-1) - 127)
    return values.flatten(-2).transpose(-1, -2)


def fp8(fields: Fields, stored: Sources) -> Sources:
    """Numbers of eight bits, and a factor for each square block of a weight (DeepSeek V3)."""
    block = fields.items("weight_block_size") or [128, 128]
    found = dict(stored)
    for name in stored:
        whole, end, _rest = name.partition("_scale_inv")
        if end and whole in stored:
            scales, weight = found.pop(name), stored[whole]
            found[whole] = Made(
                weight.shape, lambda w, s: _from_blocks(w, s, block), weight, scales
            )
    return found


def _from_blocks(weight: torch.Tensor, scales: torch.Tensor, block: list[int]) -> torch.Tensor:
    rows, columns = weight.shape
    wide = scales.float().repeat_interleave(block[0], 0)[:rows]
    return weight.float() * wide.repeat_interleave(block[1], 1)[:, :columns]


Method = Callable[[Fields, Sources], Sources]
METHODS: dict[str, Method] = {"mxfp4": mxfp4, "fp8": fp8}
