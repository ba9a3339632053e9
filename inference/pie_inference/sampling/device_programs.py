"""The device programs of a model's samplers, and their values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch

from pie_inference.device import Int32, upload, upload_index, zeros
from pie_inference.sampling.choose import NO_NUMBER
from pie_inference.sampling.compiled import CompiledSamplers
from pie_inference.sampling.device_operations import DTYPES
from pie_inference.sampling.executable import Executable
from pie_py.device_programs.bound import ARRAYS, VERSIONS, Bound
from pie_py.device_programs.compiled import is_compiled
from pie_py.device_programs.language import VOCABULARY
from pie_py.device_programs.program import Program, ProgramFault, sizes_of

_UNUSED = 64  # programs that are kept although no sampler has them
_FEW = 8  # rows of values, which are not worth giving back


def given_values(
    program: Program, values: bytes, sizes: Sequence[Sequence[int]], device: torch.device
) -> Iterator[torch.Tensor]:
    """The values `[*sizes]` of a program's names, of how they are packed in `Bound`."""
    start = 0
    for (_, of), size in zip(program.names, sizes, strict=True):
        end = start + math.prod(size) * ARRAYS[of.kind].itemsize
        array = np.frombuffer(values[start:end], ARRAYS[of.kind]).reshape(size)
        start = end
        yield upload(array.copy(), device).to(DTYPES[of.kind])


class Values:
    """The values of all samplers that have one program, a row each.

    What changes is kept for the newest `VERSIONS` steps, so a sampler that goes back finds it.
    """

    def __init__(self, program: Program, vocabulary: int, device: torch.device) -> None:
        self.executable = Executable(program, vocabulary, device)
        self.program = program
        self._device = device
        self._sizes = [sizes_of(of.shape, {VOCABULARY: vocabulary}) for _, of in program.names]
        self.samplers: list[int] = []  # that have the first rows
        self._tables = [self._table(i, 0) for i in range(len(program.names))]

    def _table(self, name: int, rows: int) -> torch.Tensor:
        versions = (VERSIONS,) if name in self.program.next else ()
        shape = (rows, *versions, *self._sizes[name])
        dtype = DTYPES[self.program.names[name].type.kind]
        return zeros(shape, dtype, self._device)

    def put(self, sampler: int, values: bytes) -> int:
        """Values of a new sampler; returns its row."""
        row = len(self.samplers)
        self._make_room(row + 1)
        self.samplers.append(sampler)
        given = given_values(self.program, values, self._sizes, self._device)
        for table, value in zip(self._tables, given, strict=True):
            table[row] = value  # as all versions: none may be what the row's last owner left there
        return row

    def give(self, row: int, step: int, name: int, value: bytes) -> None:
        """A name of a row has another value from a step on."""
        if not 0 <= name < len(self.program.names):
            raise ProgramFault(f"the program has no name {name}")
        of, table = self.program.names[name], self._tables[name][row]
        if name in self.program.next:
            table = table[step % VERSIONS]
        array = ARRAYS[of.type.kind]
        if len(value) != array.itemsize * table.numel():
            raise ProgramFault(f"{of.name} is {of.type}, and has come with {len(value)} bytes")
        given = np.frombuffer(value, array).reshape(self._sizes[name])
        table.copy_(upload(given.copy(), self._device))

    def drop(self, row: int) -> int | None:
        """A sampler is over. The last one gets its row, and is returned, unless it is that one."""
        last = len(self.samplers) - 1
        moved = self.samplers.pop()
        if row < last:
            self.samplers[row] = moved
            for table in self._tables:
                table[row] = table[last]
        self._make_room(last)
        return moved if row < last else None

    def _make_room(self, rows: int) -> None:
        """Room for so many, and no more than four times as many but for a few."""
        room = self._tables[0].shape[0] if self._tables else rows
        if rows <= room <= max(_FEW, 4 * rows) and rows:
            return
        kept, more = min(rows, room), max(1, 2 * rows) if rows else 0
        tables = [self._table(i, more) for i in range(len(self._tables))]
        for old, new in zip(self._tables, tables, strict=True):
            new[:kept] = old[:kept]
        self._tables = tables

    def read(self, name: int, rows: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
        """`[n, *sizes]`, of int64 rows and steps `[n]`."""
        table = self._tables[name]
        if name not in self.program.next:
            return table.index_select(0, rows)
        return table.flatten(0, 1).index_select(0, rows * VERSIONS + steps % VERSIONS)

    def write(
        self, following: dict[int, torch.Tensor], rows: torch.Tensor, steps: torch.Tensor
    ) -> None:
        """Values of the steps behind some."""
        places = rows * VERSIONS + (steps + 1) % VERSIONS
        for name, value in following.items():
            self._tables[name].flatten(0, 1).index_copy_(0, places, value)


class DevicePrograms:
    """The programs of a pool's samplers, and their values."""

    def __init__(self, vocabulary: int, device: torch.device, size: int) -> None:
        """All take the most likely token so far."""
        self.compiled = CompiledSamplers(size)
        self._nan: dict[int, int] = {}  # of samplers that have chosen no number, the nodes
        self._vocabulary = vocabulary
        self._device = device
        self._by_text: dict[str, Values] = {}
        self._places: list[tuple[Values, int] | None] = [None] * size

    def set(self, samplers: Sequence[int], programs: Sequence[Bound]) -> None:
        """Gives samplers their programs; those that they had are forgotten."""
        for sampler, bound in zip(samplers, programs, strict=True):
            self.drop([sampler])
            text = bound.program.text
            if is_compiled(bound.program):
                self.compiled.put(sampler, bound)
                continue
            if text not in self._by_text:
                self._by_text[text] = Values(bound.program, self._vocabulary, self._device)
            values = self._by_text[text]
            self._places[sampler] = values, values.put(sampler, bound.values)
            self.compiled.has[sampler] = False

    def drop(self, samplers: Sequence[int]) -> None:
        """Forgets the programs of samplers."""
        for sampler in samplers:
            place = self._places[sampler]
            if place is None:
                continue
            values, row = place
            if (moved := values.drop(row)) is not None:
                self._places[moved] = values, row
            self._places[sampler] = None
            self._nan.pop(sampler, None)
            self.compiled.has[sampler] = True
        if len(self._by_text) > _UNUSED:
            self._by_text = {t: values for t, values in self._by_text.items() if values.samplers}

    def node_at_fault(self, sampler: int) -> str | None:
        """The node of a sampler's program that an error is to name: the one that has made NaN, or
        the token; None for one that is compiled.
        """
        place = self._places[sampler]
        if place is None:
            return None
        number = self._nan.pop(sampler, place[0].program.token)
        return f"node {number}, {place[0].program.nodes[number].type}"

    def state(self, sampler: int, step: int) -> list[torch.Tensor]:
        """The values that change, of the step that comes after so many."""
        place = self._places[sampler]
        if place is None:
            return []
        values, row = place
        index = [upload_index(np.array([one]), self._device) for one in (row, step)]
        return [values.read(name, *index)[0] for name in values.program.next]

    def give(self, sampler: int, step: int, name: int, value: bytes) -> None:
        """A name of a sampler's program has another value from a step on, packed as in `Bound`.
        Raises ProgramFault: there is no such name or value.
        """
        place = self._places[sampler]
        if place is None:
            self.compiled.give(sampler, name, value)
        else:
            place[0].give(place[1], step, name, value)

    def note_nan(
        self, samplers: Int32, chosen: torch.Tensor, executable: Executable, rows: object
    ) -> None:
        """Notes which nodes have made NaN of choices that are none."""
        for row in np.flatnonzero(chosen.numpy() == NO_NUMBER).tolist():
            self._nan[samplers.item(row)] = executable.origin_of_nan(rows, row)

    def alike(self, samplers: Int32) -> Iterable[tuple[Values | None, list[int], list[int]]]:
        """Which of some samplers have each program, and its rows of values; of all compiled
        programs together.
        """
        found: dict[int, tuple[Values | None, list[int], list[int]]] = {}
        for i, sampler in enumerate(samplers.tolist()):
            values, row = self._places[sampler] or (None, sampler)
            group = found.setdefault(id(values), (values, [], []))
            group[1].append(i)
            group[2].append(row)
        return found.values()
