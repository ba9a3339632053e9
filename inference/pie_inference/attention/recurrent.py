"""The inputs of recurrent layers in a forward: tokens in order, and the states before them.

A recurrent layer's slot holds what its token writes to the state, as an attention layer's holds key
and value. A state is computed from the slots that a token sees, so that pages mean the same to all
layers: they are shared, copied, cut, masked, left out and swapped, and no state has to follow. That
it need not be computed from the first token each time is due to `memory/states.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from pie_inference.attention.sequences import Sequences
from pie_inference.device import Int64, upload
from pie_inference.memory.states import States

MAX_TOKENS = 1 << 13  # of a group, padded: bounds the memory
BORDER = 512  # a state is kept after every so many tokens of a long text


@dataclass(frozen=True, slots=True)
class _Lane:
    """Tokens that one state goes over, the last of them inputs of this forward."""

    slots: Int64
    first: int  # of the inputs, counted in the forward
    inputs: int
    silent: bool = False  # the last token reads, and does not write: it does not see itself
    worth: bool = True  # a row, for the state afterwards


@dataclass(frozen=True, slots=True)
class _Run:
    """Some consecutive tokens of a lane."""

    lane: _Lane
    start: int
    end: int
    source: int  # row of the state before them; -1: nothing was before
    target: int  # row of the state after them; -1: it is not kept


class Segment:
    """Runs of similar length, padded to one: a recurrent layer computes them together."""

    def __init__(self, states: States, runs: list[_Run]) -> None:
        """Lays out runs, each behind as many tokens as the layer looks back."""
        cache, history = states.cache, states.history
        length = max(run.end - run.start for run in runs)
        slots = np.zeros((len(runs), history + length), np.int64)
        there = np.zeros(slots.shape, np.bool_)
        writes = np.zeros((len(runs), length), np.bool_)
        reads: list[Int64] = []
        places: list[Int64] = []
        for i, run in enumerate(runs):
            lane, before = run.lane, min(run.start, history)
            columns = slice(history - before, history + run.end - run.start)
            slots[i, columns] = lane.slots[run.start - before : run.end]
            there[i, columns] = True
            writes[i, : run.end - run.start - lane.silent] = True
            inputs = np.arange(max(run.start, lane.slots.size - lane.inputs), run.end)
            reads.append(i * length + inputs - run.start)
            places.append(lane.first + inputs - (lane.slots.size - lane.inputs))
        device = cache.data.device
        self._runs = [(run.end - run.start, run.lane.silent) for run in runs]
        self._cache, self._states, self._history = cache, states, history
        self._shape = slots.shape
        self._slots = upload(slots.reshape(-1), device)
        self._there = None if there.all() else upload(there, device).unsqueeze(-1)
        self.writes = None if writes.all() else upload(writes, device).unsqueeze(-1)
        self.reads = upload(np.concatenate(reads), device)
        self.places = upload(np.concatenate(places), device)
        sources = np.array([run.source for run in runs])
        targets = np.array([run.target for run in runs])
        self._begun = upload(np.flatnonzero(sources >= 0), device)
        self._sources = upload(sources[sources >= 0], device)
        self._ended = upload(np.flatnonzero(targets >= 0), device)
        self._targets = upload(targets[targets >= 0], device)

    def tokens(self, layer: int) -> torch.Tensor:
        """`[runs, history + tokens, width]`, as stored; zeros before the first token."""
        found = self._cache.recurrent[layer].index_select(0, self._slots).view(*self._shape, -1)
        return found if self._there is None else found * self._there

    def alike(self) -> Iterator[tuple[int, bool, list[int]]]:
        """Runs of equally many tokens: how many, if the last one is silent, and which they are."""
        for length, silent in sorted(set(self._runs)):
            yield length, silent, [i for i, run in enumerate(self._runs) if run == (length, silent)]

    def complete(self, layer: int, first: int, numbers: torch.Tensor) -> None:
        """Stores the numbers `[runs, tokens, n]` of the tokens' slots that begin at `first`."""
        slots = self._slots.view(self._shape)[:, self._history :]
        filled = torch.zeros(slots.shape, dtype=torch.bool, device=slots.device)
        for i, (length, _) in enumerate(self._runs):
            filled[i, :length] = True
        self._cache.recurrent[layer][slots[filled], first:] = numbers[filled]

    def start(self, layer: int) -> torch.Tensor:
        """`[runs, heads, key_dim, value_dim]` the states before the tokens."""
        data = self._states.data[layer]
        found = data.new_zeros((self._shape[0], *data.shape[1:]))
        return found.index_copy_(0, self._begun, data.index_select(0, self._sources))

    def keep(self, layer: int, states: torch.Tensor) -> None:
        """Takes the states after the tokens."""
        data = self._states.data[layer]
        data.index_copy_(0, self._targets, states.index_select(0, self._ended))


class PreparedStates:
    """The recurrent layers of one forward."""

    def __init__(self, sequences: Sequences, states: States) -> None:
        """Finds the states to begin from, and rows for those to be kept."""
        states.begin()
        cache = states.cache
        self._cache, self._states = cache, states
        self._slots = upload(sequences.input_slots, cache.data.device)
        phases = self._phases(list(_lanes(sequences, cache.slots)))
        self._kept = [run for runs in phases for run in runs if run.target >= 0]
        self.segments = [Segment(states, group) for runs in phases for group in _grouped(runs)]

    def store(self, layer: int, tokens: torch.Tensor) -> None:
        """Stores what the inputs write, `[t, width]`, in their slots."""
        self._cache.recurrent[layer].index_copy_(0, self._slots, tokens)

    def done(self) -> None:
        """After the last layer: from now on the rows can be found."""
        for run in self._kept:
            self._states.fill(run.target, run.lane.slots[: run.end])

    def _phases(self, lanes: list[_Lane]) -> list[list[_Run]]:
        """The first run of each lane, then those that go on from these, and so on."""
        found = [self._states.find(lane.slots[: -lane.inputs]) for lane in lanes]
        users = np.bincount([row for row, _ in found if row >= 0] or [0])
        phases: list[list[_Run]] = []
        for lane, (source, start) in zip(lanes, found, strict=True):
            ends = self._ends(lane, source, start, users[source] == 1)
            for number, (end, target) in enumerate(ends):
                if number == len(phases):
                    phases.append([])
                phases[number].append(_Run(lane, start, end, source, target))
                source, start = target, end
        return phases

    def _ends(self, lane: _Lane, source: int, start: int, alone: bool) -> list[tuple[int, int]]:
        """Where the runs of a lane end, and the rows of the states there.

        It begins from the state of `start` tokens in the row `source`, or -1; `alone` if no other
        lane does. Borders are after every so many tokens, and after the last full page of the
        context, for others may share it, and of the whole. If rows are short, the last ones are
        kept.
        """
        end, states, size = lane.slots.size, self._states, self._cache.page_size
        if not lane.worth:
            return [(end, -1)]
        if source >= 0 and start % size and alone:
            # The state of a page that is not full goes on in its row: none needs it again.
            states.empty(source)
            last = source
        else:
            if source >= 0:
                states.go_on(source)
            last = states.take()
        borders = {*range(start // BORDER * BORDER, end, BORDER)}
        borders |= {some // size * size for some in (end - lane.inputs, end)}
        wanted = sorted((at for at in borders if start < at < end), reverse=True)
        found = [(at, row) for at in wanted if (row := states.take(border=True)) >= 0]
        return [*reversed(found), (end, last)]


def _lanes(s: Sequences, slots: int) -> Iterator[_Lane]:
    """One for each sequence; of one whose inputs see by a rule, one for each input."""
    for i in np.flatnonzero(np.diff(s.input_starts)).tolist():
        first, end = s.input_starts[i : i + 2].tolist()
        whole = s.key_slots(i)
        rule = s.visible.get(i)
        if rule is None:
            stored = bool(whole[-1] < slots)  # else it is a scratch slot
            yield _Lane(whole, first, end - first, worth=stored)
            continue
        for number, row in enumerate(rule):
            seen = np.ones(whole.size, np.bool_)
            seen[whole.size - row.size :] = row
            own = whole.size - (end - first) + number
            itself = bool(seen[own])
            seen[own] = False
            others = np.append(whole[seen], whole[own])
            yield _Lane(others, first + number, 1, silent=not itself, worth=False)


def _grouped(runs: list[_Run]) -> Iterator[list[_Run]]:
    """Runs whose lengths are at most twice each other's, not too many at once."""
    by_length: dict[int, list[_Run]] = {}
    for run in runs:
        by_length.setdefault((run.end - run.start - 1).bit_length(), []).append(run)
    for bits, some in by_length.items():
        step = max(1, MAX_TOKENS >> bits)
        for first in range(0, len(some), step):
            yield some[first : first + step]
