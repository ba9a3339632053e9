"""Weights that stay in 4 or 8 bits, in groups of inputs that have a scale and a least value, or in
bfloat16.

They are multiplied with activations in float32 or bfloat16, exactly but for the order of the sum
(`grouped.c`). On x86 without AVX-512 these are rounded, for each group of inputs, to integers of 16
bits, which it multiplies twice as many of at once: off by a 65 534th of the group's largest at
most, where bfloat16 is off by a 512th of the number. The order is one for any number of rows: a
row's result does not depend on the batch.

In bfloat16, on two cores of an EPYC, a product takes 0.4 to 1.0 of oneDNN's time with 1 to 48 rows,
and 0.9 to 1.2 with more.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby, product

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

from pie_inference.layers.linear import Linear
from pie_inference.layers.native import Product, library, needed_library

LANES = 16  # outputs of a block, and what groups are multiples of
LEAST_BLOCKS = 4
GROUP = 32  # inputs, of what we round ourselves
MOST_GROUP = 256  # inputs that are summed at once, in integers of 32 bits on some CPUs


@dataclass(frozen=True, slots=True)
class Packed:
    """The same as `grouped.c` reads it."""

    data: torch.Tensor  # [blocks, bytes], uint8
    outputs: int
    inputs: int
    group: int
    bits: int
    half: bool  # scales and least values are float16, which they are exactly

    @property
    def form(self) -> tuple[int, ...]:
        """The key of weights that can be one: all of their form but the number of whole blocks."""
        whole = len(self.data) * LANES
        rest = 0 if self.outputs == whole else self.outputs
        return self.group, self.bits, self.half, rest

    def product(self, **more: int) -> Product:
        """It for `grouped.c`."""
        sizes = {"inputs": self.inputs, "outputs": self.outputs, "group": self.group}
        packed = self.data.data_ptr()
        return Product(packed=packed, bits=self.bits, half=self.half, **sizes, **more)

    def rows(self, wanted: torch.Tensor | None = None) -> torch.Tensor:
        """Rows `[n]`, int64, widened: `[n, in]`, float32; all of them by default."""
        count = self.outputs if wanted is None else wanted.shape[0]
        found = torch.empty(count, self.inputs)
        at = None if wanted is None else wanted.contiguous().data_ptr()
        needed_library().widen(self.product(), at, count, found.data_ptr())
        return found

    def write(self, start: int, rows: torch.Tensor) -> None:
        """Puts rows `[n, in]` where others were; of a weight in bfloat16."""
        end = start + len(rows)
        first, last = start // LANES, -(-end // LANES)
        first = max(0, min(first, last - LEAST_BLOCKS))
        last = min(len(self.data), max(last, first + LEAST_BLOCKS))
        low, high = first * LANES, min(last * LANES, self.outputs)
        if (low, high) != (start, end):  # blocks are written as a whole
            whole = self.rows(torch.arange(low, high)).bfloat16()
            whole[start - low : end - low] = rows
            rows = whole
        part = replace(self, data=self.data[first:last], outputs=high - low)
        rows = rows.contiguous()
        needed_library().pack(part.product(), rows.data_ptr(), None, None, part.data.data_ptr())


def fits(inputs: int, group: int) -> bool:
    """True if weights in groups of so many inputs can be packed."""
    return inputs % group == group % LANES == 0


def _group(inputs: int) -> int:
    """The most that inputs of one scale are divided into."""
    return max(size for size in range(LANES, MOST_GROUP + 1, LANES) if inputs % size == 0)


def packed(numbers: torch.Tensor, scales: torch.Tensor, least: torch.Tensor, bits: int) -> Packed:
    """A weight `numbers * scales + least` that `fits`: of numbers `[out, in]`, uint8, of 4 or 8
    bits, and of scales and least values `[out, groups]` of each group of inputs, float32.
    """
    whole = numbers.shape[1] // scales.shape[1]
    scales, least = (each.repeat_interleave(whole // _group(whole), 1) for each in (scales, least))
    half = all(torch.equal(each.half().float(), each) for each in (scales, least))
    dtype = torch.float16 if half else torch.float32
    heads = [each.to(dtype).contiguous() for each in (scales, least)]
    return _filled(numbers, numbers.shape[1] // scales.shape[1], bits, half, heads)


def multiplies_bfloat16(weight: torch.Tensor) -> bool:
    """True if a weight `[out, in]` can be packed as it is, and its products are then as fast as
    oneDNN's: on CPUs with instructions for bfloat16.
    """
    known = weight.device.type == "cpu" and weight.dtype == torch.bfloat16 and weight.dim() == 2
    return (
        known
        and fits(weight.shape[1], LANES)
        and torch.cpu._is_avx512_bf16_supported()
        and library() is not None
    )


def as_it_is(weight: torch.Tensor) -> Packed:
    """A weight `[out, in]` in bfloat16, of which `multiplies_bfloat16` is true."""
    return _filled(weight, _group(weight.shape[1]), 16, False, [])


def _filled(
    numbers: torch.Tensor, group: int, bits: int, half: bool, heads: Sequence[torch.Tensor]
) -> Packed:
    """Numbers `[out, in]`, and what stands before each group of a block: scales and least values
    `[out, groups]`, or nothing.
    """
    out, inputs = numbers.shape
    head = sum(LANES * each.shape[1] * each.itemsize for each in heads)
    blocks = max(-(-out // LANES), LEAST_BLOCKS)
    data = torch.empty(blocks, inputs * LANES * bits // 8 + head, dtype=torch.uint8)
    made = Packed(data, out, inputs, group, bits, half)
    parts = [numbers.contiguous(), *heads]
    pointers = [*(part.data_ptr() for part in parts), None, None][:3]
    needed_library().pack(made.product(), *pointers, data.data_ptr())
    return made


def rounded(weight: torch.Tensor, bits: int, group: int = GROUP) -> Packed:
    """The nearest to a weight `[out, in]` of so few bits."""
    parts = weight.float().view(len(weight), -1, group)
    if bits == 8:  # symmetric, as Q8_0
        scales = (parts.abs().amax(-1) / 127).half().float()
        least = -128 * scales
    else:
        least = parts.amin(-1).half().float()
        scales = ((parts.amax(-1) - least) / 15).half().float()
    steps = scales.clamp(min=torch.finfo(torch.float16).smallest_normal)[..., None]
    numbers = ((parts - least[..., None]) / steps).round_().clamp_(0, (1 << bits) - 1)
    return packed(numbers.to(torch.uint8).flatten(1), scales, least, bits)


def _joined(weights: Sequence[Packed]) -> list[Packed]:
    """One weight in the place of those side by side that have one form and whole blocks."""
    found: list[Packed] = []
    for _, same in groupby(weights, lambda weight: weight.form):
        first, *others = same
        if others and first.outputs == len(first.data) * LANES:
            data = _side_by_side([first.data, *(each.data for each in others)])
            first = replace(first, data=data, outputs=len(data) * LANES)
            others = []
        found += [first, *others]
    return found


def _side_by_side(parts: list[torch.Tensor]) -> torch.Tensor:
    """All rows as one tensor: a view, where they are so in memory, as those of a mapped file."""
    first, at = parts[0], parts[0].data_ptr()
    whole = first.untyped_storage().data_ptr()
    for part in parts:
        if part.data_ptr() != at or part.untyped_storage().data_ptr() != whole:
            return torch.cat(parts)
        at += part.nbytes
    return first.as_strided((sum(map(len, parts)), first.shape[1]), first.stride())


class GroupedLinear(Linear):
    """A product with one packed weight, or several that have the same input."""

    def __init__(self, weights: Sequence[Packed], bias: torch.Tensor | None = None) -> None:
        """Takes the weights, whose outputs are to be side by side, and the bias `[out]`."""
        self._outputs = sum(weight.outputs for weight in weights)
        # Of whole blocks, as the kernel reads it.
        self._bias = None if bias is None else F.pad(bias.float(), (0, LANES * LEAST_BLOCKS))
        self._multiply = needed_library().multiply
        self._parts = _joined(weights)
        self._starts = [0, *accumulate(part.outputs for part in self._parts)][:-1]
        self._products = {
            dtypes: [(part.y, ctypes.pointer(part)) for part in self.parts(*dtypes)]
            for dtypes in product((torch.float32, torch.bfloat16), repeat=2)
        }

    @property
    def writable(self) -> bool:  # type: ignore[override]
        """See `Linear`: in few bits other numbers would have other scales."""
        return all(part.bits == 16 for part in self._parts)

    def write(self, start: int, rows: torch.Tensor) -> None:
        """See `Linear.write`."""
        for first, part in zip(self._starts, self._parts, strict=True):
            low, high = max(start, first), min(start + len(rows), first + part.outputs)
            if low < high:
                part.write(low - first, rows[low - start : high - start])

    def parts(self, dtype: torch.dtype, given: torch.dtype) -> ctypes.Array[Product]:
        """Its weights for the C functions, which it keeps alive, of inputs in one dtype and outputs
        in another: `y` is where those of one begin, in bytes.
        """
        made = (Product * len(self._parts))()
        for i, (start, part) in enumerate(zip(self._starts, self._parts, strict=True)):
            made[i] = part.product(
                y=start * given.itemsize,
                y_stride=self._outputs,
                bias=0 if self._bias is None else self._bias.data_ptr() + 4 * start,
                bfloat16=dtype == torch.bfloat16,
                rounds=given == torch.bfloat16,
            )
        return made

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """See `Linear`; in the dtype of `x`."""
        return self._into(x, x.dtype)

    def widely(self, x: torch.Tensor) -> torch.Tensor:
        """See `Linear.widely`."""
        return self._into(x, torch.float32)

    def add_to(self, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """See `Linear.add_to`."""
        return self._into(x, residual.dtype, residual.contiguous())

    def _into(
        self, x: torch.Tensor, given: torch.dtype, residual: torch.Tensor | None = None
    ) -> torch.Tensor:
        x = x.contiguous()
        rows = x.shape[0]
        y = x.new_empty(rows, self._outputs, dtype=given)
        for offset, part in self._products[x.dtype, given]:
            offset = offset or 0
            beside = None if residual is None else residual.data_ptr() + offset
            if self._multiply(part, x.data_ptr(), beside, y.data_ptr() + offset, rows):
                raise MemoryError("a product of weights in few bits")
        return y
