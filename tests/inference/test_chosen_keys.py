"""What a row finds in the keys that are chosen for it, and pages' scores, in plain numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from pie_inference.device import LINE, zeros
from pie_inference.layers.step import RowAttention, RowKeys

CPU = torch.device("cpu")
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2}


class Drawn:
    """A pool, a query and what is kept of a context, at random."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.dtype = [torch.float32, torch.bfloat16][rng.integers(2)]
        self.kv_heads, self.group = int(rng.integers(1, 5)), int(rng.integers(1, 6))
        self.heads, self.dim = self.kv_heads * self.group, 16 * int(rng.integers(1, 6))
        self.by_page = bool(rng.integers(2))
        self.size = [8, 16][rng.integers(2)] if self.by_page else 1
        self.count = int(rng.integers(1, 40 if self.by_page else 500))
        self.pages = self.count + 3
        self.last = int(rng.integers(1, self.size + 1))
        self.entries = rng.permutation(self.pages)[: self.count].astype(np.int32)
        self.positions = np.zeros(self.pages * self.size, np.int32)
        slots = (self.entries[:, None] * self.size + np.arange(self.size)).ravel()
        self.slots: NDArray[np.int64] = slots[: (self.count - 1) * self.size + self.last]
        self.positions[self.slots] = np.arange(self.slots.size)
        self.window = int(rng.integers(1, 200)) if rng.integers(2) else None
        self.lists = [1, self.kv_heads, self.heads][rng.integers(3)]
        self.kept = rng.random((self.lists, self.count)) < rng.random()
        shape = self.pages * self.size, 2, self.kv_heads, self.dim
        self.pool = torch.from_numpy(rng.standard_normal(shape)).to(self.dtype)
        self.query = torch.from_numpy(3 * rng.standard_normal((self.heads, self.dim))).to(
            self.dtype
        )
        self.attention = RowAttention(self.heads, self.kv_heads, self.dim, self.dtype)

    def keys(self) -> RowKeys:
        slot = int(self.slots[-1])
        return RowKeys(self.entries, self.size, self.last, slot, self.positions)

    def given(self) -> torch.Tensor:
        """What each head gives each slot of the context, float64 `[heads, slots]`."""
        found = torch.zeros(self.heads, self.slots.size, dtype=torch.float64)
        for head in range(self.heads):
            key_head = head // self.group
            each = self.heads // self.lists
            own = range(self.lists)
            if self.lists > 1:  # those that share the keys
                own = range(key_head * self.group // each, (key_head + 1) * self.group // each)
            kept = np.any([self.kept[i] for i in own], axis=0)
            kept[-1] = True
            seen = kept.repeat(self.size)[: self.slots.size]
            if self.window is not None:
                place = np.arange(self.slots.size)
                seen &= place > self.slots.size - 1 - self.window
            keys = self.pool[self.slots, 0, key_head].double()
            scores = keys @ self.query[head].double() * 0.25
            found[head] = scores.masked_fill(~torch.from_numpy(seen), -math.inf).softmax(0)
        return found


@settings(max_examples=150)
@given(st.integers(0, 2**32))
def test_a_row_finds_what_is_kept_for_it(seed: int) -> None:
    drawn = Drawn(seed)
    weights = drawn.given()
    values = drawn.pool[drawn.slots, 1].double().repeat_interleave(drawn.group, 1)
    wanted = torch.einsum("ht,thd->hd", weights, values)
    kept = torch.from_numpy(drawn.kept)
    told = None if drawn.by_page else torch.full((drawn.heads, drawn.count), math.nan)
    found = torch.empty(drawn.heads * drawn.dim, dtype=drawn.dtype)
    for each in (told, None):  # the same with and without weights
        drawn.attention.run(
            drawn.keys(),
            drawn.query,
            drawn.pool,
            kept[0] if drawn.lists == 1 else kept,
            scale=0.25,
            window=drawn.window,
            found=found,
            weights=each,
        )
        torch.testing.assert_close(
            found.view(drawn.heads, -1).double(), wanted, rtol=0, atol=TOLERANCE[drawn.dtype]
        )
    if told is not None:
        torch.testing.assert_close(told.double(), weights, rtol=0, atol=1e-5)


@settings(max_examples=60)
@given(st.integers(0, 2**32))
def test_scores_are_the_largest_that_a_page_can_have(seed: int) -> None:
    drawn = Drawn(seed)
    ends = drawn.pool.sort(1).values  # [pages, 2, kv_heads, dim], as bounds have them
    bounds = ends[: drawn.pages].transpose(1, 2).contiguous()
    found = drawn.attention.scores(bounds, drawn.entries, drawn.query, 0.25)
    low, high = bounds[drawn.entries].double().repeat_interleave(drawn.group, 1).unbind(2)
    query = drawn.query.double()
    wanted = torch.maximum(query * low, query * high).sum(-1).T * 0.25
    torch.testing.assert_close(found[:, :-1].double(), wanted, rtol=1e-5, atol=1e-4)
    assert (found[:, -1] == -math.inf).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_pool_begins_with_a_cache_line(dtype: torch.dtype) -> None:
    """Else a head's keys lie in a line more than they fill, which took half of the time again."""
    for count in (1, 1000, 1 << 20):
        pool = zeros((2, count), dtype, CPU)
        assert pool.data_ptr() % LINE == 0
        assert pool.shape == (2, count)
        assert pool.count_nonzero() == 0
