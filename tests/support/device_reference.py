"""What each operation means, in plain Python: slow, and what every backend is held to.

A value is a number, or a list (of lists) of numbers. Floats are rounded to float32 after each
operation; whole numbers wrap around at 64 bits.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

from pie_py.device_programs.language import (
    HEADS,
    OPERATIONS,
    PAGES,
    TOKENS,
    VOCABULARY,
    Kind,
    Rule,
    Type,
)
from pie_py.device_programs.program import Node, Program, sizes_of

_LARGEST = (2 - 2.0**-23) * 2.0**127  # float32
_GAMMA, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_WORD = (1 << 64) - 1


class Row(NamedTuple):
    """What one row of a step has.

    Attributes:
        logits: of each token.
        newest: tokens of the text, the last one last.
        counts: how often each token was generated.
        given: whether the text before has each token.
        seed: of the sampler.
        step: how many tokens it has chosen before.
        beside: logits of contexts beside.
    """

    logits: Sequence[float]
    newest: Sequence[int] = ()
    counts: Sequence[int] = ()
    given: Sequence[bool] = ()
    seed: int = 0
    step: int = 0
    beside: Sequence[Sequence[float]] = ()

    @property
    def sizes(self) -> dict[int, int]:
        """Those that are not known before."""
        return {VOCABULARY: len(self.logits)}


class AttendRow(NamedTuple):
    """What a layer has for a program of the stage `attend`.

    Attributes:
        given: the weights `[heads, tokens]` or the scores `[heads, pages]`.
        tokens: of the context.
        pages: of the context.
        layer: its number.
        step: how many tokens were chosen before.
        sharing: heads that share keys.
    """

    given: Sequence[Sequence[float]]
    tokens: int
    pages: int
    layer: int = 0
    step: int = 0
    sharing: int = 1

    @property
    def sizes(self) -> dict[int, int]:
        """Those that are not known before."""
        return {HEADS: len(self.given), TOKENS: self.tokens, PAGES: self.pages}


def run(program: Program, row: Row, state: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
    """The token, and the state of the next step.

    Args:
        program: which one.
        row: what the step has.
        state: values by name; those that do not change are left alone.
    """
    token, following = _run(program, row, state)
    return token, following


def run_attend(
    program: Program, row: AttendRow, state: Mapping[str, Any]
) -> tuple[list[bool], dict[str, Any]]:
    """Which tokens or pages are kept, and the state of the layer in the next step."""
    kept, following = _run(program, row, state)
    return kept, following


def _run(
    program: Program, row: Row | AttendRow, state: Mapping[str, Any]
) -> tuple[Any, dict[str, Any]]:
    values = evaluate(program, row, state)
    following = {program.names[place].name: values[node] for place, node in program.next.items()}
    return _token(program, values), {**state, **following}


def _token(program: Program, values: list[Any]) -> Any:
    """The token: none, -1, where all are ruled out, nor, -2, where the largest is no number or one
    of several infinities.
    """
    node, token = program.nodes[program.token], values[program.token]
    if node.operation != "argmax" or program.nodes[node.operands[0]].type.kind != Kind.FLOAT:
        return token
    row = values[node.operands[0]]
    if row[token] != row[token] or row.count(math.inf) > 1:
        return -2
    return -1 if row[token] == -math.inf else token


def evaluate(program: Program, row: Row | AttendRow, state: Mapping[str, Any]) -> list[Any]:
    """The value of every node."""
    values: list[Any] = []
    for node in program.nodes:
        operands = [values[i] for i in node.operands]
        types = [program.nodes[i].type for i in node.operands]
        if node.operands:
            values.append(_result(node, operands, types, row))
        elif node.operation in ("step", "state", "constant", "iota"):
            values.append(_given(program, node, row, state))
        elif isinstance(row, Row):
            values.append(_of_text(node, row))
        else:
            layer = {"tokens": row.tokens, "layer": row.layer}
            values.append(layer.get(node.operation, row.given))
    return values


def _of_text(node: Node, row: Row) -> Any:
    vocabulary = len(row.logits)
    match node.operation, node.attributes:
        case "logits", _:
            return list(row.logits)
        case "newest", [count]:
            return ([-1] * count + list(row.newest))[-count:]
        case "counts", _:
            return list(row.counts) or [0] * vocabulary
        case "given", _:
            return list(row.given) or [False] * vocabulary
        case "beside", [number]:
            return list(row.beside[number])
    raise AssertionError(node)


def _given(program: Program, node: Node, row: Row | AttendRow, state: Mapping[str, Any]) -> Any:
    match node.operation, node.attributes:
        case "step", _:
            return row.step
        case "state", [number]:
            return state[program.names[number].name]
        case "constant", [kind, value]:
            if kind == Kind.FLOAT:
                return struct.unpack("<f", struct.pack("<I", value))[0]
            return bool(value) if kind == Kind.BOOL else value
        case _, [size]:
            return list(range(row.sizes.get(size, size)))
    raise AssertionError(node)


def _result(node: Node, operands: list[Any], types: list[Type], row: Row | AttendRow) -> Any:
    name = node.operation
    kind, attributes = node.type.kind, node.attributes
    rounded = _ROUNDED[kind]
    sizes = sizes_of(node.type.shape, row.sizes)
    if name in _ELEMENTWISE:
        function = _ELEMENTWISE[name]
        spread = [_spread(value, one, sizes) for value, one in zip(operands, types, strict=True)]
        return _each(lambda *parts: rounded(function(*parts)), spread, len(sizes))
    if name == "cast":
        return _each(lambda x: rounded(_whole(x) if kind is Kind.INT else x), operands, len(sizes))
    if name == "shared" and isinstance(row, AttendRow):
        firsts = [i - i % row.sharing for i in range(len(operands[0]))]
        groups = [operands[0][i : i + row.sharing] for i in firsts]
        return [[_largest(column) for column in zip(*one, strict=True)] for one in groups]
    if name in ("random", "exponential") and isinstance(row, Row):
        start = _mix(_mix(row.seed + _GAMMA) + row.step * _GAMMA)
        if attributes[0]:
            start = splitmix(start, -1 - attributes[0])
        chance = _uniform if name == "random" else _exponential
        return _each(lambda x: chance(splitmix(start, x)), operands, len(sizes))
    if OPERATIONS[name].rule in (Rule.REDUCE, Rule.SCAN):
        along = _ALONG[name]
        scanned = _rows(operands[0], len(types[0].shape), along)
        return _each(rounded, [scanned], len(sizes))
    return _own(name, operands, types, attributes, rounded)


def _own(
    name: str,
    operands: list[Any],
    types: list[Type],
    attributes: tuple[int, ...],
    rounded: Callable[[Any], Any],
) -> Any:
    first, axes = operands[0], len(types[0].shape)
    match name:
        case "top":
            order = sorted(range(len(first)), key=lambda i: (-_at_least(first[i]), i))
            return (order + [-1] * attributes[0])[: attributes[0]]
        case "nucleus":
            return _nucleus(first, operands[1], first)
        case "nucleus_by":
            return _nucleus(*operands)
        case "repeats":
            return [same_as_last(first[: i + 1], first, attributes[0]) for i in range(len(first))]
        case "slice":
            return _rows(first, axes, lambda row: row[attributes[0] : attributes[1]])
        case "concat":
            if axes == 1:
                return first + operands[1]
            return [a + b for a, b in zip(first, operands[1], strict=True)]
        case "gather":
            nothing: Any = [rounded(0)] * len(first[0]) if axes == 2 else rounded(0)
            found = lambda i: first[i] if 0 <= i < len(first) else nothing  # noqa: E731
            return _each(found, [operands[1]], len(types[1].shape))
        case "scatter_add" | "scatter_max":
            new = operands[2] if types[2].shape else [operands[2]] * len(operands[1])
            new = new * len(operands[1]) if len(new) == 1 else new
            result = list(first)
            for place, value in zip(operands[1], new, strict=True):
                if 0 <= place < len(result):
                    both = (result[place], value)
                    result[place] = rounded(sum(both) if name == "scatter_add" else _largest(both))
            return result
        case "reshape":
            flat = [first] if not axes else first if axes == 1 else list(chain.from_iterable(first))
            if not attributes:
                return flat[0]
            if len(attributes) == 1:
                return flat
            width = len(flat) // attributes[0] if attributes[0] > 0 else attributes[1]
            return [flat[i : i + width] for i in range(0, len(flat), width)]
        case "transpose":
            return [list(column) for column in zip(*first, strict=True)]
        case "matvec":
            return [
                f32(_total([a * b for a, b in zip(row, operands[1], strict=True)])) for row in first
            ]
    raise AssertionError(name)


def f32(x: float) -> float:
    """The nearest float32."""
    if isinstance(x, int) and (low := x.bit_length() - 32) > 0:
        # Not by way of float64, which would round before: a bit stands for all below it.
        x = (x >> low | (x & ((1 << low) - 1) != 0)) << low
    try:
        return float(struct.unpack("<f", struct.pack("<f", x))[0])
    except OverflowError:
        return math.copysign(math.inf, x)


def i64(x: int) -> int:
    """The lowest 64 bits, with a sign."""
    return ((int(x) + (1 << 63)) & _WORD) - (1 << 63)


def splitmix(start: int, number: int) -> int:
    """A number of the SplitMix64 sequence that begins at a word (Steele, Lea and Flood 2014)."""
    return i64(_mix(start + (number + 1) * _GAMMA))


def _mix(word: int) -> int:
    word &= _WORD
    word = ((word ^ (word >> 30)) * _FIRST) & _WORD
    word = ((word ^ (word >> 27)) * _SECOND) & _WORD
    return word ^ (word >> 31)


def _uniform(word: int) -> float:
    return ((word & _WORD) >> 40) * 2.0**-24


def _exponential(word: int) -> float:
    uniform = min(f32(f32(f32((word & _WORD) >> 32) * 2.0**-32) + 2.0**-33), 1 - 2.0**-24)
    return f32(-math.log1p(-uniform))


def _whole(x: float) -> int:
    if isinstance(x, int):
        return x
    if x != x:
        return 0
    return int(max(-(2.0**62), min(2.0**62, x)))


def _at_least(x: float) -> float:
    return -math.inf if x != x else x


def _largest(values: Sequence[Any]) -> Any:
    return math.nan if any(x != x for x in values) else max(values)


def _smallest(values: Sequence[Any]) -> Any:
    return math.nan if any(x != x for x in values) else min(values)


def _power(a: float, b: float) -> float:
    try:
        found = a**b
    except (ZeroDivisionError, OverflowError):
        if a < 0 and b != math.floor(b):
            return math.nan
        return math.copysign(math.inf, a) if b % 2 == 1 else math.inf
    return math.nan if isinstance(found, complex) else found


def _divided(a: float, b: float) -> float:
    if b == 0:
        signs = math.copysign(1, a) * math.copysign(1, b)
        return math.nan if a == 0 or a != a else signs * math.inf
    return a / b


def _or_nan(function: Callable[[float], float]) -> Callable[[float], float]:
    def safe(x: float) -> float:
        try:
            return function(x)
        except ValueError:
            return math.nan
        except OverflowError:
            return math.inf

    return safe


def _bits(of_bools: Callable[[Any, Any], Any], of_ints: Callable[[int, int], int]) -> Any:
    return lambda a, b: of_bools(a, b) if isinstance(a, bool) else of_ints(a, b)


_ROUNDED: dict[Kind, Callable[[Any], Any]] = {Kind.FLOAT: f32, Kind.INT: i64, Kind.BOOL: bool}
_ELEMENTWISE: dict[str, Callable[..., Any]] = {
    "neg": lambda x: -x,
    "abs": abs,
    "floor": lambda x: x if not math.isfinite(x) else math.copysign(math.floor(x), x),
    "sqrt": _or_nan(math.sqrt),
    "exp": _or_nan(math.exp),
    "log": lambda x: -math.inf if x == 0 else _or_nan(math.log)(x),
    "tanh": math.tanh,
    "sigmoid": lambda x: 1 / (1 + _or_nan(math.exp)(-x)),
    "not": lambda x: not x,
    "is_nan": lambda x: x != x,
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": _divided,
    "pow": _power,
    "minimum": lambda a, b: _smallest((a, b)),
    "maximum": lambda a, b: _largest((a, b)),
    "floordiv": lambda a, b: a // b if b else 0,
    "mod": lambda a, b: a - a // b * b if b else 0,
    "and": _bits(lambda a, b: a and b, lambda a, b: a & b),
    "or": _bits(lambda a, b: a or b, lambda a, b: a | b),
    "xor": _bits(lambda a, b: a != b, lambda a, b: a ^ b),
    "shl": lambda a, b: a << (b & 63),
    "shr": lambda a, b: (a & _WORD) >> (b & 63),
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "eq": lambda a, b: a == b,
    "hash": splitmix,
    "where": lambda condition, a, b: a if condition else b,
}


def _log_softmax(row: list[float]) -> list[float]:
    highest = _largest(row)
    if not math.isfinite(highest):
        return [math.nan] * len(row)
    whole = math.log(math.fsum(math.exp(x - highest) for x in row))
    return [x - highest - whole for x in row]


def same_as_last(begin: list[int], text: list[int], most: int) -> int:
    *before, own = begin
    found = 0
    while own >= 0 and found < min(most, len(before)):
        if not 0 <= before[-1 - found] == text[-1 - found]:
            break
        found += 1
    return found


def _nucleus(row: list[float], share: float, by: list[float]) -> list[bool]:
    row, by = ([max(-_LARGEST, min(_LARGEST, _at_least(x))) for x in each] for each in (row, by))
    order = sorted(range(len(row)), key=lambda i: (-by[i], i))
    weights = [math.exp(x - max(row)) for x in row]
    total, before, found = math.fsum(weights), 0.0, [False] * len(row)
    for i in order:
        found[i] = i == order[0] or before < share * total or share >= 1
        before += weights[i]
    return found


def _total(row: list[Any]) -> Any:
    return math.fsum(row) if all(map(math.isfinite, row)) else sum(row)


def _sums(row: list[Any]) -> list[Any]:
    found, total = [], row[0] * 0 if isinstance(row[0], int) else 0.0
    for x in row:
        total += x
        found.append(total)
    return found


def _order(row: list[Any]) -> list[int]:
    is_nan = [x != x for x in row]
    return sorted(range(len(row)), key=lambda i: (is_nan[i], 0 if is_nan[i] else row[i], i))


_ALONG: dict[str, Callable[[list[Any]], Any]] = {
    "sum": sum,
    "max": _largest,
    "min": _smallest,
    "any": any,
    "all": all,
    "argmax": lambda row: max(range(len(row)), key=lambda i: (_at_least(row[i]), -i)),
    "cumsum": _sums,
    "log_softmax": _log_softmax,
    "sort": lambda row: [row[i] for i in _order(row)],
    "argsort": _order,
    "flip": lambda row: row[::-1],
}


def _rows(value: Any, axes: int, function: Callable[[list[Any]], Any]) -> Any:
    return function(value) if axes == 1 else [function(row) for row in value]


def _each(function: Callable[..., Any], values: list[Any], axes: int) -> Any:
    if axes == 0:
        return function(*values)
    return [_each(function, list(parts), axes - 1) for parts in zip(*values, strict=True)]


def _spread(value: Any, of: Type, sizes: tuple[int, ...]) -> Any:
    """A value with these sizes: an axis of size 1, or none, is repeated."""
    for _ in range(len(sizes) - len(of.shape)):
        value = [value]
    return _repeated(value, sizes)


def _repeated(value: Any, sizes: tuple[int, ...]) -> Any:
    if not sizes:
        return value
    rows = value * sizes[0] if len(value) == 1 else value
    return [_repeated(row, sizes[1:]) for row in rows]
