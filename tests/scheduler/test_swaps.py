"""Pages out of the pool and back: contexts that come and go, and one situation at a time."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from support.fake_worker import Slot, distribution, embedded, run_forward
from support.rig import offload, runtime
from support.scheduler_fixtures import Guest, Server, refused

from pie_control.api import allocate
from pie_py.wire.plan import SwapIn

PAGE = 8
SLOW = {  # a quarter of a step brings two pages back
    "page_bytes": 1 << 20,
    "page_size": PAGE,
    "swap_out": {"seconds": 0.0, "bytes_per_second": 1 << 29},
    "swap_in": {"seconds": 0.0, "bytes_per_second": 1 << 29},  # 2 ms a page
    "prefill": {"tokens": [16, 64], "seconds": [0.016, 0.064], "fit": [0.0, 0.001, 0.0]},
    "decode": {"sequences": [1, 8], "seconds": [0.016, 0.016]},
}


@dataclass(eq=False)
class Text:
    """A guest with one text in one page after the other, and the contract's idea of it."""

    guest: Guest
    pages: list[int]
    inputs: list[int]
    slots: list[Slot] = field(default_factory=list)
    away: bool = False
    asked: list[tuple[int, list[int]]] = field(default_factory=list)  # futures, what they will say

    def grow(self, tokens: list[int]) -> None:
        first = len(self.slots)
        embeds = [self.inputs[0], len(tokens)]
        self.guest.embed(tokens, first, embeds)
        self.guest.forward(self.pages, embeds, self.pages, [self.inputs[0], 1])
        values = [(embedded(token), first + i) for i, token in enumerate(tokens)]
        hidden = run_forward(values, self.slots, [])
        self.slots += [Slot(h, first + i) for i, h in enumerate(hidden)]
        vocab = self.guest.server.facts.vocab_size
        self.asked.append((self.guest.dist(self.inputs[0]), distribution(hidden[-1], 3, vocab)))

    def check(self) -> None:
        for future, wanted in self.asked:
            assert self.guest.take(future) == wanted
        self.asked.clear()


STEPS = st.tuples(
    st.sampled_from(["grow"] * 4 + ["turn"] * 4 + ["send", "settle", "discard", "start", "kill"]),
    st.integers(0, 5),
    st.integers(1, 3),
)


@settings(max_examples=40)
@given(st.lists(STEPS, min_size=20, max_size=60), st.booleans(), st.booleans())
def test_texts_are_the_same_however_often_their_pages_move(
    steps: list[tuple[str, int, int]], reference: bool, paced: bool
) -> None:
    costs = SLOW if paced else None
    server = Server(reference=reference, kv_pages=4, host_pages=8, kv_costs=costs)
    pools = server.service
    texts: list[Text] = []
    for what, which, count in [("start", 0, 1), ("start", 0, 1), *steps]:
        if what == "start":
            if pools.pages.free >= 2 and len(texts) < 5:
                guest = Guest(server)
                texts.append(Text(guest, guest.pages(2), guest.embeds(3)))
        elif texts:
            text = texts[which % len(texts)]
            if what == "grow" and not text.away and len(text.slots) + count <= 2 * PAGE:
                text.grow(list(range(which, which + count)))
            elif what == "turn" and text.away and pools.pages.free >= 2:
                text.guest.swap_in(text.pages)
                text.away = False
            elif what == "turn" and not text.away and pools.host_pages.free >= 2:
                text.guest.swap_out(text.pages)
                text.away = True
            elif what == "discard":
                text.guest.discard(text.pages)
                text.away = True
                text.slots.clear()
            elif what == "kill":
                server.registry.kill(text.guest.instance, "test")
                texts.remove(text)
        if what == "send" and len(server.results) < 2:
            server.send()
        elif what == "settle":
            server.drain()
            for each in texts:
                each.check()
        for each in texts:
            assert sum(each.guest.used(each.pages)) == len(each.slots)
    server.drain()
    for each in texts:
        each.check()
    here = sum(not t.away for t in texts)
    assert server.service.pages.free == 4 - 2 * here
    swapped = sum(-(-len(t.slots) // PAGE) for t in texts if t.away)
    assert server.service.host_pages.free == 8 - swapped
    server.registry.end_all("the test is over")
    assert server.service.pages.free == 4
    assert server.service.host_pages.free == 8


def pages_back(server: Server) -> int:
    """Sends and runs a plan; returns how many pages come back in it."""
    plan = server.scheduler.next_plan()
    assert plan is not None
    server.results.append(server.worker.run(plan))
    server.deliver()
    return sum(len(batch.pages) for batch in plan.batches if isinstance(batch, SwapIn))


def test_pages_come_back_beside_others_within_the_budget_of_steps() -> None:
    server = Server(kv_costs=SLOW, max_batch_tokens=64)
    guest, other = Guest(server), Guest(server)
    pages, theirs = guest.filled(5 * PAGE), other.filled(1)
    guest.swap_out(pages)
    server.drain()
    guest.swap_in(pages)
    embed, out = guest.embeds(1), other.embeds(1)
    guest.embed([7], 5 * PAGE, embed)
    guest.forward(pages, embed, [], embed)
    dist = guest.dist(embed[0])
    moved = []
    while not guest.ready(dist):
        other.embed([1], 1, out)
        other.forward(theirs, out)
        moved.append(pages_back(server))
    assert moved == [2, 2, 1], "and what waits for them runs in the step of the last"
    guest.swap_out(pages)
    server.drain()
    guest.swap_in(pages)
    assert pages_back(server) == 5, "nobody else runs"
    values = [(embedded(token), token) for token in range(5 * PAGE)]
    slots = [Slot(h, i) for i, h in enumerate(run_forward(values, [], []))]
    (hidden,) = run_forward([(embedded(7), 5 * PAGE)], slots, [])
    assert guest.take(dist) == distribution(hidden, 3, server.facts.vocab_size)


def test_pages_come_back_whole_if_what_they_were_to_come_beside_cannot_run() -> None:
    server = Server(kv_costs=SLOW, max_batch_tokens=64)
    guest = Guest(server)
    second = runtime.create_queue(guest.instance, "symbolic")
    pages = guest.filled(5 * PAGE)
    guest.swap_out(pages)
    server.drain()
    guest.swap_in(pages)
    embed = guest.embeds(1)
    first, guest.queue = guest.queue, second
    guest.embed([7], 5 * PAGE, embed)
    guest.forward(pages, embed)  # of another queue, held back until they are there
    assert pages_back(server) == 5
    server.drain()
    assert guest.instance.queued_commands == 0
    guest.queue = first


def test_pages_go_to_others_only_after_the_swap_was_sent() -> None:
    server = Server(kv_pages=2)
    guest, other = Guest(server), Guest(server)
    pages = guest.filled(9)
    guest.swap_out(pages)
    assert server.service.pages.free == 0
    with refused("out-of-resources"):
        other.pages(1)
    server.drain()
    assert server.service.pages.free == 2
    theirs = other.filled(16)
    server.drain()
    assert other.used(theirs) == [8, 8]
    guest.swap_in(pages)  # an older instance: the younger one makes way
    assert other.instance.ended is not None
    assert guest.used(pages) == [8, 1]


def test_what_is_away_counts_no_page_of_the_instance(server: Server) -> None:
    guest = Guest(server, kv_pages=3, host_pages=2)
    pages = guest.filled(17)
    with refused("limit-exceeded"):
        guest.pages(1)
    with refused("limit-exceeded"):
        guest.swap_out(pages)
    guest.swap_out([pages[0], 2])
    server.drain()
    stats = json.loads(allocate.pool_stats(guest.instance, guest.queue))
    assert (stats["kv_pages_mine"], stats["host_pages_mine"]) == (1, 2)
    assert stats["host_pages_free"] == stats["host_pages"] - 2
    guest.pages(2)
    with refused("limit-exceeded"):
        guest.swap_in([pages[0], 1])
    assert guest.used(pages) == [8, 8, 1]


def test_pages_that_others_hold_stay(server: Server) -> None:
    guest, other = Guest(server), Guest(server)
    pages = guest.filled(9)
    server.drain()
    allocate.export_kvpage(guest.instance, guest.queue, [pages[0], 1], "x", False)
    with refused("busy"):
        guest.swap_out(pages)
    first, _ = allocate.import_kvpage(other.instance, other.queue, "x")
    guest.discard(pages)  # gives up what is its own
    allocate.release_export(guest.instance, guest.queue, "x")
    assert other.used([first, 1]) == [8]
    other.swap_out([first, 1])
    other.swap_in([first, 1])
    with refused("immutable"):
        other.mask([first, 1], 1)
    server.drain()
    assert server.service.pages.free == server.facts.kv_pages - 1


def test_many_pages_move_in_several_commands() -> None:
    server = Server(
        kv_pages=600,
        host_pages=600,
        embeds=5000,
        max_batch_tokens=5000,
        max_position=5000,
        vocab_size=5000,
    )
    guest = Guest(server)
    pages = guest.filled(8 * 520)
    guest.swap_out(pages)
    server.drain()
    guest.swap_in(pages)
    server.drain()
    moved = [(kind, rows) for kind, _, rows in server.worker.sizes if kind.startswith("swap")]
    assert moved == [(kind, n) for kind in ("swap_out", "swap_in") for n in (256, 256, 8)]
    done = guest.sync()
    runtime.take(guest.instance, done)


def test_costs_that_were_not_measured() -> None:
    with refused("unsupported"):
        offload.kv_costs(Guest(Server()).instance, "symbolic")
    costs = {
        "page_bytes": 1,
        "page_size": PAGE,
        "swap_out": None,
        "swap_in": None,
        "prefill": {"tokens": [16], "seconds": [0.1], "fit": [0.0, 0.006, 0.0]},
        "decode": {"sequences": [1], "seconds": [0.1]},
    }
    guest = Guest(Server(kv_costs=costs))
    assert json.loads(offload.kv_costs(guest.instance, "symbolic")) == costs
    with refused("unknown-model"):
        offload.kv_costs(guest.instance, "none")


@pytest.mark.parametrize("call", ["swap_out", "swap_in", "discard"])
def test_a_lost_worker_or_a_kill_leaves_nothing_behind(
    server: Server, guest: Guest, call: str
) -> None:
    pages = guest.filled(12)
    if call == "swap_in":
        guest.swap_out(pages)
        server.drain()
    getattr(guest, call)(pages)
    server.registry.kill(guest.instance, "test")
    assert server.service.pages.free == server.facts.kv_pages
    assert server.service.host_pages.free == server.facts.host_pages
