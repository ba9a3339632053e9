"""The operations of device programs on tensors.

`tests/support/device_reference.py` says what they mean. A value is `[n, *sizes]`, or `[1, *sizes]`
if it is the same for all rows. None asks a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from pie_inference.device import Bool
from pie_inference.sampling.choose import top_tokens
from pie_inference.sampling.noise import exponentials, numbers
from pie_py.device_programs.language import Kind

Function: TypeAlias = Callable[..., torch.Tensor]
DTYPES = {Kind.FLOAT: torch.float32, Kind.INT: torch.int64, Kind.BOOL: torch.bool}
NUCLEUS = 256  # elements that are sorted for a nucleus on a CPU, at most
_FAR = 2.0**62
_LEAST = torch.finfo(torch.float32).min
_LEAST_POWER = -87.33655  # the logarithm of the smallest normal number


def _floordiv(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """By 0 it is 0. A CPU traps at both -1 and 0."""
    odd = (b == 0) | (b == -1)
    found = torch.div(a, b.masked_fill(odd, 1), rounding_mode="floor")
    return torch.where(odd, torch.where(b == 0, 0, -a), found)


def _mod(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.where(b == 0, 0, a - _floordiv(a, b) * b)


def _shr(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """torch brings in copies of the sign."""
    by = b & 63
    return (a >> by) & ((torch.ones_like(by) << (63 - by)) * 2 - 1)


def _sqrt(x: torch.Tensor) -> torch.Tensor:
    """torch's own takes a CPU 30 times as long for negative numbers, and those below 2**-126."""
    if x.device.type != "cpu":
        return x.sqrt()
    with np.errstate(invalid="ignore"):
        return torch.from_numpy(np.sqrt(x.numpy()))


def _exp(x: torch.Tensor) -> torch.Tensor:
    """Without results below 2**-126, each of which takes a CPU as long as 40 others."""
    return torch.threshold(x, _LEAST_POWER, -torch.inf).exp_()


def _where(condition: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Of bools by logic, which takes a CPU a tenth of the time."""
    if a.dtype is torch.bool:
        return (condition & a) | (~condition & b)
    return torch.where(condition, a, b)


def _least(x: torch.Tensor) -> torch.Tensor:
    """Along the last axis; of whole numbers torch finds the largest faster."""
    return x.amin(-1) if x.dtype.is_floating_point else ~(~x).amax(-1)


def _sigmoid(x: torch.Tensor) -> torch.Tensor:
    """torch's own depends, on a CPU, on where in memory an element lies."""
    return 1 / (1 + _exp(-x))


def _pow(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """In float64, for the reason of `_sigmoid`: what differs there is rounded away."""
    return a.double().pow(b.double()).float()


def total(x: torch.Tensor) -> torch.Tensor:
    """The sum along the last axis. A CPU adds up a row that is alone in another order."""
    if x.device.type == "cpu" and x.numel() == x.shape[-1]:
        return x.expand(2, *x.shape[1:]).sum(-1)[:1]
    return x.sum(-1)


def matvec(matrix: torch.Tensor, vector: torch.Tensor) -> torch.Tensor:
    """Products, which are exact in float64, added up: as a BLAS's, whatever rows are beside."""
    return total(matrix.double() * vector.double()[:, None]).float()


def _below_nan(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x.isnan(), -torch.inf, x) if x.dtype.is_floating_point else x


def argmax(x: torch.Tensor) -> torch.Tensor:
    """Along the last axis; NumPy has vector instructions for that on a CPU."""
    if x.device.type != "cpu":
        return _below_nan(x).argmax(-1)
    found = torch.from_numpy(x.numpy().argmax(-1, keepdims=True))
    if x.dtype.is_floating_point and bool(x.gather(-1, found).isnan().any()):  # it found the first
        found = torch.from_numpy(_below_nan(x).numpy().argmax(-1, keepdims=True))
    return found.squeeze(-1)


def ordered(x: torch.Tensor) -> torch.Tensor:
    """Sorted along the last axis; NumPy has vector instructions for that on a CPU."""
    if x.device.type != "cpu":
        return x.sort(dim=-1).values
    return torch.from_numpy(np.sort(x.numpy(), axis=-1))


def top(x: torch.Tensor, count: int) -> torch.Tensor:
    """Places of the largest, `[n, count]`."""
    if x.dtype is torch.float32:
        return top_tokens(_below_nan(x), count)
    return (~x).sort(dim=-1, stable=True).indices[:, :count]  # `-x` would wrap around


def nucleus(x: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
    """The largest that reach a share `[n]` of the sum of `exp(x)`: bool `[n, m]`."""
    if x.device.type != "cpu":
        return nucleus_by(x, share, x)
    rows = max(len(x), len(share))
    x, share = x.nan_to_num(_LEAST, -_LEAST, _LEAST).expand(rows, -1), share.expand(rows)
    each = zip(x.numpy(), share.tolist(), strict=True)
    with np.errstate(over="ignore"):  # of differences: minus infinity is right
        return torch.from_numpy(np.stack([_nucleus_of(row, part) for row, part in each]))


def nucleus_by(x: torch.Tensor, share: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
    """As `nucleus`, of the largest by other numbers `[n, m]`."""
    rows, size = max(len(x), len(share), len(by)), x.shape[1]
    x, by = (each.nan_to_num(_LEAST, -_LEAST, _LEAST).expand(rows, -1) for each in (x, by))
    weights = (x - x.amax(-1, keepdim=True)).exp()
    mass = weights.sum(-1, dtype=torch.float64)
    wanted = torch.where(share >= 1, torch.inf, share * mass)[:, None]
    # On a CPU few are sorted at first, and more while they are not enough.
    for count in (size,) if x.device.type != "cpu" else (NUCLEUS // 4, NUCLEUS * 4, size):
        order = ranked(-by, count)
        own = weights.gather(1, order).double()
        if count >= size or not bool((own.sum(1, keepdim=True) < wanted).any()):
            break
    inside = own.cumsum(1) - own < wanted  # rounding leaves out nothing where all is wanted
    inside[:, 0] = True
    return torch.zeros_like(x, dtype=torch.bool).scatter_(1, order, inside)


def _nucleus_of(values: NDArray[np.float32], share: float) -> Bool:
    """As `nucleus`, of one row on a CPU. Not all is sorted: the part in which the last one lies is
    split until it is small.
    """
    best = values.max()
    wanted = share * _mass(values, best)
    if share >= 1:
        return np.ones(values.size, np.bool_)
    count, before, width = 0, 0.0, NUCLEUS  # what is inside for certain, and its weight
    left = values
    while left.size > NUCLEUS:
        left = np.partition(left, left.size - width)
        mass = _mass(left[-width:], best)
        if before + mass < wanted:
            count, before, left = count + width, before + mass, left[:-width]
        else:
            left = left[-width:]
        width = max(NUCLEUS, left.size // 2)
    left = np.sort(left)[::-1]
    sums = before + np.exp(left - best).cumsum(dtype=np.float64)
    last = min(int((sums < wanted).sum()), left.size - 1)
    inside: Bool = values >= left[last]
    more = np.count_nonzero(inside) - (count + last + 1)
    if more:  # of equal ones the first
        inside[np.flatnonzero(values == left[last])[-more:]] = False
    return inside


def _mass(values: NDArray[np.float32], best: np.float32) -> float:
    return float(np.exp(values - best).sum(dtype=np.float64))


def repeats(text: torch.Tensor, most: int) -> torch.Tensor:
    """How many elements before each of `[n, m]` are the same as the last ones of a row."""
    if text.device.type == "cpu":
        return torch.from_numpy(_repeats(text.numpy(), most))
    size, lengths = text.shape[1], torch.zeros_like(text)
    alike = text >= 0
    for i in range(min(most, size - 1)):
        own = text[:, size - 1 - i, None]
        alike[:, : i + 1] = False
        alike[:, i + 1 :] &= (text[:, : size - 1 - i] == own) & (own >= 0)
        lengths += alike
    return lengths


def _repeats(text: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """As `repeats`, on a CPU: in bytes, as far as anything is alike."""
    last, alike = text.shape[1] - 1, text >= 0
    ends = np.where(alike, text, -2)[:, max(0, last - most) :]
    text = np.where(alike, text, -1)  # which no end is
    lengths = np.zeros(text.shape, np.min_scalar_type(most))
    for i in range(min(most, last)):
        alike = alike[:, 1:]  # behind one more token
        alike &= text[:, : last - i] == ends[:, -1 - i, None]
        if not alike.any():
            break
        lengths[:, i + 1 :] += alike
    return lengths.astype(np.int64)


def ranked(x: torch.Tensor, count: int | None = None) -> torch.Tensor:
    """Places in order along the last axis, the first `count` of them, equal ones as they stand, NaN
    last. On a CPU NumPy sorts numbers and places as one, with vector instructions.
    """
    if x.device.type != "cpu" or x.dtype is not torch.float32 or x.isnan().any():
        return x.sort(dim=-1, stable=True).indices[..., :count]
    bits = (x.numpy() + np.float32(0)).view(np.int32)  # as 0.0, -0.0 is its equal
    keys = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).astype(np.int64) << 32
    keys |= np.arange(x.shape[-1])
    if count is not None and count < x.shape[-1]:
        return torch.from_numpy(keys).topk(count, largest=False).values & 0xFFFFFFFF
    keys.sort(axis=-1)
    return torch.from_numpy(keys & 0xFFFFFFFF)


def cast(x: torch.Tensor, kind: int) -> torch.Tensor:
    """As another kind; whole numbers within ±2**62."""
    if kind == Kind.INT and x.dtype.is_floating_point:
        return x.nan_to_num(0.0, _FAR, -_FAR).clamp(-_FAR, _FAR).to(torch.int64)
    if kind == Kind.BOOL:
        return x != 0
    return x.to(DTYPES[Kind(kind)])


def gather(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Elements, or rows, at places; 0 outside."""
    rows, size = max(len(x), len(places)), x.shape[1]
    if rows == 1:
        index = places.clamp(0, size - 1)
        found = x[0].index_select(0, index.view(-1)).view(*places.shape, *x.shape[2:])
        outside = index != places
        return found.masked_fill(outside[..., None] if x.ndim == 3 else outside, 0)
    if x.ndim == 2 and places.device.type == "cpu" and _all_below(places, size):
        index = places.reshape(len(places), -1).expand(rows, -1)
        return x.expand(rows, -1).gather(1, index).reshape(rows, *places.shape[1:])
    outside = (places < 0) | (places >= size)
    index = places.masked_fill(outside, 0).reshape(len(places), -1).expand(rows, -1)
    x = x.expand(rows, *x.shape[1:])
    if x.ndim == 3:
        index = index[:, :, None].expand(-1, -1, x.shape[2])
        outside = outside[..., None]
    found = x.gather(1, index).reshape(rows, *places.shape[1:], *x.shape[2:])
    return found.masked_fill(outside, 0)


def _all_below(places: torch.Tensor, size: int) -> bool:
    """True if all lie in `0 .. size - 1`: as unsigned numbers negative ones are larger than any."""
    return places.numel() > 0 and int(places.numpy().view(np.uint64).max()) < size


def scatter(
    x: torch.Tensor, places: torch.Tensor, values: torch.Tensor, reduce: str
) -> torch.Tensor:
    """Values added at places, or the larger ones (`sum` or `amax`); none outside."""
    values = values if values.ndim == 2 else values[:, None]
    rows = max(len(x), len(places), len(values))
    x, places = x.expand(rows, -1), places.expand(rows, -1)
    values = values.expand(rows, places.shape[1])
    outside = (places < 0) | (places >= x.shape[1])
    index = places.masked_fill(outside, 0)
    is_bool = x.dtype is torch.bool
    if is_bool:
        x, values = x.to(torch.uint8), values.to(torch.uint8)
    harmless = torch.zeros_like(x[:, :1]) if reduce == "sum" else x[:, :1]
    values = torch.where(outside, harmless, values)
    found = x.scatter_reduce(1, index, values, reduce)
    return found.bool() if is_bool else found


def concat(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """One behind the other, along the last axis."""
    rows = max(len(a), len(b))
    return torch.cat((a.expand(rows, *a.shape[1:]), b.expand(rows, *b.shape[1:])), -1)


def drawn(start: torch.Tensor, x: torch.Tensor, make: Function) -> torch.Tensor:
    """`make` of the start of each row's random numbers, int64 `[n, 1]`, and numbers."""
    return make(start, x.reshape(len(x), -1)).reshape(len(start), *x.shape[1:])


def uniform(start: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """0 up to 1, of numbers `[n, m]`."""
    return (numbers(start, x) >> 40 & 0xFFFFFF).to(torch.float32) * 2.0**-24


CHANCES: dict[str, Function] = {"random": uniform, "exponential": exponentials}
# Of one value, or of several that are aligned.
ELEMENTWISE: dict[str, Function] = {
    "neg": torch.neg,
    "abs": torch.abs,
    "floor": torch.floor,
    "sqrt": _sqrt,
    "exp": _exp,
    "log": torch.log,
    "tanh": torch.tanh,
    "sigmoid": _sigmoid,
    "not": torch.logical_not,
    "is_nan": torch.isnan,
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "pow": _pow,
    "minimum": torch.minimum,
    "maximum": torch.maximum,
    "floordiv": _floordiv,
    "mod": _mod,
    "and": torch.bitwise_and,
    "or": torch.bitwise_or,
    "xor": torch.bitwise_xor,
    "shl": lambda a, b: a << (b & 63),
    "shr": _shr,
    "lt": torch.lt,
    "le": torch.le,
    "eq": torch.eq,
    "hash": lambda a, b: numbers(a, b),
    "where": _where,
}
# Along the last axis.
ALONG: dict[str, Function] = {
    "sum": total,
    "max": lambda x: x.amax(-1),
    "min": _least,
    "any": lambda x: x.any(-1),
    "all": lambda x: x.all(-1),
    "argmax": argmax,
    "cumsum": lambda x: x.cumsum(-1),
    "log_softmax": lambda x: x.log_softmax(-1),
    "sort": ordered,
    "argsort": ranked,
    "flip": lambda x: x.flip(-1),
}
# Of the operands, and then the attributes.
OWN: dict[str, Function] = {
    "nucleus": nucleus,
    "nucleus_by": nucleus_by,
    "repeats": repeats,
    "cast": cast,
    "top": top,
    "slice": lambda x, start, stop: x[..., start:stop],
    "concat": concat,
    "gather": gather,
    "scatter_add": lambda x, places, new: scatter(x, places, new, "sum"),
    "scatter_max": lambda x, places, new: scatter(x, places, new, "amax"),
    "reshape": lambda x, *sizes: x.reshape(len(x), *sizes),
    "transpose": lambda x: x.transpose(1, 2),
    "matvec": matvec,
}
