"""Whatever fails at the worker and in whatever order: every future is answered, nothing is lost."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given
from support.instances import take
from support.rig import runtime
from support.scheduler_fixtures import Guest, Server

from pie_control.api import allocate

CODES = {"internal", "failed-dependency"}
KINDS = ["embed_text", "forward", "next_dist", "copy_kv", "mask_kv"]


def call(guest: Guest, what: int, pages: list[int], embeds: list[int]) -> int | None:
    """One of the calls; a future if it opens one."""
    match what:
        case 0 | 1:
            guest.embed([what], 0, [embeds[0] + what, 1])
        case 2:
            guest.forward(pages, embeds, [], embeds)
        case 3:
            guest.copy(pages[0], 0, pages[0], 4, 4)
        case 4:
            guest.mask(pages, 1)
        case 5:
            return guest.sync()
        case 6:
            allocate.dealloc_emb(*guest.at, guest.embeds(1))
        case _:
            return guest.dist(embeds[0])
    return None


@given(
    reference=st.booleans(),
    steps=st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 12), st.sets(st.sampled_from(KINDS))),
        max_size=50,
    ),
    lost=st.booleans(),
)
def test_every_future_is_answered(
    reference: bool, steps: list[tuple[int, int, set[str]]], lost: bool
) -> None:
    server = Server(reference=reference)
    guests = [Guest(server) for _ in range(2)]
    guests.append(Guest(server, guests[1].instance))  # a second queue of the same instance
    held = []
    for guest in guests:
        pages, embeds = guest.filled(8), guest.embeds(2)
        guest.embed([1, 1], 0, embeds)
        held.append((pages, embeds))
    server.drain()
    futures: list[tuple[Guest, int]] = []
    for who, what, failing in steps:
        if what == 8:
            server.worker.fail_kinds = failing
            if len(server.results) < 2:
                server.send()
        elif what == 9 and server.results:
            server.deliver()
        elif what == 11 and server.results:
            server.deliver_part(1 + who)
        elif what == 10 and futures:
            guest, future = futures.pop(who % len(futures))
            runtime.cancel(guest.instance, future)
        else:
            opened = call(guests[who], what, *held[who])
            if opened is not None:
                futures.append((guests[who], opened))
    if lost:
        server.scheduler.fail_all("the worker is gone")
        while server.results:  # late ones do nothing
            server.deliver()
    else:
        server.drain()
    for guest, future in futures:
        kept = guest.instance.futures.get(future)
        assert kept.ready
        assert kept.error is None or kept.error.code in (CODES | {"worker-lost"} if lost else CODES)
    assert all(guest.instance.queued_commands == 0 for guest in guests)
    assert server.scheduler.stats()["plans_in_flight"] == 0
    assert server.service.embeds.free == server.facts.embeds - 6
    if not lost:  # after a synchronize every queue works again
        server.worker.fail_kinds = set()
        for guest, (_, embeds) in zip(guests, held, strict=True):
            mark = guest.sync()
            guest.embed([1], 0, [embeds[0], 1])
            future = guest.dist(embeds[0])
            server.drain()
            error = guest.instance.futures.get(mark).error
            assert error is None or error.code == "internal"
            assert len(take(guest.instance, future)[0]) == 3


def test_a_future_that_is_given_up_has_reported_nothing(server: Server, guest: Guest) -> None:
    """The failure is the next `synchronize`'s then, though the future has had it already."""
    pages, embeds = guest.filled(8), guest.embeds(1)
    guest.embed([1], 0, embeds)
    server.drain()
    server.worker.fail_kinds = {"forward"}
    for is_cancelled in (True, False):
        guest.forward(pages, embeds, [], embeds)
        future = guest.dist(embeds[0])
        server.drain()
        assert guest.ready(future)
        if is_cancelled:
            runtime.cancel(guest.instance, future)
        mark = guest.sync()
        server.drain()
        assert (guest.instance.futures.get(mark).error is not None) == is_cancelled
