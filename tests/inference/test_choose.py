"""Choosing tokens: the distribution of every filter, edges of the parameters, repeatability."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling_reference import chi_square_passes, probabilities

from inferlet.sample import Sampler
from pie_inference.sampling import choose as choose_module
from pie_inference.sampling.choose import NOTHING, Parameters, choose
from pie_inference.sampling.philox import exponentials, philox

DRAWS = 10_000


def parameters(
    rows: int,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    seed: int = 1,
    first_step: int = 0,
) -> Parameters:
    return Parameters(
        temperature=torch.full((rows,), temperature),
        top_k=torch.full((rows,), top_k),
        top_p=torch.full((rows,), top_p),
        min_p=torch.full((rows,), min_p),
        seeds=torch.tensor([[seed & 0xFFFFFFFF, seed >> 32]]).expand(rows, 2),
        steps=torch.arange(first_step, first_step + rows),
    )


def join(parts: list[Parameters]) -> Parameters:
    fields = ("temperature", "top_k", "top_p", "min_p", "seeds", "steps")
    return Parameters(**{f: torch.cat([getattr(p, f) for p in parts]) for f in fields})


def make_logits(vocabulary: int, seed: int = 0, scale: float = 2.0) -> torch.Tensor:
    return torch.randn(vocabulary, generator=torch.Generator().manual_seed(seed)) * scale


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        (
            [0xFFFFFFFF] * 4,
            [0xFFFFFFFF] * 2,
            [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD],
        ),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0xA4093822, 0x299F31D0],
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ],
)
def test_philox_gives_the_published_answers(
    counter: list[int], key: list[int], words: list[int]
) -> None:
    found = philox([torch.tensor([c]) for c in counter], [torch.tensor([k]) for k in key])
    assert [int(word) for word in found] == words


def test_variates_of_some_tokens_are_those_of_all() -> None:
    keys = torch.tensor([[5, 6], [7, 8]])
    steps = torch.tensor([3, 2**32 - 1])
    every = exponentials(keys, steps, torch.arange(1001))
    some = torch.tensor([[0, 1000, 7], [5, 5, 998]])
    torch.testing.assert_close(exponentials(keys, steps, some), every.gather(1, some))
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
    {"temperature": 1.5, "top_k": 20, "top_p": 0.8, "min_p": 0.05},
    {"temperature": 0.7, "top_k": 5000, "top_p": 0.9},
]


@pytest.mark.parametrize("filters", FILTERS, ids=str)
@pytest.mark.parametrize("vocabulary", [50, 700])
def test_distribution_is_the_exact_one(filters: dict[str, Any], vocabulary: int) -> None:
    logits = make_logits(vocabulary)
    tokens = choose(logits.expand(DRAWS, -1), parameters(DRAWS, **filters))
    counts = np.bincount(tokens.numpy(), minlength=vocabulary)
    assert chi_square_passes(counts, probabilities(logits.numpy(), **filters))


@pytest.mark.parametrize(
    "sampler",
    [
        Sampler.multinomial(0.8),
        Sampler.top_k(1.2, 10),
        Sampler.top_p(0.9, 0.7),
        Sampler.top_k_top_p(1.5, 12, 0.9),
        Sampler.min_p(1.1, 0.07),
    ],
    ids=str,
)
def test_the_python_sdk_samples_from_the_same_distribution(sampler: Sampler) -> None:
    logits = make_logits(60, seed=3)
    expected = probabilities(
        logits.numpy(), sampler.temperature, sampler.k or 0, sampler.p, sampler.minimum
    )
    chances, order = logits.softmax(0).sort(descending=True)
    generator = random.Random(5)
    guest = [sampler.choose(order.tolist(), chances.tolist(), generator) for _ in range(DRAWS // 4)]
    assert chi_square_passes(np.bincount(guest, minlength=60), expected)
    tokens = choose(
        logits.expand(DRAWS, -1),
        parameters(DRAWS, sampler.temperature, sampler.k or 0, sampler.p, sampler.minimum),
    )
    assert chi_square_passes(np.bincount(tokens.numpy(), minlength=60), expected)


def test_seeds_and_steps_give_independent_draws() -> None:
    """Every pair of neighbouring steps, and of neighbouring seeds, is as likely as chance has it."""
    logits = torch.zeros(DRAWS, 8)
    tokens = choose(logits, parameters(DRAWS)).view(-1, 2)
    pairs = np.bincount((tokens[:, 0] * 8 + tokens[:, 1]).numpy(), minlength=64)
    assert chi_square_passes(pairs, np.full(64, 1 / 64))
    seeds = parameters(DRAWS)
    seeds = Parameters(
        seeds.temperature,
        seeds.top_k,
        seeds.top_p,
        seeds.min_p,
        torch.stack([torch.arange(DRAWS), torch.zeros(DRAWS, dtype=torch.int64)], 1),
        torch.zeros(DRAWS, dtype=torch.int64),
    )
    tokens = choose(logits, seeds).view(-1, 2)
    pairs = np.bincount((tokens[:, 0] * 8 + tokens[:, 1]).numpy(), minlength=64)
    assert chi_square_passes(pairs, np.full(64, 1 / 64))


row = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 1e-38, 1e-3, 0.5, 1.0, 2.0, 1e4]),
        "top_k": st.sampled_from([0, 1, 2, 5, 39, 40, 41, 10**6]),
        "top_p": st.sampled_from([0.0, 1e-9, 0.3, 0.9, 1.0]),
        "min_p": st.sampled_from([0.0, 1e-9, 0.2, 1.0]),
        "seed": st.integers(0, 2**64 - 1),
        "first_step": st.integers(0, 2**32 - 1),
    }
)


@given(rows=st.lists(row, min_size=1, max_size=6), data=st.data())
@settings(deadline=None, max_examples=150)
def test_a_row_is_chosen_the_same_whatever_its_neighbours(
    rows: list[dict[str, Any]], data: st.DataObject
) -> None:
    values = st.sampled_from([-np.inf, -30.0, -1.0, 0.0, 0.25, 4.0])
    logits = torch.tensor(
        data.draw(
            st.lists(
                st.lists(values, min_size=40, max_size=40),
                min_size=len(rows),
                max_size=len(rows),
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
        given_filters = {k: v for k, v in filters.items() if k not in ("seed", "first_step")}
        if filters["top_p"] == 0:
            given_filters["temperature"] = 0.0
        exact = probabilities(logits[i].numpy(), **given_filters)
        assert exact[alone[0]] > 0


def test_a_flat_nucleus_wider_than_what_is_sorted_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose_module, "NUCLEUS", 8)
    logits = make_logits(100, scale=0.3)
    tokens = choose(logits.expand(DRAWS, -1), parameters(DRAWS, top_p=0.9))
    counts = np.bincount(tokens.numpy(), minlength=100)
    assert chi_square_passes(counts, probabilities(logits.numpy(), top_p=0.9))


def test_top_k_rows_and_top_p_rows_in_one_batch() -> None:
    logits = make_logits(600, seed=4, scale=0.5)
    kinds: list[dict[str, Any]] = [{"top_k": 3}, {"top_p": 0.95}, {"top_k": 500, "top_p": 0.5}, {}]
    each = DRAWS // 2
    tokens = choose(
        logits.expand(each * len(kinds), -1), join([parameters(each, **k) for k in kinds])
    ).view(len(kinds), each)
    for drawn, kind in zip(tokens, kinds, strict=True):
        counts = np.bincount(drawn.numpy(), minlength=600)
        assert chi_square_passes(counts, probabilities(logits.numpy(), **kind))


def test_rounding_of_the_logits_seldom_changes_a_choice() -> None:
    """Other batch shapes round differently; a draw hangs on single tokens, not on sums over them."""
    logits = make_logits(5000)
    noisy = logits + torch.randn(5000, generator=torch.Generator().manual_seed(9)) * 1e-6
    for filters in ({}, {"top_k": 50}, {"top_p": 0.9}):
        one = choose(logits.expand(2000, -1), parameters(2000, **filters))
        other = choose(noisy.expand(2000, -1), parameters(2000, **filters))
        assert int((one != other).sum()) <= 1
