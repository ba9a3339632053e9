"""Commands that are dropped after a failure leave nothing of an earlier owner to be read.

Control counts slots and embeds as filled when a command is queued. If it then never runs, what lies
there is what the last owner left.
"""

from __future__ import annotations

import pytest
from support.fake_worker import Sampler, Slot
from support.instances import take
from support.scheduler_fixtures import Guest, Server, refused

from pie_control.api import allocate

SECRET = 123456789


@pytest.fixture
def server() -> Server:
    """A server all of whose slots, host slots and embeds have had an owner."""
    server = Server(kv_pages=8, host_pages=4, embeds=20)
    worker = server.worker
    worker.slots = [Slot(SECRET)] * len(worker.slots)
    worker.host = [Slot(SECRET)] * len(worker.host)
    worker.embeds = [(SECRET, 0)] * len(worker.embeds)
    return server


def failing(server: Server, guest: Guest) -> None:
    """A command of the guest is at the worker, and will have failed."""
    server.worker.fail_kinds = {"mask_kv"}
    guest.mask(guest.pages(1), 0)
    assert server.send()


def recover(server: Server, guest: Guest) -> None:
    """The guest learns of it, and begins anew."""
    mark = guest.sync()
    server.deliver()
    server.drain()
    with refused("internal"):
        take(guest.instance, mark)
    server.worker.fail_kinds = set()


def slots(server: Server, guest: Guest, pages: list[int], count: int) -> set[int]:
    """Values of the first slots of pages."""
    size = server.facts.page_size
    found = server.service.spaces[guest.instance].pages.find(pages, 9).tolist()
    return {s.value for page in found for s in server.worker.slots[page * size :][:count]}


def embedded(server: Server, guest: Guest, embeds: list[int]) -> set[int]:
    """Values of embeds."""
    found = server.service.spaces[guest.instance].embeds.find(embeds, 9).tolist()
    return {server.worker.embeds[row][0] for row in found}


def test_a_dropped_forward_and_its_inputs(server: Server) -> None:
    guest = Guest(server)
    page, embeds, outs = guest.pages(1), guest.embeds(2), guest.embeds(2)
    failing(server, guest)
    guest.embed([1, 2], 0, embeds)
    guest.forward([], embeds, page, outs)
    recover(server, guest)
    future = guest.dist(outs[0])
    server.drain()
    guest.take(future)
    assert slots(server, guest, page, 2) == {0}
    assert embedded(server, guest, [*embeds, *outs]) == {0}


def test_another_queue_that_waited_for_what_comes_to_nothing(server: Server) -> None:
    guest = Guest(server)
    second = Guest(server, guest.instance)
    embed, out = guest.embeds(1), guest.embeds(1)
    failing(server, guest)
    guest.embed([1], 0, embed)
    second.forward([], embed, [], out)
    recover(server, guest)
    assert SECRET not in embedded(server, guest, embed)
    assert SECRET not in embedded(server, guest, out)


@pytest.mark.parametrize("late", [False, True])
def test_what_another_queue_is_about_to_read_is_not_cleared(server: Server, late: bool) -> None:
    guest = Guest(server)
    second, plain = Guest(server, guest.instance), Guest(server)
    for each, embeds in ((second, mine := guest.embeds(2)), (plain, theirs := plain.embeds(2))):
        each.embed([7], 0, [embeds[0], 1])
    server.drain()
    failing(server, guest)
    server.worker.fail_kinds = set()
    if late:
        server.deliver()  # the queue has failed by now
    second.forward([], [mine[0], 1], [], [mine[0] + 1, 1])
    guest.embed([9], 0, [mine[0], 1])  # comes to nothing, and after the forward in any case
    plain.forward([], [theirs[0], 1], [], [theirs[0] + 1, 1])
    future, same = second.dist(mine[0] + 1), plain.dist(theirs[0] + 1)
    mark = guest.sync()
    if not late:
        server.deliver()
    server.drain()
    assert second.take(future) == plain.take(same)
    with refused("internal|failed-dependency"):
        take(guest.instance, mark)
    assert SECRET not in embedded(server, guest, mine)


def test_what_is_refused_while_the_queue_has_failed(server: Server) -> None:
    guest = Guest(server)
    embed = guest.embeds(1)
    failing(server, guest)
    server.deliver()
    guest.embed([1], 0, embed)
    mark = guest.sync()
    server.drain()
    with refused("internal|failed-dependency"):
        take(guest.instance, mark)
    guest.dist(embed[0])
    server.drain()
    assert embedded(server, guest, embed) == {0}


def test_dropped_copies_and_swaps(server: Server) -> None:
    guest = Guest(server)
    page, other = guest.filled(3), guest.pages(1)
    server.drain()
    failing(server, guest)
    guest.copy(page[0], 0, other[0], 0, 2)
    guest.swap_out(page)
    recover(server, guest)
    guest.swap_in(page)
    server.drain()
    assert slots(server, guest, other, 2) == {0}
    assert SECRET not in slots(server, guest, page, 3)
    server.drain()
    failing(server, guest)
    guest.swap_out(other)
    guest.swap_in(other)
    recover(server, guest)
    guest.mask(other, 0)
    server.drain()
    assert SECRET not in slots(server, guest, other, 8)


def test_others_are_not_touched(server: Server) -> None:
    guest, other = Guest(server), Guest(server)
    embeds, theirs = guest.embeds(2), other.embeds(2)
    failing(server, guest)
    guest.embed([1, 2], 0, embeds)
    allocate.dealloc_emb(*guest.at, embeds)
    server.deliver()  # drops the command, so the embeds are free
    more = other.embeds(2)
    other.embed([7, 8], 0, more)
    other.embed([7, 8], 0, theirs)
    future, again = other.dist(more[0]), other.dist(theirs[0])
    server.drain()
    assert other.take(future) == other.take(again)
    assert server.scheduler.stats()["plans_in_flight"] == 0


def test_samplers_that_were_to_be_made_are_made(server: Server) -> None:
    """Nobody samples with the parameters, or embeds the token, of a slot's last owner."""
    for slot in range(server.facts.samplers):
        server.worker.samplers[slot] = Sampler(("another's",), True, ((SECRET, True),), SECRET % 7)
    guest, other = Guest(server), Guest(server)
    embed, out = guest.embeds(1), guest.embeds(1)
    theirs = other.embeds(1)
    for maker in (guest, other):
        maker.embed([1], 0, embed if maker is guest else theirs)
    server.drain()
    failing(server, guest)
    sampler = guest.sampler('{"seed": 1}')  # dropped
    guest.sample(embed[0], sampler)
    server.deliver()
    late = guest.sampler('{"seed": 2}')  # refused at once
    guest.sample(embed[0], late)
    guest.sync()
    server.drain()
    server.worker.fail_kinds = set()
    for handle in (sampler, late):
        guest.embed_sampled(handle, 0, out[0])  # nothing was sampled
        mark = guest.sync()
        server.drain()
        with refused("failed-dependency"):
            take(guest.instance, mark)
    for handle, parameters in ((sampler, '{"seed": 1}'), (late, '{"seed": 2}')):
        again = other.sampler(parameters)
        other.sample(theirs[0], again)
        same = other.sample(theirs[0], again)
        mine = guest.sample(embed[0], handle)
        server.drain()
        assert guest.take_sample(mine) == other.take_sample(same)  # the second one of each


def test_a_dropped_sample_leaves_no_older_token(server: Server) -> None:
    guest = Guest(server)
    second = Guest(server, guest.instance)
    embed, out = guest.embeds(1), guest.embeds(1)
    guest.embed([1], 0, embed)
    sampler = guest.sampler()
    guest.sample(embed[0], sampler)
    server.drain()
    failing(server, guest)
    guest.sample(embed[0], sampler)
    server.deliver()
    second.embed_sampled(sampler, 0, out[0])  # not an older one
    mark = second.sync()
    server.drain()
    with refused("failed-dependency"):
        take(guest.instance, mark)
