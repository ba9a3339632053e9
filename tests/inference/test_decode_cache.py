"""The window of decoding sequences always shows what the pool holds, whatever happened in
between.
"""

from __future__ import annotations

import gc
import random
import weakref

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from pie_inference.attention import decode_cache
from pie_inference.attention.decode_cache import IDLE, DecodeCache
from pie_inference.memory.kv_cache import KvCache

LAYERS, SLOTS, WIDTH, ROOM = 2, 64, 4, 16


def make_cache(slots: int = SLOTS) -> KvCache:
    return KvCache(
        layers=LAYERS,
        pages=slots // 8,
        page_size=8,
        kv_heads=1,
        head_dim=WIDTH // 2,
        scratch=4,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )


def write(cache: KvCache, slots: list[int], numbers: random.Random) -> torch.Tensor:
    """Stores random keys and values in the pool, as a forward does; `[layers, slots, width]`."""
    rows = torch.tensor([[numbers.random()] * WIDTH for _ in range(LAYERS * len(slots))])
    rows = rows.view(LAYERS, len(slots), WIDTH)
    cache.stamp(np.array(slots))
    for layer in range(LAYERS):
        cache.rows[layer][slots] = rows[layer]
    return rows


@settings(max_examples=60)
@given(st.randoms(use_true_random=False), st.integers(1, 6))
def test_it_agrees_with_the_pool(numbers: random.Random, most_rows: int) -> None:
    """In any order, of any part of the sequences, while they come, go, part, and move."""
    cache = make_cache()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decode_cache, "MAX_BYTES", most_rows * ROOM * LAYERS * WIDTH * 4)
        patch.setattr(decode_cache, "IDLE", 2)
        live(cache, DecodeCache(cache, ROOM), numbers)


def live(cache: KvCache, window: DecodeCache, numbers: random.Random) -> None:
    sequences: list[list[int]] = []
    for _ in range(25):
        free = [s for s in range(SLOTS) if not any(s in own for own in sequences)]
        numbers.shuffle(free)
        match numbers.choice(["decode"] * 4 + ["join", "leave", "write", "copy", "fork", "cut"]):
            case "join" if len(free) > 20:
                slots = [free.pop() for _ in range(numbers.randint(1, 6))]
                write(cache, slots, numbers)
                sequences.append(slots)
            case "leave" if sequences:
                sequences.pop(numbers.randrange(len(sequences)))
            case "write" if sequences:
                write(cache, [numbers.choice(numbers.choice(sequences))], numbers)
            case "copy" if sequences and free:
                target = numbers.choice(numbers.choice(sequences))
                cache.copy(np.array([free[0]], np.int32), np.array([target], np.int32))
            case "fork" if sequences:
                sequences.append(list(numbers.choice(sequences)))
            case "cut" if sequences:
                own = numbers.choice(sequences)
                del own[numbers.randint(1, len(own)) :]
            case "decode":
                fit = [own for own in sequences if len(own) < ROOM]
                some = numbers.sample(fit, numbers.randint(0, len(fit)))
                if some and len(free) > len(some):
                    decode(cache, window, some, free, numbers)


def decode(
    cache: KvCache,
    window: DecodeCache,
    sequences: list[list[int]],
    free: list[int],
    numbers: random.Random,
) -> None:
    for own in sequences:
        own.append(free.pop())
    stored = write(cache, [own[-1] for own in sequences], numbers)
    lengths = np.array([len(own) for own in sequences])
    keys = int(lengths.max())
    rows = window.open(np.array([own + own[:1] * (keys - len(own)) for own in sequences]), lengths)
    held = np.flatnonzero(rows >= 0)
    assert np.unique(rows[held]).size == held.size
    # A forward may fail between two layers.
    for layer in range(LAYERS if numbers.random() < 0.9 else 1):
        window.store(layer, stored[layer, held[rows[held].argsort()]])
        for i in held.tolist():
            own, row = sequences[i], int(rows[i])
            shown = window.read(layer, slice(row, row + 1), keys).reshape(keys, WIDTH)
            torch.testing.assert_close(shown[: len(own)], cache.rows[layer][own])
            # Beyond the end lies nothing of another sequence.
            first = cache.rows[layer][own[0]].expand(keys - len(own), WIDTH)
            torch.testing.assert_close(shown[len(own) :], first)


class Decoding:
    """Sequences of a shared prefix, each with slots of its own after it."""

    def __init__(self, count: int) -> None:
        self.cache = make_cache(1024)
        self.window = DecodeCache(self.cache, 64)
        self.sequences = [[*range(8), 8 + 30 * i] for i in range(count)]

    def step(self, chosen: list[int]) -> NDArray[np.int64]:
        for i in chosen:
            self.sequences[i].append(self.sequences[i][-1] + 1)
        some = [self.sequences[i] for i in chosen]
        lengths = np.array([len(own) for own in some])
        keys = int(lengths.max())
        self.cache.stamp(np.array([own[-1] for own in some]))
        rows = self.window.open(np.array([own + [0] * (keys - len(own)) for own in some]), lengths)
        for layer in range(LAYERS):
            self.window.store(layer, torch.zeros(len(some), WIDTH))
        return rows


@settings(max_examples=50)
@given(st.lists(st.permutations(range(12)), min_size=1, max_size=8), st.integers(1, 11))
def test_nothing_is_copied_twice(orders: list[list[int]], cut: int) -> None:
    """Whatever the order, and though every step is of a part of the sequences only."""
    decoding = Decoding(12)
    rows = np.full(12, -1)
    rows[list(range(cut))] = decoding.step(list(range(cut)))
    rows[list(range(cut, 12))] = decoding.step(list(range(cut, 12)))
    for order in orders:
        for part in (order, [i for i in order if i < cut], [i for i in order if i >= cut]):
            assert decoding.step(part).tolist() == rows[part].tolist()
            assert decoding.window.copied == 0


def test_rows_that_others_have_left_are_closed() -> None:
    decoding = Decoding(12)
    decoding.step(list(range(12)))
    for _ in range(IDLE):
        decoding.step([4, 9])
    found = [decoding.step([4, 9]).tolist() for _ in range(4)]
    assert found[-1] == [1, 0]
    assert decoding.window.copied == 0


def test_a_sequence_that_has_grown_elsewhere_keeps_its_row() -> None:
    decoding = Decoding(3)
    before = decoding.step([0, 1, 2])
    own = decoding.sequences[1]
    own += [own[-1] + 1, own[-1] + 2]
    decoding.cache.stamp(np.array(own[-2:]))
    assert decoding.step([2, 1, 0]).tolist() == before[::-1].tolist()
    assert decoding.window.copied == 2


def test_a_room_that_sequences_have_left_is_given_back() -> None:
    caches = decode_cache.DecodeCaches(make_cache(1024))

    def step(keys: int) -> DecodeCache:
        [found] = caches.open(np.array([0]), np.array([keys]), lambda _: np.arange(keys)[None])
        return found

    left = weakref.ref(step(decode_cache.SMALLEST_ROOM))
    for _ in range(decode_cache.UNUSED):
        grown = weakref.ref(step(decode_cache.SMALLEST_ROOM + 1))
    assert left() is not None
    step(decode_cache.SMALLEST_ROOM + 1)
    gc.collect()
    assert left() is None
    assert grown() is not None
