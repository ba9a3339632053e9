"""Pages out of the pool and back: contexts that come and go, and one situation at a time."""

from __future__ import annotations

import json

import pytest
from support.fake_worker import Slot, distribution, embedded, run_forward
from support.instances import take
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
    stats = json.loads(allocate.pool_stats(*guest.at))
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
    allocate.export_kvpage(*guest.at, [pages[0], 1], "x", False)
    with refused("busy"):
        guest.swap_out(pages)
    first, _ = allocate.import_kvpage(*other.at, "x")
    guest.discard(pages)  # gives up what is its own
    allocate.release_export(*guest.at, "x")
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

    def held() -> list[Slot]:
        found = server.service.spaces[guest.instance].pages.find(pages, 600).tolist()
        return [slot for page in found for slot in server.worker.slots[page * PAGE :][:PAGE]]

    server.drain()
    before = held()
    guest.swap_out(pages)
    server.drain()
    server.worker.slots = [Slot(0)] * len(server.worker.slots)
    guest.swap_in(pages)
    server.drain()
    assert held() == before
    moved = [(kind, rows) for kind, _, rows in server.worker.sizes if kind.startswith("swap")]
    assert moved == [(kind, n) for kind in ("swap_out", "swap_in") for n in (256, 256, 8)]
    done = guest.sync()
    take(guest.instance, done)


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
