# Generated from pie_py/device_programs/functions.py by `python -m codegen`; do not edit.
"""Words of device programs, for editors and type checkers: texts are read by the
server, and none of these is called in a guest.
"""

from __future__ import annotations

from typing import Any, NoReturn

VOCABULARY = -1  # a size: as many as the model has tokens
HEADS, TOKENS, PAGES = -2, -3, -4  # sizes of the stage `attend`


def _word() -> NoReturn:
    raise TypeError(
        "this is a word of device programs: it means something within a function of"
        " `device.program` or `device.attend`, whose text the server reads"
    )


class State:
    """A program's values, by name. What is assigned to a name is there at the next token."""

    def __getattr__(self, name: str) -> Tensor:
        _word()

    def __setattr__(self, name: str, value: Tensor | float | bool) -> None:
        _word()


class Tensor:
    """A value of a device program: it has a kind and sizes."""

    __hash__ = None  # type: ignore[assignment]

    @property
    def shape(self) -> tuple[int, ...]:
        """Its sizes, two at most; `VOCABULARY` stands for the number of the model's tokens."""
        _word()
    def where(self, condition: Any, other: Any) -> Tensor:
        """Itself where a condition is true, else another value."""
        _word()

    def softmax(self) -> Tensor:
        """Probabilities along the last axis."""
        _word()

    def mean(self) -> Tensor:
        """The mean along the last axis, whose size is known."""
        _word()

    def descending(self) -> Tensor:
        """Places along the last axis, that of the largest first, equal ones in their order."""
        _word()

    def top(self, count: int) -> Tensor:
        """Places of the `count` largest, the largest first, equal ones in their order."""
        _word()

    def to_float(self) -> Tensor:
        """As float; true is 1."""
        _word()

    def to_int(self) -> Tensor:
        """As int: the part before the point, 0 for NaN; true is 1."""
        _word()

    def to_bool(self) -> Tensor:
        """True where it is not 0."""
        _word()

    def reshape(self, *sizes: int) -> Tensor:
        """The same elements with other sizes."""
        _word()

    def transpose(self) -> Tensor:
        """The two axes changed."""
        _word()

    def scatter_add(self, places: Any, values: Any) -> Tensor:
        """With values added at places; those outside are left out."""
        _word()

    def scatter_max(self, places: Any, values: Any) -> Tensor:
        """With a value at a place that is larger (of bools: true); those outside are left out."""
        _word()

    def with_at(self, place: Any, value: Any) -> Tensor:
        """With a value at a place of its one axis; the same if it lies outside."""
        _word()

    def floor(self) -> Tensor:
        """The largest whole number that is not above `x`."""
        _word()

    def sqrt(self) -> Tensor:
        """The square root; NaN below 0."""
        _word()

    def exp(self) -> Tensor:
        """`e` to the power of `x`."""
        _word()

    def log(self) -> Tensor:
        """The natural logarithm; minus infinity of 0, NaN below."""
        _word()

    def tanh(self) -> Tensor:
        """The hyperbolic tangent."""
        _word()

    def sigmoid(self) -> Tensor:
        """`1 / (1 + exp(-x))`."""
        _word()

    def is_nan(self) -> Tensor:
        """Whether `x` is no number."""
        _word()

    def sum(self) -> Tensor:
        """The sum."""
        _word()

    def max(self) -> Tensor:
        """The largest; NaN if there is one."""
        _word()

    def min(self) -> Tensor:
        """The smallest; NaN if there is one."""
        _word()

    def any(self) -> Tensor:
        """Whether one is true."""
        _word()

    def all(self) -> Tensor:
        """Whether all are true."""
        _word()

    def argmax(self) -> Tensor:
        """Where the largest is, the first of equal ones; NaN is below all."""
        _word()

    def cumsum(self) -> Tensor:
        """The sum of each element and all before it."""
        _word()

    def log_softmax(self) -> Tensor:
        """`x - log(sum(exp(x)))`."""
        _word()

    def sort(self) -> Tensor:
        """In order, the smallest first, NaN last."""
        _word()

    def argsort(self) -> Tensor:
        """Where the smallest is, then the next, equal ones in their order; NaN last."""
        _word()

    def flip(self) -> Tensor:
        """In the opposite order."""
        _word()

    def __getitem__(self, place: Any) -> Tensor:
        """Elements (of two axes: rows) at places; or, of a slice, part of the last axis.

        Raises:
            Mistake: a slice of what has no known size, without an end.
        """
        _word()

    def __lt__(self, other: Any) -> Tensor:
        _word()

    def __le__(self, other: Any) -> Tensor:
        _word()

    def __gt__(self, other: Any) -> Tensor:
        _word()

    def __ge__(self, other: Any) -> Tensor:
        _word()

    def __eq__(self, other: object) -> Tensor:  # type: ignore[override]
        _word()

    def __ne__(self, other: object) -> Tensor:  # type: ignore[override]
        _word()

    def __add__(self, other: Any) -> Tensor:
        _word()

    def __radd__(self, other: Any) -> Tensor:
        _word()

    def __sub__(self, other: Any) -> Tensor:
        _word()

    def __rsub__(self, other: Any) -> Tensor:
        _word()

    def __mul__(self, other: Any) -> Tensor:
        _word()

    def __rmul__(self, other: Any) -> Tensor:
        _word()

    def __truediv__(self, other: Any) -> Tensor:
        _word()

    def __rtruediv__(self, other: Any) -> Tensor:
        _word()

    def __pow__(self, other: Any) -> Tensor:
        _word()

    def __rpow__(self, other: Any) -> Tensor:
        _word()

    def __floordiv__(self, other: Any) -> Tensor:
        _word()

    def __rfloordiv__(self, other: Any) -> Tensor:
        _word()

    def __mod__(self, other: Any) -> Tensor:
        _word()

    def __rmod__(self, other: Any) -> Tensor:
        _word()

    def __and__(self, other: Any) -> Tensor:
        _word()

    def __rand__(self, other: Any) -> Tensor:
        _word()

    def __or__(self, other: Any) -> Tensor:
        _word()

    def __ror__(self, other: Any) -> Tensor:
        _word()

    def __xor__(self, other: Any) -> Tensor:
        _word()

    def __rxor__(self, other: Any) -> Tensor:
        _word()

    def __lshift__(self, other: Any) -> Tensor:
        _word()

    def __rlshift__(self, other: Any) -> Tensor:
        _word()

    def __rshift__(self, other: Any) -> Tensor:
        _word()

    def __rrshift__(self, other: Any) -> Tensor:
        _word()

    def __matmul__(self, other: Any) -> Tensor:
        _word()

    def __rmatmul__(self, other: Any) -> Tensor:
        _word()

    def __neg__(self) -> Tensor:
        _word()

    def __abs__(self) -> Tensor:
        _word()

    def __invert__(self) -> Tensor:
        _word()

    def __iter__(self) -> Any:
        _word()

    def __len__(self) -> int:
        _word()


def iota(size: int = VOCABULARY) -> Tensor:
    """0, 1, 2 and so on, int `[size]`; by default all tokens."""
    _word()


def step() -> Tensor:
    """How many tokens were chosen before, int."""
    _word()


def tokens() -> Tensor:
    """How many tokens the context has, the newest one included, int; of the stage `attend`."""
    _word()


def layer() -> Tensor:
    """The layer's number, from 0 on, int; of the stage `attend`."""
    _word()


def shared(values: Any) -> Tensor:
    """Of `[heads, n]` the largest of the heads that share keys, for each; of the stage `attend`."""
    _word()


def newest(count: int) -> Tensor:
    """The newest tokens of the text, int `[count]`, the last one last; -1 before its beginning."""
    _word()


def counts() -> Tensor:
    """How often each token was generated, int `[vocabulary]`."""
    _word()


def beside(number: int) -> Tensor:
    """The logits of one of the contexts beside, float `[vocabulary]`: see `generate`."""
    _word()


def given() -> Tensor:
    """True for the tokens that the text before the generation has, bool `[vocabulary]`."""
    _word()


def where(condition: Any, a: Any, b: Any) -> Tensor:
    """`a` where a condition is true, else `b`."""
    _word()


def minimum(a: Any, b: Any) -> Tensor:
    """The smaller one; NaN if one is."""
    _word()


def maximum(a: Any, b: Any) -> Tensor:
    """The larger one; NaN if one is."""
    _word()


def nucleus(logits: Any, share: Any) -> Tensor:
    """True for the fewest of the likeliest that have a share of all probability: bool `[n]`."""
    _word()


def repeats(text: Any, most: int) -> Tensor:
    """Before each element, how many are the same as the last ones, `most` at most: int `[n]`.

    What is negative is like nothing, and has 0.
    """
    _word()


def hash(a: Any, b: Any) -> Tensor:
    """64 bits that look random, of two ints: number `b` of the SplitMix64 sequence from `a` on."""
    _word()


def concat(a: Any, b: Any) -> Tensor:
    """The second one behind the first, along the last axis."""
    _word()


def matvec(matrix: Any, vector: Any) -> Tensor:
    """The products of a matrix's rows `[n, m]` with a vector `[m]`: float `[n]`. Also `@`."""
    _word()


def one_hot(place: Any, size: int = VOCABULARY) -> Tensor:
    """True at a place, bool `[size]`."""
    _word()


def random(numbers: Any, stream: int = 0) -> Tensor:
    """Random numbers, 0 up to 1, of ints: seed, step, stream and number alone decide."""
    _word()


def uniform(stream: int = 0) -> Tensor:
    """One random number, 0 up to 1."""
    _word()


def exponential(numbers: Any, stream: int = 0) -> Tensor:
    """As `random`, exponentially distributed."""
    _word()


def draw(logits: Any, stream: int = 0) -> Tensor:
    """A token by chance: int, with the probabilities that logits `[n]` stand for."""
    _word()


def sqrt(value: Any) -> Any:
    """The square root, of a tensor or a number."""
    _word()


def exp(value: Any) -> Any:
    """`e` to the power of a tensor or a number."""
    _word()


def log(value: Any) -> Any:
    """The natural logarithm of a tensor or a number; minus infinity of 0."""
    _word()


def fold(function: Any, first: Any, values: Any) -> Any:
    """What a function makes of `first` and one value after the other."""
    _word()
