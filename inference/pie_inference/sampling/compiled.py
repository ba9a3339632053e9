"""Samplers whose programs are compiled: a column of numbers for each name that these may have."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pie_inference.device import Bool, Int32
from pie_inference.sampling.choose import Parameters
from pie_py.device_programs.bound import ARRAYS, Bound
from pie_py.device_programs.compiled import is_greedy
from pie_py.device_programs.fields import COMPILED, FIELDS
from pie_py.device_programs.language import Kind
from pie_py.device_programs.program import Name, ProgramFault

_GREEDY = {"temperature": 0.0}


class CompiledSamplers:
    """The numbers of a pool's samplers."""

    def __init__(self, size: int) -> None:
        """All take the most likely token."""
        self.has: Bool = np.ones(size, np.bool_)
        self.drawing: Bool = np.zeros(size, np.bool_)  # do not just take the most likely token
        self._names: list[tuple[Name, ...]] = [()] * size
        self._columns = {
            name: np.full(size, _GREEDY.get(name, FIELDS[name].default), dtype)
            for name in sorted(COMPILED)
            for dtype in [np.int64 if FIELDS[name].kind == "int" else np.float32]
        }

    def put(self, sampler: int, bound: Bound) -> None:
        """A sampler has another program, which is compiled."""
        names = self._names[sampler] = bound.program.names
        numbers = {name: FIELDS[name].default for name in COMPILED}
        if is_greedy(bound.program):
            numbers |= _GREEDY
        start = 0
        for name, of in names:
            end = start + ARRAYS[of.kind].itemsize
            numbers[name] = _number(bound.values[start:end], of.kind)
            start = end
        for name, number in numbers.items():
            self._columns[name][sampler] = number
        self._note(sampler)

    def give(self, sampler: int, number: int, value: bytes) -> None:
        """A name of a sampler's program, by its number, has another value. Raises ProgramFault."""
        names = self._names[sampler]
        if not 0 <= number < len(names):
            raise ProgramFault(f"the program has no name {number}")
        name, of = names[number]
        if len(value) != ARRAYS[of.kind].itemsize:
            raise ProgramFault(f"{name} is {of}, and has come with {len(value)} bytes")
        self._columns[name][sampler] = _number(value, of.kind)
        self._note(sampler)

    def _note(self, sampler: int) -> None:
        one, none = np.array([sampler], np.int32), np.zeros(1, np.uint32)
        self.drawing[sampler] = self.parameters(one, none.astype(np.uint64), none).drawn.item()

    def parameters(
        self, samplers: Int32, seeds: NDArray[np.uint64], steps: NDArray[np.uint32]
    ) -> Parameters:
        """Of samplers, for `choose`."""
        columns: dict[str, Any] = {name: of[samplers] for name, of in self._columns.items()}
        return Parameters(**columns, seeds=seeds, steps=steps)


def _number(value: bytes, kind: Kind) -> int | float:
    found: int | float = np.frombuffer(value, ARRAYS[kind]).item()
    return found
