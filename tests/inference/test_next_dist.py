"""Next-token distributions: order, ties, width, probabilities."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.model_rig import Rig, ints

from pie_inference.errors import BadBatch
from pie_inference.sampling.choose import top_tokens


@pytest.mark.parametrize("k", [1, 2, 50, None])
def test_probabilities_of_the_softmax_over_the_whole_vocabulary(rig: Rig, k: int | None) -> None:
    k = k or rig.model.description.vocab_size
    found = rig.next_dist(range(8), [k] * 8)
    with torch.inference_mode():
        logits = rig.model.network.logits(rig.model.embeds.hidden[:8])
    wanted = logits.double().softmax(1).sort(dim=1, descending=True, stable=True)
    assert found.tokens.shape == (8, k)
    assert found.probabilities.dtype == np.float32
    np.testing.assert_array_equal(found.tokens, wanted.indices[:, :k])
    np.testing.assert_allclose(found.probabilities, wanted.values[:, :k], rtol=1e-4)


def test_rows_of_different_k_are_padded_to_the_widest(rig: Rig) -> None:
    found = rig.next_dist([0, 1], [3, 7])
    assert found.tokens.shape == (2, 7)
    np.testing.assert_array_equal(found.tokens[0, :3], rig.next_dist([0], [3]).tokens[0])


VALUES = [-math.inf, -2.5, -1.0, -0.0, 0.0, 1e-30, 3.0, math.inf]


@given(
    rows=st.integers(1, 4),
    values=st.lists(st.sampled_from(VALUES), min_size=8, max_size=40),
    data=st.data(),
)
def test_ties_go_to_the_lower_id(rows: int, values: list[float], data: st.DataObject) -> None:
    logits = torch.stack([torch.tensor(values).roll(i) for i in range(rows)])
    k = data.draw(st.integers(1, len(values)))
    wanted = logits.sort(dim=1, descending=True, stable=True).indices[:, :k]
    torch.testing.assert_close(top_tokens(logits, k), wanted)


@pytest.mark.parametrize("k", [0, -1, 100_000])
def test_k_outside_the_vocabulary_is_refused(rig: Rig, k: int) -> None:
    with pytest.raises(BadBatch, match="k is not in"):
        rig.next_dist([0], [k])


def test_no_rows(rig: Rig) -> None:
    assert rig.next_dist([], []).tokens.size == 0


def test_an_embed_outside_the_pool_is_refused(rig: Rig) -> None:
    with pytest.raises(BadBatch, match="embed"):
        rig.next_dist(ints([rig.model.embeds.size]), [1])
