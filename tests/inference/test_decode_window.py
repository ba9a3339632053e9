"""The window of decoding sequences always shows what the pool holds, whatever happened in between."""

from __future__ import annotations

import random

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pie_inference.attention.window import DecodeWindow
from pie_inference.kv_cache import KvCache

LAYERS, SLOTS, WIDTH = 2, 64, 4


def make_cache() -> KvCache:
    return KvCache(
        layers=LAYERS,
        pages=SLOTS // 8,
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


@settings(max_examples=200, deadline=None)
@given(st.randoms(use_true_random=False))
def test_it_agrees_with_the_pool(numbers: random.Random) -> None:
    cache = make_cache()
    window = DecodeWindow(cache)
    sequences: list[list[int]] = []
    for _ in range(25):
        free = [s for s in range(SLOTS) if not any(s in own for own in sequences)]
        numbers.shuffle(free)
        match numbers.choice(["decode", "decode", "decode", "join", "leave", "write", "copy"]):
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
            case "decode" if sequences and len(free) > len(sequences):
                decode(cache, window, sequences, free, numbers)


def decode(
    cache: KvCache,
    window: DecodeWindow,
    sequences: list[list[int]],
    free: list[int],
    numbers: random.Random,
) -> None:
    for own in sequences:
        own.append(free.pop())
    rows = write(cache, [own[-1] for own in sequences], numbers)
    lengths = np.array([len(own) for own in sequences])
    keys = int(lengths.max())
    window.open(np.array([own + own[:1] * (keys - len(own)) for own in sequences]), lengths)
    # A forward may fail between two layers.
    for layer in range(LAYERS if numbers.random() < 0.9 else 1):
        window.store(layer, rows[layer])
        shown = window.read(layer, keys).reshape(len(sequences), keys, WIDTH)
        for i, own in enumerate(sequences):
            torch.testing.assert_close(shown[i, : len(own)], cache.rows[layer][own])
            # Beyond the end lies nothing of another sequence.
            first = cache.rows[layer][own[0]].expand(keys - len(own), WIDTH)
            torch.testing.assert_close(shown[i, len(own) :], first)
