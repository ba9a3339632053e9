"""Choosing tokens: the distribution of every filter, edges of the parameters, repeatability."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.sampler_rows import join, make_logits, parameters, row

from pie_inference.sampling import choose as choose_module
from pie_inference.sampling.choose import NOTHING, choose
from pie_inference.sampling.noise import exponentials, numbers, starts

DRAWS = 10_000


def probabilities(
    logits: NDArray[np.float32],
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
) -> NDArray[np.float64]:
    """The distribution `[vocabulary]` that a sampler with these parameters draws from."""
    order = np.argsort(-logits.astype(np.float64), kind="stable")
    if temperature == 0:
        out = np.zeros(len(logits))
        out[order[0]] = 1.0
        return out
    with np.errstate(over="ignore"):
        scaled = (logits.astype(np.float64) - float(logits.max())) / temperature
    weights = np.exp(scaled[order])
    if top_k:
        weights[top_k:] = 0.0
    if top_p < 1:
        before = np.cumsum(weights) - weights
        weights[before >= top_p * weights.sum()] = 0.0
        weights[0] = 1.0
    weights[weights < min(min_p, 1.0)] = 0.0
    out = np.zeros(len(logits))
    out[order] = weights / weights.sum()
    return out


def chi_square_passes(counts: NDArray[np.int64], expected: NDArray[np.float64]) -> bool:
    """Whether counts may come from a distribution: false for one in a million that do.

    Cells that expect fewer than five are joined. The quantile is Wilson and Hilferty's (1931).
    """
    assert not counts[expected == 0].any(), "something impossible was drawn"
    wanted = expected * counts.sum()
    small = wanted < 5
    cells = [(c, w) for c, w in zip(counts[~small], wanted[~small], strict=True)]
    if wanted[small].sum() > 0:
        cells.append((counts[small].sum(), max(wanted[small].sum(), 1e-9)))
        if cells[-1][1] < 5 and len(cells) > 1:
            (c, w), (c2, w2) = cells.pop(), cells.pop()
            cells.append((c + c2, w + w2))
    degrees = len(cells) - 1
    if degrees == 0:
        return True
    statistic = sum((c - w) ** 2 / w for c, w in cells)
    z = 4.75  # one in a million
    limit = degrees * (1 - 2 / (9 * degrees) + z * math.sqrt(2 / (9 * degrees))) ** 3
    return bool(statistic < limit)


def test_noise_is_splitmix64() -> None:
    """The numbers that Java's `SplittableRandom`, and many others, give for these starts."""
    start = torch.tensor([[0], [1234567]])
    found = numbers(start, torch.arange(3)).numpy().view(np.uint64)
    assert found.tolist() == [
        [16294208416658607535, 7960286522194355700, 487617019471545679],
        [6457827717110365317, 3203168211198807973, 9817491932198370423],
    ]


def test_noise_of_some_tokens_is_that_of_all() -> None:
    start = starts(np.array([5, 2**64 - 1], np.uint64), np.array([3, 2**32 - 1], np.uint32))
    assert len(set(start.tolist())) == 2
    column = torch.from_numpy(start.view(np.int64))[:, None]
    every = exponentials(column, torch.arange(1001))
    some = torch.tensor([[0, 1000, 7], [5, 5, 998]])
    torch.testing.assert_close(exponentials(column, some), every.gather(1, some))
    assert bool((every > 0).all())
    assert 0.9 < float(every.mean()) < 1.1


FILTERS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.5},
    {"temperature": 3.0},
    {"top_k": 7},
    {"top_p": 0.6},
    {"top_p": 0.999},
    {"min_p": 0.1},
    {"min_p": 2.0},
    {"temperature": 1.5, "top_k": 20, "top_p": 0.8, "min_p": 0.05},
    {"temperature": 0.7, "top_k": 5000, "top_p": 0.9},
]


@pytest.mark.parametrize(
    ("vocabulary", "filters"),
    [*((50, filters) for filters in FILTERS), *((700, filters) for filters in FILTERS[4::2])],
    ids=str,
)
def test_distribution_is_the_exact_one(filters: dict[str, Any], vocabulary: int) -> None:
    logits = make_logits(vocabulary)
    tokens = choose(logits.expand(DRAWS, -1), parameters(DRAWS, **filters))
    counts = np.bincount(tokens.numpy(), minlength=vocabulary)
    assert chi_square_passes(counts, probabilities(logits.numpy(), **filters))


def test_seeds_and_steps_give_independent_draws() -> None:
    """Every pair of neighbouring steps, and of neighbouring seeds, is as likely as chance has
    it.
    """
    logits = torch.zeros(DRAWS, 8)
    tokens = choose(logits, parameters(DRAWS)).view(-1, 2)
    pairs = np.bincount((tokens[:, 0] * 8 + tokens[:, 1]).numpy(), minlength=64)
    assert chi_square_passes(pairs, np.full(64, 1 / 64))
    seeds = replace(
        parameters(DRAWS), seeds=np.arange(DRAWS, dtype=np.uint64), steps=np.zeros(DRAWS, np.uint32)
    )
    tokens = choose(logits, seeds).view(-1, 2)
    pairs = np.bincount((tokens[:, 0] * 8 + tokens[:, 1]).numpy(), minlength=64)
    assert chi_square_passes(pairs, np.full(64, 1 / 64))


@given(rows=st.lists(row, min_size=1, max_size=6), data=st.data())
@settings(max_examples=80)
def test_a_row_is_chosen_the_same_whatever_its_neighbours(
    rows: list[dict[str, Any]], data: st.DataObject
) -> None:
    values = st.sampled_from([-np.inf, -30.0, -1.0, 0.0, 0.25, 4.0])
    logits = torch.tensor(
        data.draw(
            st.lists(
                st.lists(values, min_size=40, max_size=40), min_size=len(rows), max_size=len(rows)
            )
        )
    )
    together = choose(logits, join([parameters(1, **r) for r in rows]))
    for i, filters in enumerate(rows):
        alone = choose(logits[i : i + 1], parameters(1, **filters))
        assert together[i] == alone[0]
        if torch.isinf(logits[i]).all():
            assert alone[0] == NOTHING
            continue
        # As the worker is given them: the nearest 32-bit numbers, of which 0.3 times ten is more
        # than three.
        given_filters: dict[str, Any] = {
            k: float(np.float32(v)) if isinstance(v, float) else v
            for k, v in filters.items()
            if k not in ("seed", "first_step")
        }
        if filters["top_p"] == 0:
            given_filters["temperature"] = 0.0
        exact = probabilities(logits[i].numpy(), **given_filters)
        assert exact[alone[0]] > 0


@pytest.mark.parametrize("scale", [0.0, 0.3, 3.0])
@pytest.mark.parametrize("top_p", [0.05, 0.9, 0.9999])
def test_a_nucleus_wider_than_what_is_sorted_first(
    monkeypatch: pytest.MonkeyPatch, scale: float, top_p: float
) -> None:
    monkeypatch.setattr(choose_module, "NUCLEUS", 2)
    logits = make_logits(200, scale=scale)
    logits[50:60] = -torch.inf
    logits[70:90] = logits[100]  # ties
    tokens = choose(logits.expand(DRAWS, -1), parameters(DRAWS, top_p=top_p))
    counts = np.bincount(tokens.numpy(), minlength=200)
    exact = probabilities(logits.numpy(), top_p=top_p)
    if scale == 0:  # how many of equal ones is a matter of the last bit
        assert abs(np.count_nonzero(counts) - np.count_nonzero(exact)) <= 1
    else:
        assert chi_square_passes(counts, exact)


def test_rounding_of_the_logits_seldom_changes_a_choice() -> None:
    """Other batch shapes round differently; a draw hangs on single tokens, not on sums over
    them.
    """
    logits = make_logits(2000)
    noisy = logits + torch.randn(2000, generator=torch.Generator().manual_seed(9)) * 1e-6
    for filters in ({}, {"top_k": 50}, {"top_p": 0.9}):
        one = choose(logits.expand(2000, -1), parameters(2000, **filters))
        other = choose(noisy.expand(2000, -1), parameters(2000, **filters))
        assert int((one != other).sum()) <= 1


def test_a_nucleus_that_rounding_makes_all_there_is() -> None:
    """Weights whose float32 sum is larger than that of their histogram."""
    near = torch.arange(-5.53, -5.52, 1e-6)
    worst = near[(near.exp().double() / near.double().exp()).argmax()]
    logits = worst.repeat(2, 200_000)
    logits[:, 0] = 0
    almost = float(np.nextafter(np.float32(1), np.float32(0)))
    everything = choose(logits, parameters(2))
    assert choose(logits, parameters(2, top_p=almost)).tolist() == everything.tolist()


@pytest.mark.parametrize("top_p", [1e-3, 0.05, 0.5, 0.9, 0.9999])
def test_a_race_of_all_tokens_has_the_winner_of_the_nucleus(top_p: float) -> None:
    """What a GPU does for top-p: held to cutting each row by hand."""
    rows = 64
    generator = torch.Generator().manual_seed(3)
    logits = (torch.randn(rows, 4096, generator=generator) * 2).bfloat16().float()  # with ties
    logits[:, 7:500] = -torch.inf
    together = parameters(rows, top_p=top_p)
    together.temperature[::2] = 4
    together.min_p[::5] = 0.01
    scaled = logits - logits.max(1, keepdim=True).values
    scaled /= torch.from_numpy(together.temperature)[:, None]
    found = choose_module._nucleus(scaled, together).squeeze(1).tolist()
    for i in range(rows):
        weights = scaled[i].double().exp()
        order = np.lexsort((np.arange(4096), -scaled[i].numpy()))  # equal ones by id
        before = weights[order].cumsum(0) - weights[order]
        mass = top_p * scaled[i].exp().sum(dtype=torch.float64)
        cut = torch.full_like(scaled[i], -torch.inf)
        kept = order[(before < mass).numpy()]
        cut[kept] = scaled[i][kept]
        alone = together.rows(np.array([i]))
        assert found[i] == int(choose_module._plain(cut[None], alone))
    assert choose(logits, together).tolist() == found


def test_a_share_that_equal_tokens_reach_exactly_is_that_of_32_bits() -> None:
    """Three of ten have 0.3 of the probability, which is less than the nearest 32-bit number."""
    logits = torch.zeros(1, 10)
    found = {int(choose(logits, parameters(1, top_p=0.3, seed=seed))[0]) for seed in range(200)}
    assert found == {0, 1, 2, 3}
