# Generated from device_programs/language.py by `python -m codegen`; do not edit.
"""Methods of the tensors of device programs: an operation each."""

from __future__ import annotations

from typing import Any, Self


class TensorMethods:
    """What `Tensor` has of the table of operations."""

    __slots__ = ()

    def _apply(self, operation: str, *others: Any) -> Self:
        raise NotImplementedError

    def _applied_to(self, operation: str, other: Any) -> Self:
        raise NotImplementedError

    def __neg__(self) -> Self:
        """`-x`."""
        return self._apply("neg")

    def __abs__(self) -> Self:
        """The absolute value."""
        return self._apply("abs")

    def floor(self) -> Self:
        """The largest whole number that is not above `x`."""
        return self._apply("floor")

    def sqrt(self) -> Self:
        """The square root; NaN below 0."""
        return self._apply("sqrt")

    def exp(self) -> Self:
        """`e` to the power of `x`."""
        return self._apply("exp")

    def log(self) -> Self:
        """The natural logarithm; minus infinity of 0, NaN below."""
        return self._apply("log")

    def tanh(self) -> Self:
        """The hyperbolic tangent."""
        return self._apply("tanh")

    def sigmoid(self) -> Self:
        """`1 / (1 + exp(-x))`."""
        return self._apply("sigmoid")

    def is_nan(self) -> Self:
        """Whether `x` is no number."""
        return self._apply("is_nan")

    def __add__(self, other: Any) -> Self:
        return self._apply("add", other)

    def __radd__(self, other: Any) -> Self:
        return self._applied_to("add", other)

    def __sub__(self, other: Any) -> Self:
        return self._apply("sub", other)

    def __rsub__(self, other: Any) -> Self:
        return self._applied_to("sub", other)

    def __mul__(self, other: Any) -> Self:
        return self._apply("mul", other)

    def __rmul__(self, other: Any) -> Self:
        return self._applied_to("mul", other)

    def __truediv__(self, other: Any) -> Self:
        return self._apply("div", other)

    def __rtruediv__(self, other: Any) -> Self:
        return self._applied_to("div", other)

    def __pow__(self, other: Any) -> Self:
        return self._apply("pow", other)

    def __rpow__(self, other: Any) -> Self:
        return self._applied_to("pow", other)

    def __floordiv__(self, other: Any) -> Self:
        return self._apply("floordiv", other)

    def __rfloordiv__(self, other: Any) -> Self:
        return self._applied_to("floordiv", other)

    def __mod__(self, other: Any) -> Self:
        return self._apply("mod", other)

    def __rmod__(self, other: Any) -> Self:
        return self._applied_to("mod", other)

    def __and__(self, other: Any) -> Self:
        return self._apply("and", other)

    def __rand__(self, other: Any) -> Self:
        return self._applied_to("and", other)

    def __or__(self, other: Any) -> Self:
        return self._apply("or", other)

    def __ror__(self, other: Any) -> Self:
        return self._applied_to("or", other)

    def __xor__(self, other: Any) -> Self:
        return self._apply("xor", other)

    def __rxor__(self, other: Any) -> Self:
        return self._applied_to("xor", other)

    def __lshift__(self, other: Any) -> Self:
        return self._apply("shl", other)

    def __rlshift__(self, other: Any) -> Self:
        return self._applied_to("shl", other)

    def __rshift__(self, other: Any) -> Self:
        return self._apply("shr", other)

    def __rrshift__(self, other: Any) -> Self:
        return self._applied_to("shr", other)

    def __lt__(self, other: Any) -> Self:
        return self._apply("lt", other)

    def __le__(self, other: Any) -> Self:
        return self._apply("le", other)

    def __eq__(self, other: object) -> Self:  # type: ignore[override]
        return self._apply("eq", other)

    def sum(self) -> Self:
        """The sum. Along the last axis."""
        return self._apply("sum")

    def max(self) -> Self:
        """The largest; NaN if there is one. Along the last axis."""
        return self._apply("max")

    def min(self) -> Self:
        """The smallest; NaN if there is one. Along the last axis."""
        return self._apply("min")

    def any(self) -> Self:
        """Whether one is true. Along the last axis."""
        return self._apply("any")

    def all(self) -> Self:
        """Whether all are true. Along the last axis."""
        return self._apply("all")

    def argmax(self) -> Self:
        """Where the largest is, the first of equal ones; NaN is below all. Along the last axis."""
        return self._apply("argmax")

    def cumsum(self) -> Self:
        """The sum of each element and all before it. Along the last axis."""
        return self._apply("cumsum")

    def log_softmax(self) -> Self:
        """`x - log(sum(exp(x)))`. Along the last axis."""
        return self._apply("log_softmax")

    def sort(self) -> Self:
        """In order, the smallest first, NaN last. Along the last axis."""
        return self._apply("sort")

    def argsort(self) -> Self:
        """Where the smallest is, then the next, equal ones in their order; NaN last. Along the last
        axis.
        """
        return self._apply("argsort")

    def flip(self) -> Self:
        """In the opposite order. Along the last axis."""
        return self._apply("flip")

    def transpose(self) -> Self:
        """The two axes changed."""
        return self._apply("transpose")
