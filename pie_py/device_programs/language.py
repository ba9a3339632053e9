"""The language of device programs: kinds of values, operations, and the types that these give.

This is the one place where an operation is declared. The worker has a function on tensors for it,
`tests/support/device_reference.py` its meaning in plain Python, and the three SDKs what is made
from this table. The Python SDK has a copy of this file, so it imports nothing of the project.

A value is a tensor of at most two axes. Its sizes are known while a program is traced, but for
some that stand for what is known where it runs: `VOCABULARY`, the number of the model's tokens; in
the stage `attend` `HEADS`, `TOKENS` and `PAGES`.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, IntEnum
from typing import NamedTuple

VOCABULARY = -1  # a size: as many as the model has tokens
HEADS, TOKENS, PAGES = -2, -3, -4  # sizes: of queries in a layer; of the context
SIZES = {VOCABULARY: "vocabulary", HEADS: "heads", TOKENS: "tokens", PAGES: "pages"}
MOST_AXES = 2
MOST_NEWEST = 4096  # tokens that a program looks back at
MOST_REPEATED = 64  # elements before each that are compared with the last ones
MOST_BESIDE = 2  # contexts beside its own whose logits a program reads
MOST_LAYERS = 1024  # of a model
MOST_WINDOW = 1024  # last inputs of a prompt whose weights are added, unless those of all are


class Kind(IntEnum):
    """The kind of a value's elements."""

    FLOAT = 0  # float32
    INT = 1  # int64; arithmetic wraps around
    BOOL = 2


class Type(NamedTuple):
    """The kind and the sizes of a value."""

    kind: Kind
    shape: tuple[int, ...] = ()

    def __str__(self) -> str:
        sizes = ", ".join(SIZES.get(n, str(n)) for n in self.shape)
        return f"{self.kind.name.lower()} [{sizes}]"


class Rule(Enum):
    """How the type of a result follows from the operands' types."""

    MAP = "map"  # as the operand, perhaps of another kind
    ZIP = "zip"  # two operands, of one kind; an axis of size 1 is repeated
    REDUCE = "reduce"  # without the last axis
    SCAN = "scan"  # as the operand, which has an axis
    OWN = "own"  # see `_own`


class Operation(NamedTuple):
    """An operation.

    Attributes:
        rule: gives the result's type.
        takes: letters of the kinds that its operands may have.
        gives: letter of the result's kind; empty: that of the operands.
        cost: of an element, in additions.
        doc: what it means.
        operands: how many.
        attributes: names of the whole numbers that belong to it.
    """

    rule: Rule
    takes: str
    gives: str
    cost: float
    doc: str
    operands: int = 1
    attributes: tuple[str, ...] = ()


def _map(takes: str, gives: str, cost: float, doc: str) -> Operation:
    return Operation(Rule.MAP, takes, gives, cost, doc)


def _zip(takes: str, gives: str, cost: float, doc: str) -> Operation:
    return Operation(Rule.ZIP, takes, gives, cost, doc, 2)


def _own(takes: str, gives: str, cost: float, doc: str, operands: int, *names: str) -> Operation:
    return Operation(Rule.OWN, takes, gives, cost, doc, operands, names)


LETTERS = {"f": Kind.FLOAT, "i": Kind.INT, "b": Kind.BOOL}
OPERATIONS: dict[str, Operation] = {
    # What a program is given
    "logits": _own("", "f", 0, "The logits, `[vocabulary]`: of what a grammar or mask rules out,"
                   " minus infinity; none is NaN.", 0),
    "step": _own("", "i", 0, "How many tokens the sampler has chosen before.", 0),
    "newest": _own("", "i", 1, "The newest `count` tokens of the text, the last one last; -1 before"
                   " its beginning.", 0, "count"),
    "counts": _own("", "i", 3, "How often each token was generated, `[vocabulary]`.", 0),
    "given": _own("", "b", 3, "Which tokens were given before the generation, `[vocabulary]`.", 0),
    "beside": _own("", "f", 1, "The logits of a context beside, number 0 or 1, `[vocabulary]`.", 0,
                   "number"),
    "state": _own("", "", 6, "The value of a name that the program was given.", 0, "number"),
    "constant": _own("", "", 0, "A number: its kind, and its value, a float's as the bits of"
                     " float32.", 0, "kind", "value"),
    "iota": _own("", "i", 1, "0, 1, 2 and so on, `[size]`.", 0, "size"),
    # Of one value
    "neg": _map("fi", "", 1, "`-x`."),
    "abs": _map("fi", "", 1, "The absolute value."),
    "floor": _map("f", "", 1, "The largest whole number that is not above `x`."),
    "sqrt": _map("f", "", 3, "The square root; NaN below 0."),
    "exp": _map("f", "", 6, "`e` to the power of `x`; 0 where that is below 2**-126."),
    "log": _map("f", "", 24, "The natural logarithm; minus infinity of 0, NaN below."),
    "tanh": _map("f", "", 8, "The hyperbolic tangent."),
    "sigmoid": _map("f", "", 8, "`1 / (1 + exp(-x))`."),
    "not": _map("b", "", 1, "Whether `x` is false."),
    "is_nan": _map("f", "b", 2, "Whether `x` is no number."),
    "cast": _own("fib", "", 6, "As another `kind`. Of a float the part before the point, 0 for NaN,"
                 " within ±2**62; a number is true if it is not 0.", 1, "kind"),
    # Of two values
    "add": _zip("fi", "", 2, "`a + b`."),
    "sub": _zip("fi", "", 2, "`a - b`."),
    "mul": _zip("fi", "", 2, "`a * b`."),
    "div": _zip("f", "", 1, "`a / b`."),
    "pow": _zip("f", "", 32, "`a` to the power of `b`."),
    "minimum": _zip("fi", "", 1, "The smaller one; NaN if one is."),
    "maximum": _zip("fi", "", 1, "The larger one; NaN if one is."),
    "floordiv": _zip("i", "", 48, "`a // b`, rounded down; 0 where `b` is 0."),
    "mod": _zip("i", "", 48, "`a - a // b * b`; 0 where `b` is 0."),
    "and": _zip("ib", "", 1, "Both; of whole numbers bit by bit."),
    "or": _zip("ib", "", 1, "One of them, or both; of whole numbers bit by bit."),
    "xor": _zip("ib", "", 1, "One of them; of whole numbers bit by bit."),
    "shl": _zip("i", "", 2, "The bits of `a`, moved up by the lowest six bits of `b`."),
    "shr": _zip("i", "", 12, "The bits of `a`, moved down by the lowest six bits of `b`; zeros come"
                " in."),
    "lt": _zip("fi", "b", 1, "`a < b`."),
    "le": _zip("fi", "b", 1, "`a <= b`."),
    "eq": _zip("fib", "b", 2, "`a == b`."),
    "hash": _zip("i", "", 12, "64 bits that look random: number `b` of the SplitMix64 sequence that"
                 " begins at `a`."),
    "where": _own("fib", "", 5, "The second operand where the first is true, else the third.", 3),
    # Along the last axis
    "sum": Operation(Rule.REDUCE, "fi", "", 1, "The sum."),
    "max": Operation(Rule.REDUCE, "fi", "", 1, "The largest; NaN if there is one."),
    "min": Operation(Rule.REDUCE, "fi", "", 1, "The smallest; NaN if there is one."),
    "any": Operation(Rule.REDUCE, "b", "", 2, "Whether one is true."),
    "all": Operation(Rule.REDUCE, "b", "", 2, "Whether all are true."),
    "argmax": Operation(Rule.REDUCE, "fi", "i", 3, "Where the largest is, the first of equal ones;"
                        " NaN is below all."),
    "cumsum": Operation(Rule.SCAN, "fi", "", 3, "The sum of each element and all before it."),
    "log_softmax": Operation(Rule.SCAN, "f", "", 6, "`x - log(sum(exp(x)))`."),
    "sort": Operation(Rule.SCAN, "fi", "", 80, "In order, the smallest first, NaN last."),
    "argsort": Operation(Rule.SCAN, "fi", "i", 200, "Where the smallest is, then the next, equal"
                         " ones in their order; NaN last."),
    "flip": Operation(Rule.SCAN, "fib", "", 1, "In the opposite order."),
    "top": _own("fi", "i", 100, "Where the `count` largest are, the largest first, equal ones in"
                " their order; NaN is below all.", 1, "count"),
    "nucleus": _own("f", "b", 220, "Which of the largest, equal ones in their order, are the fewest"
                    " whose `exp` reach a share, the second operand, of the sum; all with 1.", 2),
    "nucleus_by": _own("f", "b", 260, "As `nucleus`, of the largest by the third operand.", 3),
    "repeats": _own("i", "i", 100, "How many before each element are the same as the last ones, the"
                    " nearest first, `most` at most. What is negative is like nothing, and has 0.",
                    1, "most"),
    "slice": _own("fib", "", 1, "From `start` up to, without it, `stop`.", 1, "start", "stop"),
    "concat": _own("fib", "", 2, "The second operand behind the first.", 2),
    # Places
    "gather": _own("fib", "", 10, "The elements (of two axes: the rows) of the first operand at"
                   " places; 0 or false outside.", 2),
    "scatter_add": _own("fi", "", 32, "The first operand, with values added at places; those"
                        " outside are left out.", 3),
    "scatter_max": _own("fib", "", 32, "The first operand, or the largest value for a place if that"
                        " is larger (of bools: true if one is); those outside are left out.", 3),
    "reshape": _own("fib", "", 0, "The same elements with other sizes.", 1, "sizes"),
    "transpose": _own("fib", "", 2, "The two axes changed.", 1),
    "matvec": _own("f", "", 2, "The products of a matrix's rows `[n, m]` with a vector `[m]`.", 2),
    # Chance, which depends on seed, step, stream and number alone
    "random": _own("i", "f", 24, "A random number, 0 up to 1, for each of some numbers.", 1,
                   "stream"),
    "exponential": _own("i", "f", 16, "A random number, exponentially distributed, for each of some"
                        " numbers. `argmax(logits - log(exponential(tokens)))` draws a token.", 1,
                        "stream"),
}  # fmt: skip
# What a program of the stage `attend` is given, instead of what is about the text.
ATTEND: dict[str, Operation] = {
    "weights": _own("", "f", 0, "What the layer has just given each token, `[heads, tokens]`: 0 for"
                    " those that were not read. Of a prompt what its last `window` inputs gave,"
                    " added up; with 0, all of them.", 0, "window"),
    "scores": _own("", "f", 4, "The largest product of the query with a key that a page can have,"
                   " `[heads, pages]`, by the least and largest numbers of its keys; of the newest"
                   " page, which is read in any case, minus infinity.", 0),
    "tokens": _own("", "i", 0, "How many tokens the context has, the newest one included.", 0),
    "layer": _own("", "i", 0, "Which layer it is, from 0 on.", 0),
    "shared": _own("f", "", 2, "Of numbers `[heads, n]` the largest of heads that share keys, for"
                   " each of these; NaN if there is one.", 1),
    "residual": _own("", "f", 0, "The residual stream before one of the layers `at`, `[size]`; with"
                     " `prompt` also of the prompt's inputs: 1 of all, 2 of the last.", 0,
                     "size", "prompt", "at"),
    "lens": _own("f", "f", 0.25, "The logits, `[size]`, that the last norm and the head make of a"
                 " residual stream; samplers have it, too.", 1, "size"),
    "in_layers": _own("", "", 6, "Of a sampler: the value of a name, by `number`, of the program in"
                      " the layers beside it, and the `type`: its kind and sizes.", 0, "number",
                      "type"),
}  # fmt: skip
SAMPLE_ONLY = frozenset({
    "logits", "newest", "counts", "given", "random", "exponential", "in_layers"
})  # fmt: skip
ATTEND_ONLY = ATTEND.keys() - {"lens", "in_layers"}
SEVERAL = frozenset({"reshape", "residual", "in_layers"})  # of which the attribute is a list
REMEMBERED = ("newest", "counts", "given")  # what needs to know the text's tokens


class Mistake(TypeError):
    """An operation that does not go with its operands."""


def result_type(name: str, operands: Sequence[Type], attributes: tuple[int, ...]) -> Type:
    """The type of what an operation gives.

    Args:
        name: of the operation; `state` has its type from elsewhere.
        operands: their types.
        attributes: whole numbers, as many as the operation has.

    Raises:
        Mistake: what is wrong, without the place.
    """
    operation = OPERATIONS.get(name) or ATTEND.get(name)
    if operation is None:
        raise Mistake(f"there is no operation {name!r}")
    if len(operands) != operation.operands:
        raise Mistake(f"{name} takes {operation.operands} values, not {len(operands)}")
    if name not in SEVERAL and len(attributes) != len(operation.attributes):
        raise Mistake(f"{name} has {len(operation.attributes)} numbers, not {len(attributes)}")
    values = operands[1:] if name == "where" else operands
    _check_kinds(name, operation, values)
    kind = LETTERS[operation.gives] if operation.gives else (values or [Type(Kind.FLOAT)])[0].kind
    match operation.rule:
        case Rule.MAP:
            return Type(kind, operands[0].shape)
        case Rule.ZIP:
            return Type(kind, broadcast(name, [one.shape for one in operands]))
        case Rule.REDUCE:
            return Type(kind, _with_axis(name, operands[0])[:-1])
        case Rule.SCAN:
            return Type(kind, _with_axis(name, operands[0]))
    return _own_type(name, kind, operands, attributes)


def check_stage(operation: str, of: Type, *, attends: bool) -> None:
    """Refuses an operation, and a size of its result, that the stage does not have, `attend` or
    `sample`.

    Raises:
        Mistake: naming it.
    """
    here = {HEADS, TOKENS, PAGES} if attends else {VOCABULARY}
    foreign = operation in (SAMPLE_ONLY if attends else ATTEND_ONLY)
    if foreign or any(size in SIZES and size not in here for size in of.shape):
        raise Mistake(
            f"{operation} of {of}: the stage `{'attend' if attends else 'sample'}` has none"
        )


def _check_kinds(name: str, operation: Operation, values: Sequence[Type]) -> None:
    allowed = [LETTERS[letter] for letter in operation.takes]
    same = values[:1] if name in ("gather", "scatter_add", "scatter_max") else values
    for one in same:
        if one.kind not in allowed:
            names = " or ".join(kind.name.lower() for kind in allowed)
            raise Mistake(f"{name} takes {names}, not {one}")
        if one.kind != same[0].kind:
            raise Mistake(f"{name} of {same[0]} and {one}: cast one of them")


def broadcast(name: str, shapes: list[tuple[int, ...]]) -> tuple[int, ...]:
    """The sizes of what values of some sizes give together.

    Raises:
        Mistake: they do not go together.
    """
    axes = max(map(len, shapes))
    found = [1] * axes
    for shape in shapes:
        for axis, size in enumerate(shape, axes - len(shape)):
            if found[axis] == 1:
                found[axis] = size
            elif size not in (1, found[axis]):
                texts = " and ".join(str(Type(Kind.FLOAT, one)).partition(" ")[2] for one in shapes)
                raise Mistake(f"{name} of sizes {texts}")
    return tuple(found)


def _with_axis(name: str, value: Type) -> tuple[int, ...]:
    if not value.shape:
        raise Mistake(f"{name} takes a value with an axis, not {value}")
    return value.shape


def _sized(name: str, size: int) -> tuple[int]:
    if size not in SIZES and size < 1:
        raise Mistake(f"{name} of size {size}")
    return (size,)


def _own_type(name: str, kind: Kind, operands: Sequence[Type], attributes: tuple[int, ...]) -> Type:
    match name, operands, attributes:
        case "logits" | "counts" | "given", _, _:
            return Type(kind, (VOCABULARY,))
        case "scores", _, _:
            return Type(kind, (HEADS, PAGES))
        case "weights", _, [window]:
            if not 0 <= window <= MOST_WINDOW:
                raise Mistake(
                    f"weights of a prompt's last {window} inputs: 0 (all) to {MOST_WINDOW}"
                )
            return Type(kind, (HEADS, TOKENS))
        case "residual", _, [size, 0 | 1 | 2, *at]:
            if not 1 <= len(set(at)) == len(at) or min(at) < 0 or max(at) >= MOST_LAYERS:
                raise Mistake(f"a program in the layers {at}: name each once, 0 to {MOST_LAYERS}")
            return Type(kind, _sized(name, size))
        case "lens", [value], [size]:
            _vector(name, value)
            return Type(kind, _sized(name, size))
        case "in_layers", _, [_, of, *sizes] if len(sizes) <= MOST_AXES:
            return Type(_kind(name, of), tuple(_sized(name, size)[0] for size in sizes))
        case "shared", [value], _:
            if len(value.shape) != MOST_AXES or value.shape[0] != HEADS:
                raise Mistake(f"shared takes heads as its first axis, not {value}")
            return value
        case "step" | "tokens" | "layer", _, _:
            return Type(kind)
        case "beside", _, [number]:
            if not 0 <= number < MOST_BESIDE:
                raise Mistake(f"beside {number}: 0 to {MOST_BESIDE - 1}")
            return Type(kind, (VOCABULARY,))
        case "newest", _, [count]:
            if not 1 <= count <= MOST_NEWEST:
                raise Mistake(f"newest {count} tokens: 1 to {MOST_NEWEST}")
            return Type(kind, (count,))
        case "constant", _, [of, value]:
            limits = {Kind.FLOAT: (0, 2**32 - 1), Kind.INT: (-(2**53), 2**53), Kind.BOOL: (0, 1)}
            least, most = limits[_kind(name, of)]
            if not least <= value <= most:
                raise Mistake(f"a constant {value} outside {least} to {most}")
            return Type(Kind(of))
        case "iota", _, [size]:
            return Type(kind, _sized(name, size))
        case "cast", [value], [to]:
            return Type(_kind(name, to), value.shape)
        case "where", [condition, a, b], _:
            if condition.kind is not Kind.BOOL:
                raise Mistake(f"where takes bool first, not {condition}")
            return Type(kind, broadcast(name, [condition.shape, a.shape, b.shape]))
        case "top", [value], [count]:
            (size,) = _vector(name, value)
            if count < 1 or (size not in SIZES and count > size):
                raise Mistake(f"top {count} of {value}")
            return Type(kind, (count,))
        case "nucleus" | "nucleus_by", [value, share, *by], _:
            if share.shape:
                raise Mistake(f"nucleus takes one share, not {share}")
            if by and by[0].shape != value.shape:
                raise Mistake(f"nucleus of {value} by {by[0]}: they have other sizes")
            return Type(Kind.BOOL, _vector(name, value))
        case "repeats", [value], [most]:
            if not 0 <= most <= MOST_REPEATED:
                raise Mistake(f"repeats of {most} elements: 0 to {MOST_REPEATED}")
            return Type(kind, _vector(name, value))
        case "slice", [value], [start, stop]:
            *before, size = _with_axis(name, value)
            if not 0 <= start < stop or (size != VOCABULARY and stop > size):
                raise Mistake(f"slice from {start} to {stop} of {value}")
            return Type(kind, (*before, stop - start))
        case "concat", [a, b], _:
            one, other = _with_axis(name, a), _with_axis(name, b)
            if one[:-1] != other[:-1] or one[-1] in SIZES or other[-1] in SIZES:
                raise Mistake(f"concat of {a} and {b}")
            return Type(kind, (*one[:-1], one[-1] + other[-1]))
        case "gather", [value, places], _:
            _places(name, places)
            return _bounded(name, Type(kind, (*places.shape, *_with_axis(name, value)[1:])))
        case "scatter_add" | "scatter_max", [value, places, new], _:
            _places(name, places)
            _vector(name, value)
            if new.kind != value.kind:
                raise Mistake(f"{name} of {value} and {new}: cast one of them")
            if len(places.shape) != 1 or broadcast(name, [places.shape, new.shape]) != places.shape:
                raise Mistake(f"{name} of {new} at {places}")
            return value
        case "reshape", [value], sizes:
            if _count(tuple(sizes)) != _count(value.shape):
                raise Mistake(f"reshape of {value} to {Type(kind, tuple(sizes))}")
            return _bounded(name, Type(kind, tuple(sizes)))
        case "transpose", [value], _:
            if len(value.shape) != MOST_AXES:
                raise Mistake(f"transpose takes two axes, not {value}")
            return Type(kind, value.shape[::-1])
        case "matvec", [matrix, vector], _:
            if len(matrix.shape) != MOST_AXES or matrix.shape[1:] != _vector(name, vector):
                raise Mistake(f"matvec of {matrix} and {vector}")
            return Type(kind, matrix.shape[:1])
        case "random" | "exponential", [value], [stream]:
            if not 0 <= stream < 2**16:
                raise Mistake(f"{name} of stream {stream}: 0 to 65535")
            return Type(kind, value.shape)
    raise Mistake(f"{name} is given to a program by name alone")  # state


def _kind(name: str, number: int) -> Kind:
    if number not in tuple(Kind):
        raise Mistake(f"{name}: there is no kind {number}")
    return Kind(number)


def _vector(name: str, value: Type) -> tuple[int, ...]:
    if len(value.shape) != 1:
        raise Mistake(f"{name} takes one axis, not {value}")
    return value.shape


def _places(name: str, places: Type) -> None:
    if places.kind is not Kind.INT:
        raise Mistake(f"{name} takes int as places, not {places}")


def _bounded(name: str, value: Type) -> Type:
    if len(value.shape) > MOST_AXES:
        raise Mistake(f"{name} would give {value}: {MOST_AXES} axes at most")
    return value


def _count(shape: tuple[int, ...]) -> tuple[int, list[int]]:
    """Elements, but for sizes that are not known, and those."""
    found = 1
    for size in shape:
        if size not in SIZES:
            if size < 1:
                return -1, []
            found *= size
    return found, sorted(size for size in shape if size in SIZES)
