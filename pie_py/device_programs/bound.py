"""A program with the values that it was given by name."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from pie_py.device_programs.language import HEADS, MOST_AXES, TOKENS, VOCABULARY, Kind, Type
from pie_py.device_programs.program import Program, ProgramFault, sizes_of

VERSIONS = 64  # of changing state that a worker keeps: of the newest steps
ATTEND_VERSIONS = 32  # the same of the stage `attend`, whose state grows with the context
ARRAYS: dict[Kind, np.dtype[Any]] = {
    Kind.FLOAT: np.dtype("<f4"),
    Kind.INT: np.dtype("<i8"),
    Kind.BOOL: np.dtype("?"),
}
_LARGEST = 2.0**128  # float32 has nothing so large


class Bound(NamedTuple):
    """A program with the values of its names.

    Attributes:
        program: what it does.
        values: of its names, in their order: elements as `ARRAYS` says, one behind the other.
    """

    program: Program
    values: bytes


def types_of(
    given: Mapping[str, Any], *, attends: bool = False
) -> tuple[dict[str, Type], dict[str, Any]]:
    """The types of what a program is given by name, and the values as `bind` takes them: a number,
    a bool, a list (of lists) of one kind, None for minus infinity; or `{"per_token": 0.0}`, a value
    for each token of the vocabulary, in the stage `attend` of the context, which may be `by_head`;
    or an array of floats.

    Raises:
        ProgramFault: naming the value that is none of these.
    """
    types, values = dict[str, Type](), dict[str, Any]()
    for name, value in given.items():
        match value:
            case {"per_token": one, **more} if not more.keys() - {"by_head"}:
                by_head = attends and bool(more.get("by_head"))
                shape = (HEADS, TOKENS) if by_head else (TOKENS if attends else VOCABULARY,)
                types[name] = _type_of(name, one)._replace(shape=shape)
                values[name] = [[one]] if by_head else [one]
            case np.ndarray():
                if value.ndim > MOST_AXES:
                    raise ProgramFault(f"{name} has {value.ndim} axes; {MOST_AXES} at most")
                types[name], values[name] = Type(Kind.FLOAT, value.shape), value
            case _:
                types[name], values[name] = _type_of(name, value), value
    return types, values


def _type_of(name: str, value: Any) -> Type:
    if isinstance(value, list):
        if not value:
            raise ProgramFault(f"{name} is an empty list")
        parts = {_type_of(name, one) for one in value}
        kinds = {one.kind for one in parts}
        kind = Kind.FLOAT if kinds == {Kind.FLOAT, Kind.INT} else min(kinds)
        shapes = {one.shape for one in parts}
        mixed = len(kinds) > 1 and kinds != {Kind.FLOAT, Kind.INT}
        if len(shapes) > 1 or mixed:
            raise ProgramFault(f"{name}: a list of values of different kinds or sizes")
        return Type(kind, (len(value), *shapes.pop()))
    if isinstance(value, bool):
        return Type(Kind.BOOL)
    if isinstance(value, int):
        return Type(Kind.INT)
    if value is None or isinstance(value, float):
        return Type(Kind.FLOAT)
    raise ProgramFault(
        f"{name} is {value!r:.60}: a program is given numbers, bools, or lists of them"
    )


def bind(program: Program, given: Mapping[str, Any], vocabulary: int) -> Bound:
    """Checks a value of each name of a program, and packs them: a number, a bool, or lists of them;
    None is minus infinity.

    Raises:
        ProgramFault: naming the value that is missing, or of another kind or size.
    """
    names = [one.name for one in program.names]
    if wrong := sorted(set(names) ^ set(given)):
        raise ProgramFault(f"{wrong[0]}: its names are {names}, and {sorted(given)} were given")
    sizes = program.given_sizes(vocabulary)
    values = [_packed(name, of, given[name], sizes) for name, of in program.names]
    return Bound(program, b"".join(values))


def bind_some(program: Program, given: Mapping[str, Any], vocabulary: int) -> dict[int, bytes]:
    """Checks other values, as `bind` takes them, of some names and packs them, by the numbers of
    the names.

    Raises:
        ProgramFault: naming what is no name, or the value that is of another kind or size.
    """
    sizes = program.given_sizes(vocabulary)
    numbers = {one.name: i for i, one in enumerate(program.names)}
    if wrong := sorted(given.keys() - numbers.keys()):
        raise ProgramFault(f"{wrong[0]} is none of its names {sorted(numbers)}")
    return {
        numbers[name]: _packed(name, program.names[numbers[name]].type, value, sizes)
        for name, value in given.items()
    }


def state_json(program: Program, values: bytes, vocabulary: int) -> str:
    """The state, packed in the order of the names, as a JSON object by name; null where JSON has
    no such number.
    """
    found, start = {}, 0
    for i in program.next:
        name, of = program.names[i]
        sizes = sizes_of(of.shape, {VOCABULARY: vocabulary})
        end = start + ARRAYS[of.kind].itemsize * math.prod(sizes)
        array = np.frombuffer(values[start:end], ARRAYS[of.kind]).reshape(sizes)
        found[name] = _finite(array.tolist())
        start = end
    return json.dumps(found)


def _finite(value: Any) -> Any:
    if isinstance(value, list):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _is_float(value: Any) -> bool:
    return type(value) in (int, float) and (value == -math.inf or abs(value) < _LARGEST)


def _packed(name: str, of: Type, value: Any, known: Mapping[int, int]) -> bytes:
    if of.shape == (VOCABULARY,) and isinstance(value, list) and len(value) == 1:
        value = value * known[VOCABULARY]  # one for each token
    if isinstance(value, np.ndarray):
        if of.kind is not Kind.FLOAT or value.shape != of.shape:
            raise ProgramFault(f"{name} is {of}: a tensor {list(value.shape)} was given")
        return value.astype(ARRAYS[Kind.FLOAT]).tobytes()
    flat = [value]
    for size in sizes_of(of.shape, known):
        if any(not isinstance(one, list) or len(one) != size for one in flat):
            raise ProgramFault(f"{name} is {of}: no list of this size was given")
        flat = [each for one in flat for each in one]
    match of.kind:
        case Kind.BOOL:
            wrong = (one for one in flat if type(one) is not bool)
        case Kind.INT:
            wrong = (one for one in flat if type(one) is not int or not -(2**63) <= one < 2**63)
        case Kind.FLOAT:
            flat = [-math.inf if one is None else one for one in flat]
            wrong = (one for one in flat if not _is_float(one))
    if misfits := list(itertools.islice(wrong, 1)):
        raise ProgramFault(f"{name} is {of}: {misfits[0]!r:.40} was given")
    return np.array(flat, ARRAYS[of.kind]).tobytes()
