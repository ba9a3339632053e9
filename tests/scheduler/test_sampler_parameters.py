"""Texts of samplers that were read before."""

from __future__ import annotations

import json

import pytest
from support.scheduler_fixtures import Guest, Server

from pie_control.api.sampler_parameters import read_parameters
from pie_control.errors import ApiError
from pie_py.wire.plan import SetSampler


def test_a_text_read_again_stands_for_the_same_in_each_vocabulary() -> None:
    text = json.dumps({"temperature": 0.5, "allowed_tokens": [7], "top_k": 3})
    first, again = read_parameters(text, 10), read_parameters(text, 10)
    assert first == again
    for _ in range(2):
        with pytest.raises(ApiError, match="token 7 is outside the vocabulary"):
            read_parameters(text, 7)
    assert read_parameters(text, 10) == first


def test_a_wrong_text_is_refused_each_time() -> None:
    for _ in range(2):
        with pytest.raises(ApiError, match="temperature"):
            read_parameters('{"temperature": -1}', 10)


def test_samplers_of_one_text_without_a_seed_have_seeds_of_their_own() -> None:
    server = Server()
    guest = Guest(server)
    for _ in range(2):
        guest.sampler('{"temperature": 0.7}')
    plan = server.scheduler.next_plan(1)
    assert plan is not None
    seeds = [
        tuple(seed)
        for batch in plan.batches
        if isinstance(batch, SetSampler)
        for seed in batch.seeds.tolist()
    ]
    assert len(set(seeds)) == 2
