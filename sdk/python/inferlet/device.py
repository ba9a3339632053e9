"""Device programs: a rule for choosing tokens, in plain Python, that runs where the model runs.

::

    from inferlet import device

    @device.program
    def mirostat(logits, state):
        surprise = -logits.log_softmax() / math.log(2)
        token = device.draw(logits.where(surprise <= state.mu, -math.inf))
        state.mu -= 0.1 * (surprise[token] - 5.0)
        return token

    text = await context.generate(mirostat(mu=10.0), max_tokens=64).collect_text()

The function is called once, with tensors that have kinds and sizes and no values, and what it does
with them is recorded: its `if`, `for` and calls are gone by then. The server runs the recording for
each token, of all programs at once that have sent the same one. Kinds are float (float32), int (64
bits) and bool; a mistake is a `TypeError` at the line that makes it. `docs/device-programs.md` has
examples and the operations.
"""

from __future__ import annotations

import json
import math
import re
import struct
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, NoReturn, TypeAlias, overload

from inferlet._device_language import (
    ATTEND,
    HEADS,
    PAGES,
    REMEMBERED,
    SAMPLE_ONLY,
    SIZES,
    TOKENS,
    VOCABULARY,
    Kind,
    Mistake,
    Type,
    result_type,
)
from inferlet._device_methods import TensorMethods
from inferlet.errors import PieError

__all__ = [
    "HEADS",
    "PAGES",
    "TOKENS",
    "VOCABULARY",
    "Attend",
    "AttendProgram",
    "DeviceProgram",
    "Mistake",
    "ProgramSampler",
    "State",
    "Tensor",
    "attend",
    "beside",
    "concat",
    "counts",
    "draw",
    "exponential",
    "fold",
    "given",
    "hash",
    "iota",
    "layer",
    "matvec",
    "maximum",
    "minimum",
    "newest",
    "nucleus",
    "one_hot",
    "per_token",
    "program",
    "random",
    "shared",
    "step",
    "tokens",
    "uniform",
    "where",
]
Value: TypeAlias = "Tensor | float | bool"
_COUNTING = ("counts", "given")
_FEW = 64  # kinds and sizes of what one function was given, for which its recording is kept


class _Node(NamedTuple):
    operation: str
    operands: tuple[int, ...]
    attributes: tuple[int, ...]
    type: Type


_NODE = re.compile(r"\bnode (\d+)\b")
_PACKAGE = __name__.partition(".")[0]


def _place() -> str:
    """File and line of the caller that is not of this package."""
    frame = sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] == _PACKAGE:
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


class _Recorded(NamedTuple):
    """What became of a function."""

    text: str  # canonical
    operations: frozenset[str]
    beside: int  # contexts beside whose logits it reads
    places: tuple[str, ...]  # file and line of each node


class _Recording:
    """What a function does while it is called: each operation once."""

    current: _Recording | None = None

    def __init__(self, names: dict[str, Type], *, attends: bool = False) -> None:
        self.attends = attends
        self.names = {name: (i, names[name]) for i, name in enumerate(sorted(names))}
        self.nodes: list[_Node] = []
        self._known: dict[tuple[str, tuple[int, ...], tuple[int, ...]], int] = {}
        self._places: list[str] = []

    def add(self, operation: str, operands: Sequence[Tensor], attributes: Sequence[int]) -> Tensor:
        key = (operation, tuple(one.number for one in operands), tuple(attributes))
        number = self._known.get(key)
        if number is None:
            of = result_type(operation, [one.type for one in operands], key[2])
            self._check_stage(operation, of)
            number = self._put(key, of)
        return Tensor(self, number)

    def _check_stage(self, operation: str, of: Type) -> None:
        here = {HEADS, TOKENS, PAGES} if self.attends else {VOCABULARY}
        foreign = operation in (SAMPLE_ONLY if self.attends else ATTEND)
        if foreign or any(size in SIZES and size not in here for size in of.shape):
            stage = "`device.attend`" if self.attends else "`device.program`"
            raise Mistake(f"{operation} of {of}: a function of {stage} has none")

    def read(self, name: str) -> Tensor:
        number, of = self.names[name]
        key = ("state", (), (number,))
        found = self._known.get(key)
        return Tensor(self, self._put(key, of) if found is None else found)

    def _put(self, key: tuple[str, tuple[int, ...], tuple[int, ...]], of: Type) -> int:
        self.nodes.append(_Node(*key, of))
        self._places.append(_place())
        self._known[key] = len(self.nodes) - 1
        return len(self.nodes) - 1

    def finish(
        self, token: Tensor, following: dict[str, Tensor], result: str = "token"
    ) -> _Recorded:
        """What was recorded, as far as the token (or what is kept) and the next state need it."""
        order: dict[int, int] = {}
        changed = sorted((self.names[name][0], name) for name in following)
        for root in (token.number, *(following[name].number for _, name in changed)):
            self._visit(root, order)
        nodes = [
            [node.operation, [order[i] for i in node.operands], list(node.attributes)]
            for node in (self.nodes[number] for number in order)
        ]
        given = {
            "state": [[name, of.kind, list(of.shape)] for name, (_, of) in self.names.items()],
            "nodes": nodes,
            result: order[token.number],
            "next": [[number, order[following[name].number]] for number, name in changed],
        }
        text = json.dumps(given, separators=(",", ":"), ensure_ascii=False)
        return _Recorded(
            text,
            frozenset(self.nodes[number].operation for number in order),
            1 + max((self.nodes[i].attributes[0] for i in order if self._reads(i)), default=-1),
            tuple(self._places[number] for number in order),
        )

    def _reads(self, number: int) -> bool:
        return self.nodes[number].operation == "beside"

    def _visit(self, root: int, order: dict[int, int]) -> None:
        """Operands first. A stack: recordings are deeper than Python's."""
        waiting = [(root, False)]
        while waiting:
            number, is_ready = waiting.pop()
            if number in order:
                continue
            if is_ready:
                order[number] = len(order)
            else:
                waiting.append((number, True))
                waiting.extend((one, False) for one in reversed(self.nodes[number].operands))


def _record(operation: str, *operands: Any, attributes: Sequence[int] = ()) -> Tensor:
    recording = _Recording.current
    if recording is None:
        raise Mistake(f"{operation}: there are tensors only within a function of `device.program`")
    like = next((one.type.kind for one in operands if isinstance(one, Tensor)), None)
    tensors = [_tensor(recording, one, like) for one in operands]
    if any(one.recording is not recording for one in tensors):
        raise Mistake(f"{operation} of a tensor that another call of a program has made")
    return recording.add(operation, tensors, attributes)


def _tensor(recording: _Recording, value: Any, like: Kind | None = None) -> Tensor:
    """A Python number as a constant: an int beside floats is one of them."""
    if isinstance(value, Tensor):
        return value
    if isinstance(value, bool):
        return recording.add("constant", (), (Kind.BOOL, int(value)))
    if isinstance(value, int) and like is not Kind.FLOAT:
        return recording.add("constant", (), (Kind.INT, value))
    if isinstance(value, int | float):
        try:
            (bits,) = struct.unpack("<I", struct.pack("<f", value))
        except OverflowError:
            raise Mistake(f"{value} is too large for float32") from None
        return recording.add("constant", (), (Kind.FLOAT, bits))
    raise Mistake(f"{value!r:.60} is neither a tensor nor a number")


class Tensor(TensorMethods):
    """A value of a device program, while it is recorded: it has a kind and sizes."""

    __hash__ = None  # type: ignore[assignment]
    __slots__ = ("number", "recording")

    def __init__(self, recording: _Recording, number: int) -> None:
        """Made by operations."""
        self.recording = recording
        self.number = number

    def _apply(self, operation: str, *others: Any) -> Tensor:
        return _record(operation, self, *others)

    def _applied_to(self, operation: str, other: Any) -> Tensor:
        return _record(operation, _tensor(self.recording, other, self.kind), self)

    @property
    def type(self) -> Type:
        """Kind and sizes."""
        return self.recording.nodes[self.number].type

    @property
    def kind(self) -> Kind:
        """What its elements are."""
        return self.type.kind

    @property
    def shape(self) -> tuple[int, ...]:
        """Its sizes, two at most; `VOCABULARY` stands for the number of the model's tokens."""
        return self.type.shape

    def __repr__(self) -> str:
        return f"<{self.type}>"

    def __bool__(self) -> NoReturn:
        raise Mistake(
            f"{self!r} is neither true nor false while a program is recorded: use"
            " `device.where(condition, a, b)`, and `&`, `|`, `~` between conditions"
        )

    def __len__(self) -> int:
        if not self.shape or self.shape[0] in SIZES:
            raise Mistake(f"{self!r} has no length that is known")
        return self.shape[0]

    def __iter__(self) -> Iterator[Tensor]:
        return iter([self[i] for i in range(len(self))])

    def __getitem__(self, place: Any) -> Tensor:
        """Elements (of two axes: rows) at places; or, of a slice, part of the last axis."""
        if isinstance(place, slice):
            return self._part(place)
        if isinstance(place, int) and place < 0:
            place += len(self)
        return _record("gather", self, _as_int(place))

    def _part(self, of: slice) -> Tensor:
        size = self.shape[-1] if self.shape else 0
        if size in SIZES:
            known = (of.start or 0) >= 0 and of.stop is not None and of.stop >= 0
            if not known or of.step is not None:
                raise Mistake(f"a slice of {self!r} needs an end, and counts from its beginning")
            return _record("slice", self, attributes=(of.start or 0, of.stop))
        start, stop, stride = of.indices(size)
        if stride != 1:
            raise Mistake(f"a slice with a step of {stride}: only 1")
        return _record("slice", self, attributes=(start, stop))

    def where(self, condition: Value, other: Value) -> Tensor:
        """Itself where a condition is true, else another value."""
        return where(condition, self, other)

    def softmax(self) -> Tensor:
        """Probabilities along the last axis."""
        return self.log_softmax().exp()

    def mean(self) -> Tensor:
        """The mean along the last axis, whose size is known."""
        size = self.shape[-1] if self.shape else 1
        if size in SIZES:
            raise Mistake(f"mean of {self!r}, whose size is no number: take `sum` and divide it")
        return self.sum() / float(size)

    def descending(self) -> Tensor:
        """Places along the last axis, that of the largest first, equal ones in their order."""
        return (-self).argsort()

    def top(self, count: int) -> Tensor:
        """Places of the `count` largest, the largest first, equal ones in their order."""
        return _record("top", self, attributes=(count,))

    def to_float(self) -> Tensor:
        """As float; true is 1."""
        return _record("cast", self, attributes=(Kind.FLOAT,))

    def to_int(self) -> Tensor:
        """As int: the part before the point, 0 for NaN; true is 1."""
        return _record("cast", self, attributes=(Kind.INT,))

    def to_bool(self) -> Tensor:
        """Whether it is not 0."""
        return _record("cast", self, attributes=(Kind.BOOL,))

    def reshape(self, *sizes: Any) -> Tensor:
        """The same elements with other sizes."""
        return _record("reshape", self, attributes=sizes)

    def scatter_add(self, places: Value, values: Value) -> Tensor:
        """With values added at places; those outside are left out."""
        return _record("scatter_add", self, _as_int(places), values)

    def scatter_max(self, places: Value, values: Value) -> Tensor:
        """With a value at a place that is larger (of bools: true); those outside are left out."""
        return _record("scatter_max", self, _as_int(places), values)

    def with_at(self, place: Value, value: Value) -> Tensor:
        """With a value at a place of its one axis; the same if it lies outside."""
        return where(iota(*self.shape) == place, value, self)

    def __ne__(self, other: object) -> Tensor:  # type: ignore[override]
        return ~(self == other)

    def __gt__(self, other: Value) -> Tensor:
        return self._applied_to("lt", other)

    def __ge__(self, other: Value) -> Tensor:
        return self._applied_to("le", other)

    def __invert__(self) -> Tensor:
        if self.kind is Kind.INT:
            return self ^ -1
        return _record("not", self)

    def __matmul__(self, other: Value) -> Tensor:
        return matvec(self, other)


def _as_int(places: Any) -> Any:
    if isinstance(places, int) and _Recording.current is not None:
        return _tensor(_Recording.current, places)
    return places


class State:
    """What a program was given, by name. What is assigned to a name is there at the next token."""

    __slots__ = ("_changed", "_recording")
    _changed: dict[str, Tensor]
    _recording: _Recording

    def __init__(self, recording: _Recording) -> None:
        """Made for a recording."""
        object.__setattr__(self, "_recording", recording)
        object.__setattr__(self, "_changed", {})

    def _kept(self) -> dict[str, Tensor]:
        """What has another value at the next token."""
        read = self._recording.read
        return {n: t for n, t in self._changed.items() if t.number != read(n).number}

    def __getattr__(self, name: str) -> Tensor:
        """A value: that of this token, or the one assigned to it before."""
        if name in self._changed:
            return self._changed[name]
        if name not in self._recording.names:
            raise Mistake(
                f"there is no state.{name}; the program was given"
                f" {', '.join(self._recording.names) or 'nothing'}"
            )
        return self._recording.read(name)

    def __setattr__(self, name: str, value: Value) -> None:
        """The value at the next token, of the same kind and sizes."""
        of = getattr(self, name).type
        tensor = _tensor(self._recording, value, of.kind)
        if tensor.type != of:
            raise Mistake(f"state.{name} is {of}, and becomes {tensor.type}")
        self._changed[name] = tensor


# What a program is given, and operations that are no method


def iota(size: int = VOCABULARY) -> Tensor:
    """0, 1, 2 and so on, int `[size]`; by default all tokens."""
    return _record("iota", attributes=(size,))


def step() -> Tensor:
    """How many tokens were chosen before, int."""
    return _record("step")


def tokens() -> Tensor:
    """How many tokens the context has, the newest one included, int; of the stage `attend`."""
    return _record("tokens")


def layer() -> Tensor:
    """Which layer it is, from 0 on, int; of the stage `attend`."""
    return _record("layer")


def shared(values: Tensor) -> Tensor:
    """Of `[heads, n]` the largest of the heads that share keys, for each; of the stage `attend`."""
    return _record("shared", values)


def newest(count: int) -> Tensor:
    """The newest tokens of the text, int `[count]`, the last one last; -1 before its beginning."""
    return _record("newest", attributes=(count,))


def counts() -> Tensor:
    """How often each token was generated, int `[vocabulary]`."""
    return _record("counts")


def beside(number: int) -> Tensor:
    """The logits of one of the contexts beside, float `[vocabulary]`: see `generate`."""
    return _record("beside", attributes=(number,))


def given() -> Tensor:
    """Which tokens the text before the generation has, bool `[vocabulary]`."""
    return _record("given")


def where(condition: Value, a: Value, b: Value) -> Tensor:
    """`a` where a condition is true, else `b`."""
    recording = _Recording.current
    kinds = [one.kind for one in (a, b) if isinstance(one, Tensor)]
    if recording is None or not isinstance(condition, Tensor):
        raise Mistake("where takes a tensor as its condition, within a function of a program")
    like = kinds[0] if kinds else Kind.FLOAT
    return _record("where", condition, *(_tensor(recording, one, like) for one in (a, b)))


def minimum(a: Value, b: Value) -> Tensor:
    """The smaller one; NaN if one is."""
    return _record("minimum", a, b)


def maximum(a: Value, b: Value) -> Tensor:
    """The larger one; NaN if one is."""
    return _record("maximum", a, b)


def nucleus(logits: Tensor, share: Value) -> Tensor:
    """Which of the likeliest are the fewest that have a share of all probability: bool `[n]`."""
    return _record("nucleus", logits, share)


def hash(a: Value, b: Value) -> Tensor:  # noqa: A001
    """64 bits that look random, of two ints: number `b` of the SplitMix64 sequence from `a` on."""
    return _record("hash", a, b)


def concat(a: Tensor, b: Tensor) -> Tensor:
    """The second one behind the first, along the last axis."""
    return _record("concat", a, b)


def matvec(matrix: Tensor, vector: Value) -> Tensor:
    """The products of a matrix's rows `[n, m]` with a vector `[m]`: float `[n]`. Also `@`."""
    return _record("matvec", matrix, vector)


def one_hot(place: Tensor, size: int = VOCABULARY) -> Tensor:
    """True at a place, bool `[size]`."""
    return iota(size) == place


def random(numbers: Value, stream: int = 0) -> Tensor:
    """Random numbers, 0 up to 1, of ints: seed, step, stream and number alone decide."""
    return _record("random", _as_int(numbers), attributes=(stream,))


def uniform(stream: int = 0) -> Tensor:
    """One random number, 0 up to 1."""
    return random(-1, stream)


def exponential(numbers: Value, stream: int = 0) -> Tensor:
    """As `random`, exponentially distributed."""
    return _record("exponential", _as_int(numbers), attributes=(stream,))


def draw(logits: Tensor, stream: int = 0) -> Tensor:
    """A token by chance: int, with the probabilities that logits `[n]` stand for."""
    if len(logits.shape) != 1:
        raise Mistake(f"draw takes one axis, not {logits.type}")
    return (logits - exponential(iota(logits.shape[0]), stream).log()).argmax()


def fold(function: Callable[[Any, Tensor], Any], first: Any, values: Tensor) -> Any:
    """What a function makes of `first` and one value after the other; recorded for each of them."""
    for value in values:
        first = function(first, value)
    return first


# Programs


@dataclass(frozen=True, slots=True)
class ProgramSampler:
    """A device program with what it was given: `context.generate` takes it as a sampler.

    Attributes:
        text: the program, as it is sent.
        given: values by name.
        counts: whether it asks how often tokens occur.
        looks_back: whether it asks for tokens of the text at all.
        has_state: whether some of what it was given changes from token to token.
        beside: how many contexts beside its own it reads the logits of.
        places: file and line of each of its nodes.
        seed: same seed (modulo 2^64), same tokens; without one the server draws it.
        logprobs: how many of the most likely tokens each step returns as well.
    """

    text: str
    given: dict[str, Any]
    counts: bool
    looks_back: bool
    has_state: bool
    beside: int
    places: tuple[str, ...]
    seed: int | None = None
    logprobs: int = 0

    def seeded(self, seed: int | None) -> ProgramSampler:
        """The same sampler with another seed."""
        return replace(self, seed=seed)

    def given_again(self, values: Mapping[str, Any]) -> ProgramSampler:
        """The same sampler with other values of some names."""
        return replace(self, given={**self.given, **values})

    def explain(self, error: PieError) -> None:
        """Adds to an error that names a node of the program the file and line that made it."""
        found = _NODE.search(error.message)
        if found and int(found[1]) < len(self.places):
            error.add(f", made at {self.places[int(found[1])]}")

    def to_json(self) -> str:
        """The parameters, as `raw.create_sampler` takes them."""
        sent: dict[str, Any] = {"program": self.text, "given": _finite(self.given)}
        if self.logprobs:
            sent["logprobs"] = self.logprobs
        if self.seed is not None:
            sent["seed"] = self.seed % 2**64
        return json.dumps(sent, allow_nan=False)


class DeviceProgram:
    """A function that chooses tokens where the model runs; made by `program`."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        """Nothing is recorded yet."""
        self.function = function
        self.__doc__ = function.__doc__
        self.__name__ = getattr(function, "__name__", "program")
        self._takes_state = function.__code__.co_argcount > 1
        self._known: dict[tuple[tuple[str, Type], ...], _Recorded] = {}

    def __call__(
        self, *, seed: int | None = None, logprobs: int = 0, **given: Any
    ) -> ProgramSampler:
        """A sampler of the program.

        Args:
            seed: same seed, same tokens.
            logprobs: how many of the most likely tokens each step returns as well.
            given: state by name: a number, a bool, or a list (of lists) of one kind.

        Raises:
            Mistake: at the function's line that makes it; it is a TypeError.
        """
        types = {name: _type_of(name, value) for name, value in given.items()}
        key = tuple(sorted(types.items()))
        if key not in self._known:
            if len(self._known) >= _FEW:
                self._known.clear()
            self._known[key] = self._record(types)
        text, operations, beside, places = self._known[key]
        return ProgramSampler(
            text,
            given,
            counts=not operations.isdisjoint(_COUNTING),
            looks_back=not operations.isdisjoint(REMEMBERED),
            has_state='"next":[]' not in text,
            beside=beside,
            places=places,
            seed=seed,
            logprobs=logprobs,
        )

    def _record(self, types: dict[str, Type]) -> _Recorded:
        with _recorded(self.__name__, types) as recording:
            state = State(recording)
            logits = recording.add("logits", (), ())
            token = self.function(logits, state) if self._takes_state else self.function(logits)
            if not isinstance(token, Tensor) or token.type != Type(Kind.INT):
                raise Mistake(
                    f"{self.__name__} returned {token!r:.60}: a program returns a token, int []"
                )
            return recording.finish(token, state._kept())


def program(function: Callable[..., Tensor]) -> DeviceProgram:
    """Makes a device program of a function of `logits` and, if it has any, `state`.

    `logits` is float `[vocabulary]`, with minus infinity where a grammar rules a token out. The
    function returns the token. It is called again only for state of other kinds or sizes.
    """
    return DeviceProgram(function)


# The stage `attend`

ALL = 1 << 30  # tokens, more than a context has


@dataclass(frozen=True, slots=True)
class Attend:
    """A program of the stage `attend` with what it was given: `context.generate(attend=...)`."""

    text: str
    given: dict[str, Any]
    told: int = 0  # last inputs of a prompt whose weights it takes

    def to_dict(self) -> dict[str, Any]:
        """The parameter `attend` of `raw.create_sampler`."""
        return {"program": self.text, "given": _finite(self.given)}


@dataclass(frozen=True, slots=True)
class PerToken:
    """A value for each token of the context; see `per_token`."""

    value: float | bool
    by_head: bool


def per_token(value: float | bool, *, by_head: bool = False) -> PerToken:
    """State of the stage `attend` that has a value for each token, or for each head's tokens: at
    first, and of new ones.
    """
    return PerToken(value, by_head)


class AttendProgram:
    """A function that chooses what layers read; made by `attend`."""

    def __init__(self, function: Callable[..., Tensor], window: int = 1) -> None:
        """Nothing is recorded yet."""
        self.function = function
        self.__doc__ = function.__doc__
        self.__name__ = getattr(function, "__name__", "program")
        code = function.__code__
        self._names = code.co_varnames[: code.co_argcount]
        self._window = window
        wrong = set(self._names) - {"weights", "scores", "state"}
        if wrong or {"weights", "scores"} <= set(self._names):
            raise Mistake(
                f"{self.__name__} takes {', '.join(self._names)}: there are weights or scores, and"
                " state"
            )

    def __call__(self, **given: Any) -> Attend:
        """The program with its state, by name: a number, a bool, a list of one kind, `per_token`.

        Raises:
            Mistake: at the function's line that makes it; it is a TypeError.
        """
        types, sent = {}, {}
        for name, value in given.items():
            if isinstance(value, PerToken):
                shape = (HEADS, TOKENS) if value.by_head else (TOKENS,)
                types[name] = _type_of(name, value.value)._replace(shape=shape)
                sent[name] = [[value.value]] if value.by_head else [value.value]
            else:
                types[name], sent[name] = _type_of(name, value), value
        told = (self._window or ALL) if "weights" in self._names else 0
        return Attend(self._record(types), sent, told)

    def _record(self, types: dict[str, Type]) -> str:
        with _recorded(self.__name__, types, attends=True) as recording:
            state = State(recording)
            numbers = {"weights": (self._window,)}
            inputs = [
                state if name == "state" else recording.add(name, (), numbers.get(name, ()))
                for name in self._names
            ]
            kept = self.function(*inputs)
            axis = PAGES if "scores" in self._names else TOKENS
            wanted, by_head = Type(Kind.BOOL, (axis,)), Type(Kind.BOOL, (HEADS, axis))
            if not isinstance(kept, Tensor) or kept.type not in (wanted, by_head):
                raise Mistake(f"{self.__name__} returned {kept!r:.60}: what is kept is {wanted}")
            return recording.finish(kept, state._kept(), "keep").text


@overload
def attend(function: Callable[..., Tensor], *, window: int = 1) -> AttendProgram: ...


@overload
def attend(*, window: int = 1) -> Callable[[Callable[..., Tensor]], AttendProgram]: ...


def attend(
    function: Callable[..., Tensor] | None = None, *, window: int = 1
) -> AttendProgram | Callable[[Callable[..., Tensor]], AttendProgram]:
    """Makes a program of the stage `attend`: called once for each layer and generated token.

    Its parameters say what it is given. `scores`, float `[heads, pages]`: the largest product of
    the query with a key that each page can have; it returns which pages the layer reads, bool
    `[pages]`. `weights`, float `[heads, tokens]`: what the layer has just given each token; it
    returns which tokens the layer still reads in the steps that follow, bool `[tokens]`, and what
    it drops does not come back. Neither: it returns which tokens a layer reads. What it returns may
    be by head, `[heads, pages]` or `[heads, tokens]`: heads that share keys read what one of them
    keeps. Beside them, `state`. The newest token is always read.

    A prompt reads all. With `weights` the program is called for it, too, once in each layer, as
    `step()` is 0: they are then those of the prompt's last `window` inputs, added up; with 0, of
    all. Tokens among these that have run before run again.
    """
    if function is None:
        return partial(AttendProgram, window=window)
    return AttendProgram(function, window)


@contextmanager
def _recorded(name: str, types: dict[str, Type], *, attends: bool = False) -> Iterator[_Recording]:
    if _Recording.current is not None:
        raise Mistake(f"{name} is a whole program: it can't be called within another")
    _Recording.current = recording = _Recording(types, attends=attends)
    try:
        yield recording
    finally:
        _Recording.current = None


def _type_of(name: str, value: Any) -> Type:
    if isinstance(value, list | tuple):
        if not value:
            raise Mistake(f"{name} is an empty list")
        parts = [_type_of(name, one) for one in value]
        kinds = {one.kind for one in parts}
        kind = Kind.FLOAT if kinds == {Kind.FLOAT, Kind.INT} else parts[0].kind
        if len({one.shape for one in parts}) > 1 or (len(kinds) > 1 and kind is not Kind.FLOAT):
            raise Mistake(f"{name}: a list of values of different kinds or sizes")
        return Type(kind, (len(parts), *parts[0].shape))
    if isinstance(value, bool):
        return Type(Kind.BOOL)
    if isinstance(value, int):
        return Type(Kind.INT)
    if isinstance(value, float):
        return Type(Kind.FLOAT)
    raise Mistake(f"{name} is {value!r:.60}: a program is given numbers, bools, or lists of them")


def values_json(values: Mapping[str, Any]) -> str:
    """Values by name, as `raw.write_state` takes them."""
    return json.dumps(_finite(dict(values)), allow_nan=False)


def _finite(value: Any) -> Any:
    """With None for minus infinity, which JSON has not."""
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if value == -math.inf else value
