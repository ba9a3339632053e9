"""Commands through queues, batches, plans and back, one situation at a time."""

from __future__ import annotations

import math

import pytest
from support.instances import take
from support.rig import runtime
from support.scheduler_fixtures import Guest, Server, refused

from pie_control.api import forward
from pie_control.errors import Shortage
from pie_control.instances.instance import InstanceState
from pie_control.scheduler.commands import forward as forwards
from pie_py.config.limits import Quota
from pie_py.wire.plan import NextDist


def test_queues_are_joined_across_instances() -> None:
    server = Server(max_batch_commands=64)
    guests = [Guest(server) for _ in range(10)]
    futures = []
    for guest in guests:
        pages, embed = guest.pages(1), guest.embeds(1)
        guest.embed([7], 0, embed)
        guest.forward(pages, embed, pages, embed)
        futures.append(guest.dist(embed[0]))
    assert server.step()
    assert server.worker.sizes == [
        ("embed_text", 1, 10),
        ("forward", 10, 10),
        ("next_dist", 10, 10),
    ]
    answers = [g.take(f) for g, f in zip(guests, futures, strict=True)]
    assert all(answer == answers[0] for answer in answers)


def test_commands_of_a_queue_are_joined_unless_one_depends_on_another(
    server: Server, guest: Guest
) -> None:
    embeds, pages = guest.embeds(4), guest.pages(2)
    first = embeds[0]
    guest.embed([1], 0, [first, 1])
    guest.embed([2], 1, [first + 1, 1])
    guest.embed([3], 2, [first, 1])  # overwrites: a batch of its own
    guest.forward([], [first, 1], [pages[0], 1])
    guest.forward([], [first + 1, 1], [pages[0] + 1, 1])
    guest.forward([pages[0], 1], [first + 1, 1], [], [first + 2, 1])  # reads what was written
    server.drain()
    assert server.worker.sizes == [
        ("embed_text", 1, 2),
        ("embed_text", 1, 1),
        ("forward", 2, 2),
        ("forward", 1, 1),
    ]


def test_priority_then_age_within_a_batch_and_the_tail_is_cut() -> None:
    server = Server(max_batch_commands=2)
    guests = [Guest(server) for _ in range(4)]
    runtime.set_queue_priority(guests[3].instance, guests[3].queue, 5)
    futures = []
    for guest in guests:
        embed = guest.embeds(1)
        guest.embed([1], 0, embed)
        server.drain()
        futures.append(embed[0])
    futures = [guest.dist(embed) for guest, embed in zip(guests, futures, strict=True)]
    plan = server.scheduler.next_plan()
    assert plan is not None
    embeds = [batch.embeds.tolist() for batch in plan.batches if isinstance(batch, NextDist)]
    assert embeds == [[3, 0], [1, 2]]
    assert len(plan.batches) == 2


def test_a_wide_distribution_does_not_widen_all_others() -> None:
    server = Server(vocab_size=128_000, max_batch_commands=512, embeds=512)
    guest = Guest(server)
    embeds = guest.embeds(300)
    for start in range(0, 300, 20):
        guest.embed([1] * 20, 0, [embeds[0] + start, 20])
    server.drain()
    server.worker.sizes.clear()
    for i in range(300):
        guest.dist(embeds[0] + i, k=10**6 if i == 0 else 256)
    server.drain()
    assert [rows for _, _, rows in server.worker.sizes] == [32, 268]


def test_long_embeds_are_split_to_the_batch_limit() -> None:
    server = Server(embeds=200)
    guest = Guest(server)
    guest.embed([1] * 60, 0, guest.embeds(60))
    assert guest.instance.queued_commands == 3
    server.drain()
    assert [rows for _, _, rows in server.worker.sizes] == [24, 24, 12]
    assert guest.instance.queued_commands == 0


def test_cancelled_marks_and_distributions_leave_nothing_behind(
    server: Server, guest: Guest
) -> None:
    embed = guest.embeds(1)
    guest.embed([1], 0, embed)
    for _ in range(10):
        runtime.cancel(guest.instance, guest.sync())
        runtime.cancel(guest.instance, guest.dist(embed[0]))
    assert server.scheduler.stats()["queued"] == 1
    assert guest.instance.queued_commands == 1
    kept = guest.dist(embed[0])
    server.send()
    sent = guest.sync()
    runtime.cancel(guest.instance, sent)
    runtime.cancel(guest.instance, kept)
    server.deliver()
    assert guest.instance.queued_commands == 0
    first = guest.dist(embed[0])
    guest.embed([2], 0, embed)
    runtime.cancel(guest.instance, first)  # the queue's first: the next one takes its place
    server.drain()
    assert server.worker.sizes[-1] == ("embed_text", 1, 1)


def test_a_failed_batch_fails_what_depends_on_it_and_no_more(server: Server) -> None:
    hit, spared = Guest(server), Guest(server)
    embed, other = hit.embeds(2), spared.embeds(1)
    hit.embed([1, 2], 0, embed)
    spared.embed([1], 0, other)
    server.drain()
    server.worker.fail_kinds = {"forward"}
    hit.forward([], [embed[0], 1], [], [embed[0] + 1, 1])
    dependant = hit.dist(embed[0] + 1)
    mark = hit.sync()
    after = hit.dist(embed[0])
    fine = spared.dist(other[0])
    server.drain()
    with refused("failed-dependency"):
        take(hit.instance, dependant)
    take(hit.instance, mark)  # the distribution has reported it
    assert len(hit.take(after)) == 3
    assert len(spared.take(fine)) == 3

    hit.forward([], [embed[0], 1], [], [embed[0] + 1, 1])
    mark = hit.sync()
    server.step()
    with refused("internal"):
        take(hit.instance, mark)
    assert hit.instance.queued_commands == 0


def test_commands_after_a_failure_fail_until_a_synchronize(server: Server, guest: Guest) -> None:
    embed = guest.embeds(2)
    server.worker.fail_kinds = {"embed_text"}
    guest.embed([1, 2], 0, embed)
    server.send()
    guest.embed([1, 2], 0, embed)
    guest.forward([], embed, [], embed)
    waiting = guest.dist(embed[0])
    server.deliver()  # what was queued meanwhile fails without being sent
    assert guest.instance.queued_commands == 0
    assert not server.send()
    with refused("failed-dependency"):
        take(guest.instance, waiting)
    late = guest.dist(embed[0])
    with refused("failed-dependency"):
        take(guest.instance, late)
    server.worker.fail_kinds = set()
    take(guest.instance, guest.sync())
    guest.embed([1, 2], 0, embed)
    good = guest.dist(embed[0])
    server.drain()
    assert len(guest.take(good)) == 3


@pytest.mark.parametrize("what", ["pages", "embeds"])
def test_first_come_first_served(what: str) -> None:
    server = Server(kv_pages=20, embeds=20)
    old, middle, young = Guest(server), Guest(server), Guest(server)
    for guest in (old, middle, young):
        getattr(guest, what)(6)
    getattr(middle, what)(7)  # the youngest makes way
    assert young.instance.ended is not None
    assert middle.instance.ended is None
    with refused("out-of-resources"):
        getattr(middle, what)(2)
    assert old.instance.ended is None
    late = Guest(server)
    getattr(late, what)(1)
    with refused("out-of-resources"):
        getattr(middle, what)(3)  # not enough, whoever makes way
    assert late.instance.ended is None
    with refused("out-of-resources"):
        getattr(old, what)(21)  # more than there is: nobody is ended for it
    assert middle.instance.ended is None
    getattr(old, what)(14)
    assert middle.instance.ended is not None


@pytest.mark.parametrize("what", ["pages", "embeds"])
@pytest.mark.parametrize("user", ["ann", "ben"])
def test_what_an_ended_instance_has_not_given_back_yet_is_free(what: str, user: str) -> None:
    """It is given back by and by, in turns of the executor; here is none."""
    server = Server(kv_pages=20, embeds=20)
    old, young = Guest(server), Guest(server, server.launch(user))
    getattr(old, what)(12)
    getattr(young, what)(8)
    server.registry.condemn(old.instance, "test")
    assert server.registry.users.alive("ann") > 0
    getattr(young, what)(12)
    assert young.instance.ended is None


def test_an_ended_instance_makes_room_for_a_new_one() -> None:
    server = Server(quota=Quota(share=0.002, launches=math.inf))
    one, _ = server.launch(), server.launch()
    with pytest.raises(Shortage):
        server.launch()
    server.registry.condemn(one, "test")
    assert server.registry.users.alive("ann") == 2
    server.launch()
    assert server.registry.users.alive("ann") == 2


def test_masks_of_too_many_cells() -> None:
    """A mask of few numbers may stand for a large matrix: it is refused, or waits for another
    batch.
    """
    server = Server(kv_pages=9, max_batch_tokens=256, embeds=512, max_batch_commands=8)
    guest, other = Guest(server), Guest(server)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forward, "MAX_CELLS", 40 * 60)
        patch.setattr(forwards, "MAX_CELLS", 40 * 60)
        pages, embeds = guest.filled(16), guest.embeds(40)
        guest.embed(list(range(40)), 0, embeds)
        server.drain()
        mask = [2, 0, 56] * 40
        for _ in range(2):
            guest.forward(pages, embeds, mask=mask)
        more = [*pages, pages[0], 1]
        with refused("limit-exceeded"):
            guest.forward(more, embeds, mask=[2, 0, 64] * 40)
        with refused("limit-exceeded"):
            guest.observe(more, embeds)
        theirs = other.embeds(1)
        other.embed([1], 0, theirs)
        server.drain()
        server.worker.sizes.clear()
        for _ in range(2):
            guest.forward(pages, embeds, mask=mask)
            guest.forward(more, embeds)
        server.drain()
        assert [n for kind, n, _ in server.worker.sizes if kind == "forward"] == [2, 2]


def test_forwards_over_very_many_pages_are_batches_of_their_own() -> None:
    """A page may be in a list many times; what the worker lays out a slot would have no bound."""
    server = Server(max_batch_commands=8)
    guest = Guest(server)
    pages, embed = guest.filled(16), guest.embeds(1)
    guest.embed([1], 0, embed)
    server.drain()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forwards, "MAX_CONTEXT_PAGES", 5)
        server.worker.sizes.clear()
        for times in (1, 1, 3, 1, 1):
            guest.forward(pages * times, embed)
        server.drain()
    assert [n for kind, n, _ in server.worker.sizes if kind == "forward"] == [2, 1, 2]


def test_instances_of_a_user_above_their_part_end_before_ones_own() -> None:
    server = Server(embeds=4)
    oldest, young = Guest(server, user="ann"), Guest(server, user="ann")
    bob = Guest(server, user="bob")
    bob.embeds(3)
    young.embeds(1)
    oldest.embeds(1)
    assert bob.instance.state is InstanceState.KILLED
    assert young.instance.state is InstanceState.RUNNING
