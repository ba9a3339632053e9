"""Beginnings that sequences share are attended to once, and that changes no result."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.model_rig import Rig, Step, forward_of, ints, offsets, runs_of, tokens_of

from pie_inference.attention import AttentionOptions, shared_prefix, torch_backend
from pie_inference.attention.sequences import Pages, Sequences, describe
from pie_inference.attention.shared_prefix import SharedPrefix, find_shared_prefixes
from pie_inference.attention.torch_backend import TorchAttention
from pie_inference.memory.kv_cache import KvCache

PAGE, PAGES, HEADS, KV_HEADS, DIM = 4, 128, 4, 2, 8


@pytest.fixture(autouse=True)
def _sharing_always_pays(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setattr(shared_prefix, "FEWEST_SAVED", 0)
        patch.setattr(shared_prefix, "SAVED_PER_QUERY", 0)
        yield


# -- which sequences share what


def sequences_of(tables: list[list[tuple[int, int]]], inputs: list[int]) -> Sequences:
    """Of page tables, (page, filled slots) each."""
    flat = np.array([entry for own in tables for entry in own], np.int64).reshape(-1, 2)
    starts = offsets([len(own) for own in tables]).astype(np.int64)
    masked = np.zeros(len(tables), np.bool_)
    filled = np.concatenate([[0], np.cumsum(flat[:, 1])])[starts]
    total = sum(inputs)
    return Sequences(
        input_starts=offsets(inputs).astype(np.int64),
        positions=np.zeros(total, np.int32),
        input_slots=np.arange(total),
        pages=Pages(starts, flat[:, 0], flat[:, 1], masked),
        context_starts=filled,
        visible={},
        live=None,
        page_size=PAGE,
    )


entries = st.tuples(st.integers(0, 2), st.integers(PAGE - 1, PAGE))
tables = st.lists(st.tuples(st.lists(entries, max_size=5), st.integers(1, 3)), max_size=7)


@settings(max_examples=120)
@given(tables, st.integers(0, 4), st.integers(0, 2), st.integers(1, 40))
def test_those_that_begin_alike_are_found(
    drawn: list[tuple[list[tuple[int, int]], int]], fixed: int, each: int, cells: int
) -> None:
    """What is shared is the same in all, pays, and is as much as any one prefix would save."""
    own, inputs = [list(table) for table, _ in drawn], [count for _, count in drawn]
    s = sequences_of(own, inputs)
    able = np.arange(len(own)) % 5 != 4
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shared_prefix, "FEWEST_SAVED", fixed)
        patch.setattr(shared_prefix, "SAVED_PER_QUERY", each)
        found = find_shared_prefixes(s, able)
        saved = []
        for beginning in found:
            members = beginning.members.tolist()
            assert len(members) > 1
            assert able[members].all()
            shared = own[members[0]][: beginning.entries]
            assert len(shared) == beginning.entries
            assert all(own[i][: beginning.entries] == shared for i in members)
            assert beginning.keys == sum(used for _, used in shared)
            queries = sum(inputs[i] for i in members)
            saved.append((len(members) - 1) * beginning.keys - fixed - each * queries)
        assert all(gain > 0 for gain in saved)
        everybody = [i for beginning in found for i in beginning.members.tolist()]
        assert len(everybody) == len(set(everybody))
        if not each:
            some = [own[i] for i in np.flatnonzero(able).tolist() if own[i]]
            assert sum(saved) >= max(
                (_spared(some, depth) - fixed for depth in range(1, 6)), default=0
            )
        # Less may be found in fewer cells, but nothing that is wrong.
        patch.setattr(shared_prefix, "MAX_CELLS", cells)
        for beginning in find_shared_prefixes(s, able):
            members = beginning.members.tolist()
            shared = own[members[0]][: beginning.entries]
            assert all(own[i][: beginning.entries] == shared for i in members)
            assert beginning.keys == sum(used for _, used in shared)


def _spared(some: list[list[tuple[int, int]]], depth: int) -> int:
    """Keys saved by the sequences whose first entries are the same, so many, where they are
    most.
    """
    heads = Counter(tuple(table[:depth]) for table in some if len(table) >= depth)
    return max(((n - 1) * sum(used for _, used in head) for head, n in heads.items()), default=0)


# -- attention, beside brute force


class World:
    """A pool, page tables that grow, part and go, and attention over them, once more by brute
    force.
    """

    def __init__(self, numbers: random.Random, window: int | None) -> None:
        self.numbers = numbers
        self.torch = torch.Generator().manual_seed(numbers.randrange(1 << 30))
        self.options = [AttentionOptions(), AttentionOptions(scale=0.7, window=window)]
        self.cache = KvCache(
            layers=2,
            pages=PAGES,
            page_size=PAGE,
            kv_heads=KV_HEADS,
            head_dim=DIM,
            scratch=16,
            dtype=torch.float32,
            device=torch.device("cpu"),
        )
        self.attention = TorchAttention(self.cache, HEADS, self.options)
        # A table of pages and filled slots each.
        self.streams: list[list[list[int]]] = [[], []]

    def free_pages(self) -> list[int]:
        held = {page for own in self.streams for page, _ in own}
        free = [page for page in range(PAGES) if page not in held]
        self.numbers.shuffle(free)
        return free

    def act(self) -> None:
        numbers = self.numbers
        match numbers.choice(
            ["forward"] * 12 + ["fork"] * 4 + ["join", "leave", "leave", "leave", "mask", "copy"]
        ):
            case "join" if len(self.streams) < 9:
                self.streams.append([])
            case "fork" if self.streams and len(self.streams) < 9:
                own = numbers.choice(self.streams)
                kept = numbers.randint(len(own) // 2, len(own))
                self.streams.append([list(entry) for entry in own[:kept]])
            case "leave" if self.streams:
                self.streams.pop(numbers.randrange(len(self.streams)))
            case "mask" if self.streams:
                slots = [self._slot(*entry) for own in self.streams for entry in own]
                if slots:
                    self.cache.masked[:] = False
                    self.cache.masked[numbers.sample(slots, numbers.randrange(2))] = True
            case "copy" if self.streams:
                slots = [self._slot(*entry) for own in self.streams for entry in own]
                if slots and (free := self.free_pages()):
                    source, target = free[0] * PAGE, numbers.choice(slots)
                    self.cache.copy(ints([source]), ints([target]))
            case "forward" if self.streams:
                self.forward(numbers.sample(self.streams, numbers.randint(1, len(self.streams))))

    def _slot(self, page: int, used: int) -> int:
        return page * PAGE + self.numbers.randrange(used)

    def _grow(self, own: list[list[int]], count: int, free: list[int]) -> list[int]:
        """Slots for inputs. A page that is part full and another's, too, is left as it is: a
        gap.
        """
        slots = []
        for _ in range(count):
            others = (
                sum(page == own[-1][0] for table in self.streams for page, _ in table) if own else 2
            )
            if not own or own[-1][1] == PAGE or others > 1:
                own.append([free.pop(), 0])
            page, used = own[-1]
            slots.append(page * PAGE + used)
            own[-1][1] += 1
        return slots

    @torch.inference_mode()
    def forward(self, some: list[list[list[int]]]) -> None:
        numbers, free, cache = self.numbers, self.free_pages(), self.cache
        chosen, counts, slots, tables, positions, masks, masked = [], [], [], [], [], [], []
        for own in some:
            count = numbers.choice([1, 1, 1, 2, 5])
            if len(free) < count + 1:
                break
            before = [tuple(entry) for entry in own]
            context = sum(used for _, used in before)
            keep = numbers.random() < 0.9
            slots.append(self._grow(own, count, free) if keep else [-1] * count)
            chosen.append(own)
            counts.append(count)
            tables.append(before)
            at = list(range(context, context + count))
            positions.append(at if numbers.random() < 0.9 else numbers.sample(at, count))
            rule: list[int] = []
            if numbers.random() < 0.1:
                drawn = np.array(
                    [[numbers.random() < 0.6 for _ in range(context + count)] for _ in at]
                )
                rule = runs_of(drawn)
            masks.append(rule)
            live = [cache.masked[p * PAGE : p * PAGE + u].any() for p, u in before]
            masked.append(any(live) or numbers.random() < 0.05)
        if not counts:
            return
        batch = forward_of(
            counts,
            [slot for own in slots for slot in own],
            [[]] * len(counts),
            page_starts=offsets([len(table) for table in tables]),
            pages=[page for table in tables for page, _ in table],
            page_used=[used for table in tables for _, used in table],
            has_masked=masked,
            mask_starts=offsets([len(rule) for rule in masks]),
            mask=[m for rule in masks for m in rule],
        )
        places = ints([p for own in positions for p in own])
        s = describe(batch, places, cache)
        cache.positions[s.input_slots] = places
        seen = [self._seen(s, i) for i in range(len(counts))]
        prepared = self.attention.prepare(s, ordered=numbers.random() < 0.8)
        order = np.arange(places.size) if prepared.order is None else prepared.order
        for layer, options in enumerate(self.options):
            stored = torch.randn((places.size, 2 * KV_HEADS * DIM), generator=self.torch)
            queries = torch.randn((places.size, HEADS, DIM), generator=self.torch)
            prepared.store(layer, stored[order])
            found = torch.empty((places.size, HEADS * DIM))
            found[order] = prepared.attend(layer, queries[order])
            for i, (keys, shown) in enumerate(seen):
                own_rows = slice(*s.input_starts[i : i + 2].tolist())
                wanted = self._brute(
                    layer, options, queries[own_rows], places[own_rows], keys, shown
                )
                torch.testing.assert_close(found[own_rows], wanted, atol=1e-4, rtol=1e-4)
        cache.masked[s.input_slots] = False

    def _seen(self, s: Sequences, i: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Slots of a sequence's keys, and which of them its inputs see by the rules."""
        context = s.context_slots[slice(*s.context_starts[i : i + 2].tolist())]
        inputs = s.input_slots[slice(*s.input_starts[i : i + 2].tolist())]
        shown = np.ones((inputs.size, context.size + inputs.size), np.bool_)
        shown[:, context.size :] = np.tril(np.ones((inputs.size, inputs.size), np.bool_))
        if i in s.visible:
            rule = s.visible[i]
            shown[:, shown.shape[1] - rule.shape[1] :] = rule
        return np.concatenate([context, inputs]), shown

    def _brute(
        self,
        layer: int,
        options: AttentionOptions,
        queries: torch.Tensor,
        positions: NDArray[np.int32],
        keys: NDArray[np.int64],
        shown: NDArray[np.bool_],
    ) -> torch.Tensor:
        held = self.cache.data[layer, keys].repeat_interleave(HEADS // KV_HEADS, 2)
        scores = torch.einsum("qhd,khd->hqk", queries, held[:, 0]) * (options.scale or DIM**-0.5)
        if (window := options.sliding) is not None:
            near = self.cache.positions[keys][None] > positions[:, None] - window
            shown = shown & near
        weights = scores.masked_fill(~torch.from_numpy(shown), float("-inf")).softmax(-1)
        found = torch.einsum("hqk,khd->qhd", weights.nan_to_num(), held[:, 1])
        return found.reshape(queries.shape[0], -1)


@settings(max_examples=25)
@given(st.integers(0, 1 << 30), st.sampled_from([None, 16, 100]))
def test_it_agrees_with_brute_force(seed: int, window: int | None) -> None:
    """While sequences grow, fork, leave, and pages are used again; masks, rules and windows among
    them.
    """
    world = World(random.Random(seed), window)
    for _ in range(60):
        world.act()


def test_it_is_shared_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which the test before would not notice. Without windows, all that is found is used."""
    joints = 0

    def counted(*arguments: Any) -> list[SharedPrefix]:
        nonlocal joints
        found = find_shared_prefixes(*arguments)
        joints += len(found)
        return found

    monkeypatch.setattr(torch_backend, "find_shared_prefixes", counted)
    world = World(random.Random(0), None)
    for _ in range(300):
        world.act()
    assert joints > 50


# -- a model


def test_of_a_shared_beginning_nothing_is_copied(folder: Path) -> None:
    rig = Rig(folder, page_size=8, pages=256)
    attention = rig.model.attention
    assert isinstance(attention, TorchAttention)
    base = rig.sequence(160)
    rig.forward(Step(base, tokens_of(160)))
    forks = [rig.sequence(40) for _ in range(10)]
    for fork in forks:
        fork.pages, fork.used = base.pages + fork.pages, 160
    rig.forward(*(Step(fork, tokens_of(9, seed=i)) for i, fork in enumerate(forks)))
    copied = []
    for turn in range(12):
        rig.forward(*(Step(fork, [5 + turn]) for fork in forks))
        copied.append(attention.decode_caches.copied)
    assert 0 < copied[0] <= 10 * 64
    assert not any(copied[1:])


def test_in_steady_state_nothing_is_copied(folder: Path) -> None:
    """Two parts of the sequences in turn, each in another order every time, of lengths of two
    rooms.
    """
    rng = np.random.default_rng(0)
    rig = Rig(folder, page_size=8, pages=256)
    attention = rig.model.attention
    assert isinstance(attention, TorchAttention)
    sequences = [rig.sequence(120) for _ in range(10)]
    rig.forward(*(Step(s, tokens_of(66 + i if i % 3 else 9 + i)) for i, s in enumerate(sequences)))
    copied = []
    for turn in range(24):
        part = sequences[:7] if turn % 2 else sequences[7:]
        rig.forward(*(Step(part[i], [5]) for i in rng.permutation(len(part))))
        copied.append(attention.decode_caches.copied)
    assert all(copied[:2])
    assert not any(copied[2:])
