"""Attention follows the contract: positions, explicit masks, masked slots, pages left out."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.model_rig import (
    Rig,
    Step,
    assert_close,
    causal,
    expected_logits,
    forward_of,
    ints,
    runs_of,
    tokens_of,
)

from pie_inference.attention.sequences import describe, expand_runs
from pie_inference.attention.torch_backend import TorchAttention
from pie_inference.errors import BadBatch


def by_position(positions: list[int]) -> NDArray[np.bool_]:
    """The contract's default rule, word for word."""
    count = len(positions)
    return np.array(
        [
            [
                positions[j] < positions[i] or (positions[j] == positions[i] and j <= i)
                for j in range(count)
            ]
            for i in range(count)
        ]
    )


@settings(max_examples=30)
@given(positions=st.lists(st.integers(0, 30), min_size=2, max_size=12))
def test_positions_out_of_order_and_equal(folder: Path, positions: list[int]) -> None:
    rig = _rig(folder)
    tokens = tokens_of(len(positions))
    (found,) = rig.forward(
        Step(rig.sequence(16), tokens, positions=positions, outputs=len(tokens), keep=False)
    )
    wanted = expected_logits(folder, tokens, positions=positions, visible=by_position(positions))
    assert_close(found, wanted)


def test_a_later_position_in_the_context_is_attended_to(folder: Path) -> None:
    """The context is attended to whatever its positions; only inputs are ordered by position."""
    rig = _rig(folder)
    tokens = tokens_of(20)
    positions = [*range(100, 110), *range(10)]
    visible = causal(20)
    sequence = rig.sequence(20)
    rig.forward(Step(sequence, tokens[:10], positions=positions[:10]))
    (found,) = rig.forward(Step(sequence, tokens[10:], positions=positions[10:], outputs=10))
    wanted = expected_logits(folder, tokens, positions=positions, visible=visible)
    assert_close(found, wanted[10:])


@settings(max_examples=40)
@given(data=st.data())
def test_explicit_masks(folder: Path, data: st.DataObject) -> None:
    rig = _rig(folder)
    context = data.draw(st.integers(0, 20))
    count = data.draw(st.integers(1, 10))
    total = context + count
    bits = data.draw(st.lists(st.booleans(), min_size=count * total, max_size=count * total))
    rows = np.array(bits, np.bool_).reshape(count, total)
    rows[np.arange(count), context + np.arange(count)] = True  # transformers wants one visible
    hidden = sorted(data.draw(st.sets(st.integers(0, context - 1)))) if context else []
    tokens = tokens_of(total)
    sequence = rig.sequence(32)
    if context:
        rig.forward(Step(sequence, tokens[:context], outputs=0))
        rig.mask(sequence, hidden)
    (found,) = rig.forward(
        Step(sequence, tokens[context:], outputs=count, mask=runs_of(rows), masked=bool(hidden))
    )
    visible = causal(total)
    visible[context:] = rows
    visible[context:, hidden] = False
    assert_close(found, expected_logits(folder, tokens, visible=visible)[context:])


def test_a_page_in_new_hands_is_unmasked_by_being_filled(folder: Path) -> None:
    rig = _rig(folder)
    tokens = tokens_of(17)
    first = rig.sequence(17)
    rig.forward(Step(first, tokens, outputs=0))
    rig.mask(first, range(16))
    second = rig.sequence(17)
    second.pages = first.pages
    rig.forward(Step(second, tokens[:16], outputs=0))
    (found,) = rig.forward(Step(second, tokens[16:], masked=True))
    assert_close(found[0], expected_logits(folder, tokens)[16])


@settings(max_examples=50)
@given(pairs=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=12))
def test_copies_take_effect_in_order(folder: Path, pairs: list[tuple[int, int]]) -> None:
    rig = _rig(folder)
    cache = rig.model.cache
    with torch.inference_mode():
        cache.data[:, :10] = torch.arange(10.0).view(1, 10, 1, 1, 1)
    cache.masked[:10] = [i % 3 == 0 for i in range(10)]
    values = list(range(10))
    for source, target in pairs:
        values[target] = values[source]
    rig.copy([s for s, _ in pairs], [t for _, t in pairs])
    assert cache.data[1, :10, 1, 0, 0].tolist() == values
    assert cache.masked[:10].tolist() == [value % 3 == 0 for value in values]


def test_long_sequences_are_cut_into_pieces(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bounds on memory, lowered, change no result."""
    package = "pie_inference.attention"
    monkeypatch.setattr(f"{package}.groups.MAX_SCORES", 500)
    monkeypatch.setattr(f"{package}.groups.MAX_GATHER_BYTES", 1 << 14)
    monkeypatch.setattr("pie_inference.loading.pools.knows", lambda *_: False)
    rig = Rig(folder)
    assert isinstance(rig.model.attention, TorchAttention)
    tokens = tokens_of(120)
    sequences = [rig.sequence(120), rig.sequence(120)]
    wanted = expected_logits(folder, tokens)
    for start, end in ((0, 50), (50, 119), (119, 120)):
        found = rig.forward(*(Step(s, tokens[start:end], outputs=end - start) for s in sequences))
        for logits in found:
            assert_close(logits, wanted[start:end])


def test_positions_out_of_order_need_no_memory_for_the_context(folder: Path) -> None:
    """The context may be long, for a page may be in the list many times."""
    rig = Rig(folder)
    inputs, pages = 256, 1 << 15
    batch = forward_of(
        [inputs],
        [-1] * inputs,
        [[]],
        page_starts=[0, pages],
        pages=[0] * pages,
        page_used=[16] * pages,
        has_masked=[1],
    )
    tracemalloc.start()
    found = describe(batch, ints(range(inputs))[::-1], rig.model.cache)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 64 << 20 < inputs * found.context_slots.size


@pytest.mark.parametrize(
    "runs", [[], [1, 4], [2, 1], [2, 0, 4, 9], [1, 3, 1, 3, 1, 3], [-1, 3], [2, -1, 4, 1, 3]]
)
def test_masks_that_do_not_fit_are_refused(runs: list[int]) -> None:
    with pytest.raises(BadBatch, match="mask"):
        expand_runs(ints(runs), 2, 3)


_RIGS: dict[Path, Rig] = {}


def _rig(folder: Path) -> Rig:
    """A rig with all its pages free; loading one takes longer than a test."""
    if folder not in _RIGS:
        _RIGS[folder] = Rig(folder)
    rig = _RIGS[folder]
    rig._free = list(np.random.default_rng(1).permutation(64))
    return rig
