"""Prompts that a sampler's `attend` program observes: which forwards, in parts or not; and what
gives no weights.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from support.instances import take
from support.prompts import Decoder
from support.scheduler_fixtures import Guest, Server, refused, u32

from inferlet import attention
from inferlet.device import Attend
from pie_control.api import allocate, prefix, sample
from pie_py.wire.plan import Forward

FACTS: dict[str, Any] = {"kv_pages": 64, "embeds": 400, "max_batch_tokens": 100, "head_dim": 4}
H2O = attention.h2o(heavy=4, recent=4)


def sampler(guest: Guest, policy: Attend | None = H2O) -> int:
    return guest.sampler("{}" if policy is None else json.dumps({"attend": policy.to_dict()}))


class Forwards:
    """The sequences of forwards that a server sends: inputs, sampler and its steps of each."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def sent(self) -> list[tuple[int, int, int]]:
        found = []
        while (plan := self._server.scheduler.next_plan(1)) is not None:
            for batch in plan.batches:
                if isinstance(batch, Forward):
                    counts = np.diff(batch.input_starts)
                    absent = np.full(len(counts), -1, np.int32)
                    observers = batch.attends if batch.attends.size else absent
                    steps = batch.attend_steps if batch.attend_steps.size else absent
                    rows = zip(counts.tolist(), observers.tolist(), steps.tolist(), strict=True)
                    found += list(rows)
            self._server.scheduler.complete(self._server.worker.run(plan))
        return found


def prompt(guest: Guest, count: int, first: int = 0, pages: list[int] | None = None) -> list[int]:
    """Its pages; the embed of its last token is the first of its embeds."""
    pages = pages or guest.pages(8)
    embeds = guest.embeds(count)
    guest.embed(list(range(count)), first, embeds)
    guest.forward(pages, embeds, pages, [embeds[0], 1])
    return [*pages, embeds[0]]


def test_forwards_between_a_sampler_and_its_first_choice() -> None:
    server = Server(**FACTS)
    guest = Guest(server)
    sent = Forwards(server)
    prompt(guest, 5)
    chooser = sampler(guest)
    *pages, embed = prompt(guest, 6)
    assert sent.sent() == [(5, -1, -1), (6, 0, 0)]
    prompt(guest, 1, 6, pages)
    guest.sample(embed, chooser)
    prompt(guest, 3)
    assert sent.sent() == [(1, 0, 0), (3, -1, -1)]


@pytest.mark.parametrize("policy", [None, attention.sinks(), attention.quest(2)], ids=str)
def test_no_other_sampler_observes(policy: Attend | None) -> None:
    server = Server(**FACTS)
    guest = Guest(server)
    sampler(guest, policy)
    prompt(guest, 6)
    assert Forwards(server).sent() == [(6, -1, -1)]


def test_a_destroyed_sampler_and_another_queue_do_not() -> None:
    server = Server(**FACTS)
    guest = Guest(server)
    other = Guest(server, guest.instance)
    chooser = sampler(guest)
    prompt(other, 4)
    sample.destroy_sampler(guest.instance, other.queue, chooser)
    prompt(guest, 6)
    assert sorted(Forwards(server).sent()) == [(4, -1, -1), (6, -1, -1)]


def test_each_part_of_a_prompt_is_observed() -> None:
    server = Server(prompt_tokens=16, **FACTS)
    decoder = Decoder(server)
    guest = Guest(server)
    sampler(guest)
    prompt(guest, 40)
    sent = Forwards(server)
    decoder.step()
    assert sorted(sent.sent()) == [(1, -1, 0), (15, 0, 0), (25, 0, 0)]  # beside a step; alone


def test_what_an_observed_prompt_leaves_is_plain_text() -> None:
    """It has read all that it may: the prefix cache finds it."""
    server = Server(**FACTS)
    guest = Guest(server)
    assert prefix.match_prefix(*guest.at, "", u32(*range(16))) == ([], 0)
    sampler(guest)
    first, *_ = prompt(guest, 16)
    prefix.insert_prefix(*guest.at, [first, 2])
    server.drain()
    found, waits = prefix.match_prefix(*guest.at, "", u32(*range(16), 7))
    assert (sum(found[1::2]), waits) == (2, 0)


def test_what_gives_no_weights_is_unsupported() -> None:
    server = Server(**FACTS)
    guest = Guest(server)
    chooser = sampler(guest)
    pages, embeds = guest.pages(2), guest.embeds(3)
    guest.embed([1, 2, 3], 0, embeds)
    apart = guest.embeds(2)
    guest.embed([4], 9, [apart[0], 1])
    guest.embed([5], 8, [apart[0] + 1, 1])
    mask = [2, 0, 3] * 3
    for inputs, output_pages, rows in ((embeds, pages, mask), (embeds, [], []), (apart, pages, [])):
        with refused("unsupported"):
            guest.forward(pages, inputs, output_pages, [], rows)
    assert guest.used(pages) == [0, 0]
    sample.destroy_sampler(*guest.at, chooser)
    guest.forward(pages, embeds, pages, [], mask)
    future = guest.sync()
    server.drain()
    take(guest.instance, future)
    assert guest.used(pages) == [3, 0]
    allocate.dealloc_emb(*guest.at, apart)


def test_what_a_prompt_keeps_counts_among_the_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of weights, or queries, of each layer, as long as the longest context."""
    monkeypatch.setattr("pie_control.api.sample.NODE_BYTES", 0)
    server = Server(**FACTS)
    guest = Guest(server)
    longest, layers, heads, kv_heads = 64 * 8, 2, 3, 1
    before = server.service.samplers.free_bytes
    sampler(guest, attention.tova(3))
    kept = layers * (32 * longest + 4 * heads * 4)
    assert before - server.service.samplers.free_bytes == kept
    sampler(guest)
    each = 4 * heads + kv_heads  # sums, and what is kept
    kept += layers * (32 * each * longest + 4 * heads * longest) + 4
    assert before - server.service.samplers.free_bytes == kept
    sampler(guest, attention.h2o(heavy=4, recent=4, together=True))
    kept += layers * (32 * (4 + 1) * longest + 4 * heads * longest) + 4
    assert before - server.service.samplers.free_bytes == kept
