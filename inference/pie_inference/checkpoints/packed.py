"""The packing of numbers in quantized checkpoints: each method's tensors, and their meaning."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from pie_inference.checkpoints.fields import Fields
from pie_inference.checkpoints.sources import Groups, Made, Source, Sources
from pie_inference.errors import LoadError

Table = Mapping[str, Any]

# The sixteen numbers of four bits (OCP Microscaling, E2M1).
FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
AWQ_ORDER = [0, 4, 1, 5, 2, 6, 3, 7]  # which four bits of a word are its first column, and so on


def mxfp4(_: Table, stored: Sources) -> Sources:
    """Blocks of 32 numbers of four bits, and a power of two for each (OCP Microscaling)."""
    found = dict(stored)
    for name in stored:
        whole, end, _rest = name.partition("_blocks")
        if end and not _rest:
            blocks, scales = found.pop(name), _part(found, f"{whole}_scales")
            experts, rows, groups, half = blocks.shape
            found[whole] = Made((experts, groups * half * 2, rows), _from_mxfp4, blocks, scales)
    return found


def _from_mxfp4(blocks: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Of `[..., rows, groups, 16]` bytes, low half first, `[..., groups * 32, rows]`."""
    numbers = torch.tensor(FP4)
    halves = torch.stack([blocks & 15, blocks >> 4], -1).flatten(-2)
    values = torch.ldexp(numbers[halves.int()], scales.int().unsqueeze(-1) - 127)
    return values.flatten(-2).transpose(-1, -2)


def fp8(table: Table, stored: Sources) -> Sources:
    """Numbers of eight bits, and a factor for each block of a weight (DeepSeek V3), each row or
    all. Those of activations are left out, which stay as they are.
    """
    block = Fields(table, "quantization_config").items("weight_block_size") or [128, 128]
    found = dict(stored)
    for name in stored:
        whole, end, rest = name.partition("_scale")
        if name.endswith((".input_scale", ".activation_scale")):
            del found[name]
        elif end and rest in ("", "_inv") and whole in stored:
            scales, weight = found.pop(name), stored[whole]
            widen = partial(_from_blocks, block=block)
            found[whole] = Made(weight.shape, widen, weight, scales)
    return found


def _from_blocks(weight: torch.Tensor, scales: torch.Tensor, *, block: list[int]) -> torch.Tensor:
    rows, columns = weight.shape
    if scales.numel() == 1 or scales.shape in ((rows,), (rows, 1)):
        return weight.float() * scales.float().reshape(-1, 1)
    wide = scales.float().repeat_interleave(block[0], 0)[:rows]
    return weight.float() * wide.repeat_interleave(block[1], 1)[:, :columns]


def modelopt(table: Table, stored: Sources) -> Sources:
    """Reads NVIDIA's ModelOpt: as `fp8`, or NVFP4: numbers of four bits, a factor of eight
    for 16 of them, and one for all. Scales of activations, and of keys and values, are left out.
    Raises `LoadError` for other algorithms.
    """
    algorithm = Fields(table, "quantization_config").text("quant_algo", "unnamed")
    if algorithm not in ("FP8", "NVFP4", "MIXED_PRECISION"):
        raise LoadError(
            f"quantization_config: quant_algo {algorithm!r} of modelopt is not supported (FP8,"
            " NVFP4)"
        )
    found = {n: s for n, s in stored.items() if not n.endswith((".k_scale", ".v_scale"))}
    for name in stored:
        whole, end, rest = name.partition("_scale_2")
        if end and not rest:
            parts = [_part(found, n) for n in (whole, f"{whole}_scale", name)]
            rows, half = parts[0].shape
            found[whole] = Made((rows, 2 * half), _from_nvfp4, *parts)
    return fp8({}, found)


def _from_nvfp4(pairs: torch.Tensor, scales: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
    """Of `[rows, columns / 2]` bytes, low half first, `[rows, columns]`."""
    numbers = torch.tensor(FP4)[torch.stack([pairs & 15, pairs >> 4], -1).flatten(1).int()]
    return numbers * (scales.float() * whole.float()).repeat_interleave(16, 1)


def bitsandbytes(table: Table, stored: Sources) -> Sources:
    """Two numbers of four bits a byte, which a table of sixteen names, with a factor for each block
    (QLoRA, Dettmers et al. 2023); the factors may be 8 bits of another table themselves.
    """
    if table.get("load_in_8bit"):
        raise LoadError("quantization_config: bitsandbytes of 8 bits is not supported (4 bits are)")
    found = dict(stored)
    for name in stored:
        whole, end, _kind = name.partition(".quant_state.bitsandbytes__")
        if not end:
            continue
        said = bytes(found.pop(name).read().tolist()) if stored[name].shape[0] < 1 << 16 else b""
        try:
            state = json.loads(said)
            shape = tuple(map(int, state["shape"]))
            sizes = int(state["blocksize"]), int(state.get("nested_blocksize", 1))
            offset = float(state.get("nested_offset", 0.0))
        except (ValueError, KeyError, TypeError) as error:
            raise LoadError(f"{name} cannot be read: {error!r}") from None
        names = ["absmax", "quant_map"]
        if f"{whole}.nested_absmax" in found:
            names += ["nested_absmax", "nested_quant_map"]
        parts = [_part(found, f"{whole}.{part}") for part in names]
        weight = _part(found, whole)
        if 2 * math.prod(weight.shape) != math.prod(shape) or min(sizes) < 1:
            raise LoadError(f"{whole} holds {list(weight.shape)} bytes, and is said to be {shape}")
        widen = partial(_from_halves, shape=shape, sizes=sizes, offset=offset)
        found[whole] = Made(shape, widen, weight, *parts)
    return found


def _from_halves(
    weight: torch.Tensor,
    factors: torch.Tensor,
    table: torch.Tensor,
    *nested: torch.Tensor,
    shape: tuple[int, ...],
    sizes: tuple[int, int],
    offset: float,
) -> torch.Tensor:
    """The first number of a byte is in its high half."""
    if nested:
        outer, names = nested
        factors = _times(names.float()[factors.int()], outer, sizes[1]) + offset
    flat = weight.flatten()
    numbers = table.float()[torch.stack([flat >> 4, flat & 15], 1).flatten().int()]
    return _times(numbers, factors, sizes[0]).view(shape)


def _times(numbers: torch.Tensor, factors: torch.Tensor, size: int) -> torch.Tensor:
    """Numbers `[n]` times the factor of each block of so many."""
    return numbers * factors.float().repeat_interleave(size)[: len(numbers)]


def awq(table: Table, stored: Sources) -> Sources:
    """Four bits, a factor and a zero for each group of inputs (Lin et al. 2024)."""
    fields = Fields(table, "quantization_config")
    bits, version = fields.count("bits", 4), fields.text("version", "gemm").lower()
    if bits != 4 or version != "gemm":
        raise LoadError(
            f"quantization_config: AWQ of {bits} bits, version {version!r}, is not supported"
            " (supported: 4 bits, version 'gemm')"
        )

    return _by_groups(stored, _numbers_of_awq, bits, ordered=False)


def gptq(table: Table, stored: Sources) -> Sources:
    """2, 4 or 8 bits, likewise; inputs are in groups in any order (Frantar et al. 2023)."""
    fields = Fields(table, "quantization_config")
    bits = fields.count("bits", 4)
    if bits not in (2, 4, 8):
        raise LoadError(
            f"quantization_config: GPTQ of {bits} bits is not supported (supported: 2, 4, 8)"
        )
    # The first format stores zeros less one.
    less = 0 if fields.text("checkpoint_format", "gptq") == "gptq_v2" else 1

    numbers_of = partial(_numbers_of_gptq, bits=bits, less=less)
    return _by_groups(stored, numbers_of, bits, inputs_of_row=32 // bits)


def _by_groups(
    stored: Sources,
    numbers_of: Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]],
    bits: int,
    *,
    inputs_of_row: int = 1,
    ordered: bool = True,
) -> Sources:
    """Products whose weights are stored as `qweight`, `qzeros`, `scales`, and maybe `g_idx`.

    Args:
        stored: the checkpoint's tensors.
        numbers_of: unpacks weights and zeros: `[in, out]` and `[groups, out]`.
        bits: of a number.
        inputs_of_row: how many inputs a row of packed weights has.
        ordered: whether `g_idx` counts.
    """

    def made(of: Callable[..., Any]) -> Callable[..., Any]:
        return lambda packed, zeros, *more: of(*numbers_of(packed, zeros), *more)

    widen, groups = made(_scaled), made(partial(_grouped, max(bits, 4)))
    found = dict(stored)
    for name in [name for name in stored if name.endswith(".qweight")]:
        module = name.removesuffix("qweight")
        packed, zeros, scales = (
            _part(found, module + part) for part in ("qweight", "qzeros", "scales")
        )
        order = found.pop(f"{module}g_idx", None)
        parts = packed, zeros, scales, order if ordered else None
        shape = scales.shape[1], packed.shape[0] * inputs_of_row
        found[f"{module}weight"] = Made(shape, widen, *parts, groups=groups)
    return found


def _part(found: dict[str, Source], name: str) -> Source:
    if name not in found:
        raise LoadError(f"the checkpoint lacks {name}, a part of a quantized weight")
    return found.pop(name)


def _numbers_of_awq(packed: torch.Tensor, zeros: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    numbers, zeros = (_unpacked(words, 4)[..., AWQ_ORDER].flatten(1) for words in (packed, zeros))
    return numbers, zeros


def _numbers_of_gptq(
    packed: torch.Tensor, zeros: torch.Tensor, bits: int, less: int
) -> tuple[torch.Tensor, torch.Tensor]:
    numbers = _unpacked(packed, bits).transpose(1, 2).flatten(0, 1)
    return numbers, (_unpacked(zeros, bits).flatten(1) + less) & ((1 << bits) - 1)


def _grouped(
    bits: int,
    numbers: torch.Tensor,
    zeros: torch.Tensor,
    scales: torch.Tensor,
    order: torch.Tensor | None,
) -> Groups | None:
    """As `_scaled`, of inputs whose groups are consecutive; else None."""
    each = len(numbers) // len(scales)
    if order is not None and not torch.equal(order.long(), torch.arange(len(numbers)) // each):
        return None
    wide = scales.float()
    return Groups(numbers.t().to(torch.uint8), wide.t(), (wide * -zeros).t(), bits)


def _unpacked(words: torch.Tensor, bits: int) -> torch.Tensor:
    """`[..., 32 / bits]` numbers of each word, the lowest bits first."""
    shifts = torch.arange(0, 32, bits, dtype=torch.int32)
    return (words.unsqueeze(-1) >> shifts) & ((1 << bits) - 1)


def _scaled(
    numbers: torch.Tensor, zeros: torch.Tensor, scales: torch.Tensor, order: torch.Tensor | None
) -> torch.Tensor:
    """`[out, in]` of numbers `[in, out]`, zeros and scales `[groups, out]`.

    The group of each input is its place in `order`, by default consecutive ones are a group.
    """
    if order is None:
        order = torch.arange(len(numbers)) // (len(numbers) // len(scales))
    return ((numbers - zeros[order.long()]) * scales.float()[order.long()]).t()
