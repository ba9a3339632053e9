"""The device programs of a model's samplers: their values, and the choices that they make."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from pie_inference.device import upload, upload_index
from pie_inference.sampling.executable import Executable
from pie_inference.sampling.noise import starts
from pie_inference.sampling.remembered import GIVEN, TIMES, RememberedTokens
from pie_py.device_programs.bound import ARRAYS, VERSIONS, Bound
from pie_py.device_programs.language import VOCABULARY
from pie_py.device_programs.program import Program
from pie_py.wire.plan import Int32

_UNUSED = 64  # programs that are kept although no sampler has them
_FEW = 8  # rows of values to begin with


class _Values:
    """The values of all samplers that have one program, a row each.

    What changes is kept for the newest `VERSIONS` steps, so a sampler that goes back finds it.
    """

    def __init__(self, program: Program, vocabulary: int, device: torch.device) -> None:
        self.executable = Executable(program, vocabulary, device)
        self.program = program
        self._device = device
        self._sizes = [
            tuple(vocabulary if size == VOCABULARY else size for size in of.shape)
            for _, of in program.names
        ]
        self.count = 0  # of samplers
        self._clear()

    def _clear(self) -> None:
        self._free: list[int] = []
        self._tables = [
            torch.zeros(self._shape(i, 0), dtype=_dtype(i, self.program), device=self._device)
            for i in range(len(self.program.names))
        ]

    def _shape(self, name: int, rows: int) -> tuple[int, ...]:
        versions = (VERSIONS,) if name in self.program.next else ()
        return (rows, *versions, *self._sizes[name])

    def put(self, values: bytes) -> int:
        """Values of a new sampler; returns its row."""
        if not self._free:
            self._grow()
        row, start = self._free.pop(), 0
        self.count += 1
        for i, (_, of) in enumerate(self.program.names):
            size = int(np.prod(self._sizes[i], dtype=np.int64)) * ARRAYS[of.kind].itemsize
            array = np.frombuffer(values[start : start + size], ARRAYS[of.kind])
            start += size
            value = upload(array.reshape(self._sizes[i]).copy(), self._device)
            place = (row, 0) if i in self.program.next else (row,)
            self._tables[i][place] = value
        return row

    def _grow(self) -> None:
        rows = self._tables[0].shape[0] if self._tables else self.count
        more = max(_FEW, rows)
        self._free = list(range(rows + more - 1, rows - 1, -1))
        self._tables = [
            torch.cat((table, table.new_zeros(self._shape(i, more))))
            for i, table in enumerate(self._tables)
        ]

    def drop(self, row: int) -> None:
        """A sampler is over."""
        self.count -= 1
        self._free.append(row)
        if not self.count:
            self._clear()

    def read(self, name: int, rows: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
        """`[n, *sizes]`, of int64 rows and steps `[n]`."""
        table = self._tables[name]
        return table[rows, steps % VERSIONS] if name in self.program.next else table[rows]

    def write(
        self, following: dict[int, torch.Tensor], rows: torch.Tensor, steps: torch.Tensor
    ) -> None:
        """Values of the steps behind some."""
        places = (steps + 1) % VERSIONS
        for name, value in following.items():
            self._tables[name][rows, places] = value


def _dtype(name: int, program: Program) -> torch.dtype:
    return torch.from_numpy(np.zeros(0, ARRAYS[program.names[name].type.kind])).dtype


class _Rows:
    """What some rows of a step have for their program."""

    def __init__(
        self,
        values: _Values,
        rows: torch.Tensor,
        logits: torch.Tensor,
        seeds: NDArray[np.uint64],
        steps: NDArray[np.uint32],
        remembered: RememberedTokens,
        memory: tuple[Int32, NDArray[np.int64]],
    ) -> None:
        self.logits = logits
        self.steps = upload_index(steps.astype(np.int64), logits.device)
        self._values = values
        self._rows = rows
        words = starts(seeds, steps).view(np.int64)
        self.start = upload(np.ascontiguousarray(words), logits.device)[:, None]
        self._remembered = remembered
        self._memory = memory  # rows of what is remembered, and lengths of the texts

    @cached_property
    def _counted(self) -> torch.Tensor:
        return self._remembered.counts(self._memory[0])

    def newest(self, count: int) -> torch.Tensor:
        return self._remembered.newest(*self._memory, count)

    def counts(self) -> torch.Tensor:
        return (self._counted & TIMES).to(torch.int64)

    def given(self) -> torch.Tensor:
        return self._counted >= GIVEN

    def state(self, number: int) -> torch.Tensor:
        return self._values.read(number, self._rows, self.steps)


class DevicePrograms:
    """Which samplers of a pool have programs, and their values."""

    def __init__(self, vocabulary: int, device: torch.device, size: int) -> None:
        """None has one yet."""
        self.has = np.zeros(size, np.bool_)
        self._vocabulary = vocabulary
        self._device = device
        self._by_text: dict[str, _Values] = {}
        self._places: list[tuple[_Values, int] | None] = [None] * size

    @property
    def known(self) -> dict[str, Program]:
        """Those that samplers have, by their text."""
        return {text: values.program for text, values in self._by_text.items()}

    def set(self, samplers: Sequence[int], programs: Sequence[Bound | None]) -> None:
        """Gives samplers their programs; those that they had are forgotten."""
        self.drop(samplers)
        for sampler, bound in zip(samplers, programs, strict=True):
            if bound is None:
                continue
            text = bound.program.text
            if text not in self._by_text:
                self._by_text[text] = _Values(bound.program, self._vocabulary, self._device)
            values = self._by_text[text]
            self._places[sampler] = values, values.put(bound.values)
            self.has[sampler] = True

    def drop(self, samplers: Sequence[int]) -> None:
        """Forgets the programs of samplers; one without is none."""
        for sampler in samplers:
            place = self._places[sampler]
            if place is None:
                continue
            values, row = place
            values.drop(row)
            self._places[sampler] = None
            self.has[sampler] = False
        if len(self._by_text) > _UNUSED:
            self._by_text = {t: values for t, values in self._by_text.items() if values.count}

    def state(self, sampler: int, step: int) -> list[torch.Tensor] | None:
        """The values that change, of the step that comes after so many; None without a program."""
        place = self._places[sampler]
        if place is None:
            return None
        values, row = place
        index = [upload_index(np.array([one]), self._device) for one in (row, step)]
        return [values.read(name, *index)[0] for name in values.program.next]

    def choose(
        self,
        samplers: Int32,
        steps: NDArray[np.uint32],
        seeds: NDArray[np.uint64],
        logits: torch.Tensor,
        remembered: RememberedTokens,
        memory: tuple[Int32, NDArray[np.int64]],
    ) -> torch.Tensor:
        """Tokens int64 `[n]` that the programs of samplers `[n]` choose, whatever they are.

        Args:
            samplers: all of which have programs.
            steps: how many tokens each has chosen before, `[n]`.
            seeds: `[n]`.
            logits: float32 `[n, vocabulary]`, none NaN; they are left alone.
            remembered: tokens of the texts.
            memory: rows of those `[n]`, and how many tokens each text has.
        """
        alike: dict[int, tuple[_Values, list[int], list[int]]] = {}
        for i, sampler in enumerate(samplers.tolist()):
            place = self._places[sampler]
            assert place is not None
            group = alike.setdefault(id(place[0]), (place[0], [], []))
            group[1].append(i)
            group[2].append(place[1])
        tokens = torch.empty(len(logits), dtype=torch.int64, device=self._device)
        for values, places, own in alike.values():
            some = np.array(places)
            every = len(some) == len(logits)
            index = upload_index(some, self._device)
            rows = _Rows(
                values,
                upload_index(np.array(own), self._device),
                logits if every else logits[index],
                seeds[some],
                steps[some],
                remembered,
                (memory[0][some], memory[1][some]),
            )
            chosen, following = values.executable.run(rows)
            values.write(following, rows._rows, rows.steps)
            tokens[index] = chosen
        return tokens
