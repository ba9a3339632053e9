"""A program with the values that it was given by name."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from pie_py.device_programs.language import VOCABULARY, Kind, Type
from pie_py.device_programs.program import Program, ProgramFault, sizes_of

VERSIONS = 64  # of changing state that a worker keeps: of the newest steps
ATTEND_VERSIONS = 32  # the same of the stage `attend`, whose state grows with the context
ARRAYS: dict[Kind, np.dtype[Any]] = {
    Kind.FLOAT: np.dtype("<f4"),
    Kind.INT: np.dtype("<i8"),
    Kind.BOOL: np.dtype("?"),
}
# Names by which the SDKs' `DeviceSampler` gives token ids: those of its fields.
_TOKENS = {"logit_bias", "allowed_tokens", "banned_sequences", "end_tokens"}
_TOKENS |= {"dry_sequence_breakers"}
_LARGEST = 2.0**128  # float32 has nothing so large


class Bound(NamedTuple):
    """A program with the values of its names.

    Attributes:
        program: what it does.
        values: of its names, in their order: elements as `ARRAYS` says, one behind the other.
    """

    program: Program
    values: bytes


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
    """What changes, packed in the order of the names, as a JSON object by name; null where JSON has
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


def _packed(name: str, of: Type, value: Any, known: Mapping[int, int]) -> bytes:
    flat = [value]
    for size in sizes_of(of.shape, known):
        if any(not isinstance(one, list) or len(one) != size for one in flat):
            raise ProgramFault(f"{name} is {of}: no list of this size was given")
        flat = [each for one in flat for each in one]
    match of.kind:
        case Kind.BOOL:
            fits = all(type(one) is bool for one in flat)
        case Kind.INT:
            fits = all(type(one) is int and -(2**63) <= one < 2**63 for one in flat)
        case Kind.FLOAT:
            flat = [-math.inf if one is None else one for one in flat]
            fits = all(type(one) in (int, float) for one in flat) and all(
                one == -math.inf or abs(one) < _LARGEST for one in flat
            )
    if not fits:
        raise ProgramFault(f"{name} is {of}: something else was given")
    if name in _TOKENS and VOCABULARY in known:
        none, size = -(name == "banned_sequences"), known[VOCABULARY]  # these are filled up with -1
        if wrong := [one for one in flat if not none <= one < size]:
            raise ProgramFault(f"{name}: {wrong[0]} is outside the vocabulary (0 to {size - 1})")
    return np.array(flat, ARRAYS[of.kind]).tobytes()
