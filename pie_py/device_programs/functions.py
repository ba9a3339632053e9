"""The functions of the language, and the methods of its tensors, beside the plain operations.

Each takes the recording first, which a program does not see. Names, parameters and docstrings are
those that programs, and the stubs of the SDKs, have.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from inspect import Parameter, Signature, signature
from typing import Any, NamedTuple

from pie_py.device_programs.language import (
    ATTEND,
    OPERATIONS,
    SIZES,
    VOCABULARY,
    Kind,
    Mistake,
    Rule,
)
from pie_py.device_programs.recording import Recording, Size, Tensor, check_known

Function = Callable[..., Any]
_ELSEWHERE = {"neg", "abs", "not"}  # operators
_LARGEST_INT = 1 << 64


class Word(NamedTuple):
    """A function of the language, or a tensor's method, as a text names it."""

    name: str
    function: Function
    own: tuple[Any, ...] = ()  # the tensor whose method it is
    reads: bool = False  # it takes the reader, and not the recording

    def __repr__(self) -> str:
        return f"the function `{self.name}`"

    def call(self, first: Any, values: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """Calls it with the reader or recording, and a text's values.

        Raises:
            Mistake: it takes others.
        """
        try:
            return self.function(first, *self.own, *values, **named)
        except TypeError:
            taken = signature(self.function)
            try:
                taken.bind(first, *self.own, *values, **named)
            except TypeError:
                names = [*taken.parameters][1 + len(self.own) :]
                raise Mistake(f"{self.name} takes {', '.join(names) or 'nothing'}") from None
            raise


# Functions


def iota(r: Recording, size: int = VOCABULARY) -> Tensor:
    """0, 1, 2 and so on, int `[size]`; by default all tokens."""
    return r.add("iota", attributes=(size,))


def lens(r: Recording, residual: Any) -> Tensor:
    """The logits that the last norm and the head make of a residual stream, float
    `[vocabulary]`; of samplers and programs in the layers.
    """
    return r.add("lens", residual, attributes=(r.vocabulary,))


def where(r: Recording, condition: Any, a: Any, b: Any) -> Tensor:
    """`a` where a condition is true, else `b`."""
    if not isinstance(condition, Tensor):
        raise Mistake("where takes a tensor as its condition: `a if condition else b` of constants")
    like = next((one.type.kind for one in (a, b) if isinstance(one, Tensor)), Kind.FLOAT)
    return r.add("where", condition, r.tensor(a, like), r.tensor(b, like))


def nucleus(r: Recording, logits: Any, share: Any, by: Any = None) -> Tensor:
    """True for the fewest of the likeliest that have a share of all probability: bool `[n]`; or of
    the largest `by` other numbers `[n]`.
    """
    if by is None:
        return r.add("nucleus", logits, share)
    return r.add("nucleus_by", logits, share, by)


def one_hot(r: Recording, place: Any, size: int = VOCABULARY) -> Tensor:
    """True at a place, bool `[size]`."""
    return r.add("eq", iota(r, size), place)


def random(r: Recording, numbers: Any, stream: int = 0) -> Tensor:
    """Random numbers, 0 up to 1, of ints: seed, step, stream and number alone decide."""
    return r.add("random", numbers, attributes=(stream,))


def uniform(r: Recording, stream: int = 0) -> Tensor:
    """One random number, 0 up to 1."""
    return random(r, -1, stream)


def exponential(r: Recording, numbers: Any, stream: int = 0) -> Tensor:
    """As `random`, exponentially distributed."""
    return r.add("exponential", numbers, attributes=(stream,))


def draw(r: Recording, logits: Any, stream: int = 0) -> Tensor:
    """A token by chance: int, with the probabilities that logits `[n]` stand for."""
    logits = r.tensor(logits)
    if len(logits.type.shape) != 1:
        raise Mistake(f"draw takes one axis, not {logits.type}")
    noise = r.add("log", exponential(r, iota(r, logits.type.shape[0]), stream))
    return r.add("argmax", r.add("sub", logits, noise))


def sqrt(r: Recording, value: Any) -> Any:
    """The square root, of a tensor or a number."""
    check_known(value)
    return r.add("sqrt", value) if isinstance(value, Tensor) else math.sqrt(value)


def exp(r: Recording, value: Any) -> Any:
    """`e` to the power of a tensor or a number."""
    check_known(value)
    return r.add("exp", value) if isinstance(value, Tensor) else math.exp(value)


def log(r: Recording, value: Any) -> Any:
    """The natural logarithm of a tensor or a number; minus infinity of 0."""
    check_known(value)
    if isinstance(value, Tensor):
        return r.add("log", value)
    return math.log(value) if value else -math.inf


# Methods


def _where(r: Recording, own: Tensor, condition: Any, other: Any) -> Tensor:
    """Itself where a condition is true, else another value."""
    return where(r, condition, own, other)


def _softmax(r: Recording, own: Tensor) -> Tensor:
    """Probabilities along the last axis."""
    return r.add("exp", r.add("log_softmax", own))


def _mean(r: Recording, own: Tensor) -> Tensor:
    """The mean along the last axis, whose size is known."""
    size = own.type.shape[-1] if own.type.shape else 1
    if size in SIZES:
        raise Mistake(f"mean of {own}, whose size is no number: take `sum` and divide it")
    return r.add("div", r.add("sum", own), float(size))


def _descending(r: Recording, own: Tensor) -> Tensor:
    """Places along the last axis, that of the largest first, equal ones in their order."""
    return r.add("argsort", r.add("neg", own))


def _to(kind: Kind, r: Recording, own: Tensor) -> Tensor:
    """As another kind: of a float the part before the point, 0 for NaN; true is 1, and a number is
    true if it is not 0.
    """
    return r.add("cast", own, attributes=(kind,))


def _reshape(r: Recording, own: Tensor, *sizes: int) -> Tensor:
    """The same elements with other sizes."""
    return r.add("reshape", own, attributes=sizes)


def _scatter_add(r: Recording, own: Tensor, places: Any, values: Any) -> Tensor:
    """With values added at places; those outside are left out."""
    return r.add("scatter_add", own, r.tensor(places), values)


def _scatter_max(r: Recording, own: Tensor, places: Any, values: Any) -> Tensor:
    """With a value at a place that is larger (of bools: true); those outside are left out."""
    return r.add("scatter_max", own, r.tensor(places), values)


def _with_at(r: Recording, own: Tensor, place: Any, value: Any) -> Tensor:
    """With a value at a place of its one axis; the same if it lies outside."""
    return where(r, r.add("eq", iota(r, *own.type.shape), place), value, own)


def item(r: Recording, own: Tensor, place: Any) -> Tensor:
    """Elements (of two axes: rows) at places; or, of a slice, part of the last axis.

    Raises:
        Mistake: a slice of what has no known size, without an end.
    """
    if not isinstance(place, slice):
        if isinstance(place, int) and place < 0:
            place += own.size
        return r.add("gather", own, r.tensor(place))
    size = own.type.shape[-1] if own.type.shape else 0
    if size in SIZES:
        known = (place.start or 0) >= 0 and place.stop is not None and place.stop >= 0
        if not known or place.step is not None:
            raise Mistake(f"a slice of {own} needs an end, and counts from its beginning")
        return r.add("slice", own, attributes=(place.start or 0, place.stop))
    start, stop, stride = place.indices(size)
    if stride != 1:
        raise Mistake(f"a slice with a step of {stride}: only 1")
    return r.add("slice", own, attributes=(start, stop))


def _of_operation(name: str, *parameters: str) -> Function:
    """The function that is an operation: it takes the operands, and then the attributes."""
    of = OPERATIONS.get(name) or ATTEND[name]
    kinds = ["Any"] * of.operands + ["int"] * len(of.attributes)
    signature = Signature(
        [
            Parameter(parameter, Parameter.POSITIONAL_OR_KEYWORD, annotation=kind)
            for parameter, kind in zip(("r", *parameters), ("Recording", *kinds), strict=True)
        ],
        return_annotation="Tensor",
    )

    def function(*values: Any, **named: Any) -> Tensor:
        r, *given = signature.bind(*values, **named).arguments.values()
        found: Tensor = r.add(name, *given[: of.operands], attributes=given[of.operands :])
        return found

    function.__name__, function.__doc__ = name, of.doc
    function.__dict__["__signature__"] = signature
    return function


_FUNCTIONS: tuple[Function, ...] = (
    iota,
    *map(_of_operation, ("step", "tokens", "layer", "counts", "given")),
    lens,
    _of_operation("shared", "values"),
    _of_operation("newest", "count"),
    _of_operation("beside", "number"),
    where,
    *(_of_operation(name, "a", "b") for name in ("minimum", "maximum", "hash", "concat")),
    nucleus,
    _of_operation("repeats", "text", "most"),
    _of_operation("matvec", "matrix", "vector"),
    *(one_hot, random, uniform, exponential, draw, sqrt, exp, log),
)
FUNCTIONS = {one.__name__: one for one in _FUNCTIONS}
METHODS: dict[str, Function] = {
    **{f"to_{kind.name.lower()}": partial(_to, kind) for kind in Kind},
    "top": _of_operation("top", "own", "count"),
    "transpose": _of_operation("transpose", "own"),
    "where": _where,
    "softmax": _softmax,
    "mean": _mean,
    "descending": _descending,
    "reshape": _reshape,
    "scatter_add": _scatter_add,
    "scatter_max": _scatter_max,
    "with_at": _with_at,
}
# Methods that are an operation each.
PLAIN = {
    name: of.doc
    for name, of in OPERATIONS.items()
    if of.rule in (Rule.MAP, Rule.REDUCE, Rule.SCAN) and name not in _ELSEWHERE
}
NAMES = {
    **{name.upper(): Size(size) for size, name in SIZES.items()},
    "inf": math.inf,
    "pi": math.pi,
    "e": math.e,
}


# Operators: of tensors their operations, of numbers Python's

_SWAPPED = {"gt": "lt", "ge": "le"}


def binary(r: Recording, operation: str, a: Any, b: Any, plain: Function) -> Any:
    """The result of an operator: `operation` of tensors, `plain` of numbers and texts."""
    if not (isinstance(a, Tensor) or isinstance(b, Tensor)):
        return _number(operation, a, b, plain)
    if operation in _SWAPPED:
        return r.add(_SWAPPED[operation], b, a)
    if operation in ("eq", "ne"):
        same = r.add("eq", *((a, b) if isinstance(a, Tensor) else (b, a)))
        return r.add("not", same) if operation == "ne" else same
    return r.add(operation, a, b)


def _number(operation: str, a: Any, b: Any, plain: Function) -> Any:
    """Of two constants. Texts and lists are compared alone; whole numbers stay those of 64 bits."""
    numbers = all(isinstance(one, bool | int | float) for one in (a, b))
    if operation not in ("eq", "ne"):
        check_known(a, b)
    if not numbers and operation not in ("eq", "ne"):
        raise Mistake(f"{operation} of {a!r:.40} and {b!r:.40}: of numbers and tensors alone")
    if operation in ("shl", "pow") and not (abs(a) < _LARGEST_INT and abs(b) <= 64):
        raise Mistake(f"{operation} of {a} and {b} is too large")
    found = plain(a, b)
    if isinstance(found, int) and abs(found) > _LARGEST_INT:
        raise Mistake(f"{operation} of {a} and {b} is too large")
    return found


def negative(r: Recording, value: Any) -> Any:
    """`-x`."""
    check_known(value)
    return r.add("neg", value) if isinstance(value, Tensor) else -value


def inverted(r: Recording, value: Any) -> Any:
    """`~x`: of bools not, of ints bit by bit."""
    check_known(value)
    if not isinstance(value, Tensor):
        return ~value
    return r.add("xor", value, -1) if value.type.kind is Kind.INT else r.add("not", value)
