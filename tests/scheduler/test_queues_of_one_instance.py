"""Queues of one instance: batched together, in the order of the calls where they touch the same."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from scheduler.test_runs import SAMPLERS, Runner
from support.fake_worker import attend, distribution, embedded, shown
from support.rig import runtime
from support.scheduler_fixtures import Guest, Server, refused

from pie_control.api import allocate, sample
from pie_control.api import run as calls
from pie_control.scheduler.backlog import CallOrder

CONTEXTS = 8
TOKENS = 24
GREEDY = SAMPLERS[0]


def large_server(**facts: Any) -> Server:
    return Server(
        **{
            "kv_pages": 256,
            "embeds": 256,
            "samplers": 16,
            "max_batch_tokens": 256,
            "max_batch_commands": 64,
            **facts,
        }
    )


class Text:
    """One context: a queue, its pages, and an embed that goes through the model in place."""

    def __init__(self, guest: Guest, shared: list[int], length: int, fork_of: int | None) -> None:
        self.guest = guest
        self.length = length
        self.pages = guest.pages(8)
        self.shared = shared  # full pages of a beginning that forks read together
        self.embed = guest.embeds(1)
        if fork_of is not None:
            guest.copy(fork_of, 0, self.pages[0], 0, length % 8)

    def queue_step(self, token: int) -> None:
        """Queues an embed and its forward: what a context does for every token."""
        self.guest.embed([token], self.length, self.embed)
        pages = [*self.shared, *self.pages]
        self.guest.forward(pages, self.embed, self.pages, self.embed)
        self.length += 1


def own_contexts(server: Server, count: int) -> list[Text]:
    """Contexts of one instance that share nothing."""
    first = Guest(server)
    guests = [first, *(Guest(server, first.instance) for _ in range(count - 1))]
    return [Text(guest, [], 0, None) for guest in guests]


def forks(server: Server, count: int) -> list[Text]:
    """Contexts of one instance that go on from one text of a full page and a part."""
    parent = Guest(server)
    pages = parent.filled(12)
    guests = [Guest(server, parent.instance) for _ in range(count)]
    return [Text(guest, [pages[0], 1], 12, pages[0] + 1) for guest in guests]


def forwards_and_plans(server: Server) -> tuple[int, int]:
    stats = server.scheduler.stats()
    return stats["commands"]["forward"], stats["plans"]


@pytest.mark.parametrize("make", [own_contexts, forks])
@pytest.mark.parametrize("in_flight", [1, 2])
def test_contexts_of_one_instance_are_batched_together(make: Any, in_flight: int) -> None:
    server = large_server()
    texts = make(server, CONTEXTS)
    server.drain()
    forwards, plans = forwards_and_plans(server)
    futures: list[tuple[Guest, int]] = []
    for token in range(TOKENS):
        for text in texts:  # context by context, as programs do
            text.queue_step(token)
            futures.append((text.guest, text.guest.dist(text.embed[0])))
        server.send()
        if len(server.results) == in_flight:
            server.deliver()
    server.drain()
    assert all(len(guest.take(future)) == 3 for guest, future in futures)
    run, sent = (
        after - before
        for after, before in zip(forwards_and_plans(server), (forwards, plans), strict=True)
    )
    assert run == CONTEXTS * TOKENS
    assert sent <= run / CONTEXTS * 1.15


@pytest.mark.parametrize("in_flight", [1, 2])
@pytest.mark.parametrize("end", ["free", "truncate", "swap"])
def test_what_a_queue_reads_may_be_given_up_by_another(end: str, in_flight: int) -> None:
    """A fork copies a page and reads it; its origin gives the page up before any of that is sent,
    and the next owner writes to it."""
    server = large_server(kv_pages=5 if end == "truncate" else 4, max_batch_commands=1)
    origin, other = Guest(server), Guest(server)
    fork = Guest(server, origin.instance)
    runtime.set_queue_priority(*fork.at, -100)
    pages, theirs = origin.filled(4), other.embeds(8)
    other.embed([9] * 8, 0, theirs)
    server.drain()
    copy, embeds, outputs = fork.pages(1), fork.embeds(2), fork.embeds(2)
    fork.embed([4, 5], 4, embeds)
    for plan in range(in_flight + 1):
        fork.forward(pages, [embeds[0], 1], [], [outputs[0], 1])
        if plan < in_flight:
            server.send()
    first, given_up = fork.dist(outputs[0]), fork.dist(outputs[0])
    runtime.cancel(fork.instance, given_up)
    fork.copy(pages[0], 0, copy[0], 0, 4)
    fork.forward(copy, embeds, copy, outputs)
    futures = [fork.dist(outputs[0]), fork.dist(outputs[0] + 1)]
    if end == "free":
        allocate.dealloc_kvpage(*origin.at, pages)
    elif end == "swap":
        origin.swap_out(pages)
    else:
        origin.truncate(pages, 0)
        rest = origin.embeds(8)
        origin.embed([8] * 8, 0, rest)
        origin.forward([], rest, pages)
    room = other.pages(2)
    other.forward([], theirs, room)
    server.drain()
    more = other.pages(1)
    other.forward([], theirs, more)
    server.drain()
    held: list[Any] = []
    for place in range(6):
        held.append((attend(embedded(place), place, shown(held)), place))
    wanted = [distribution(value, 3, 1000) for value, _ in held[4:]]
    assert [fork.take(future) for future in (first, *futures)] == [wanted[0], *wanted]


@pytest.mark.parametrize("text", [3, 12])
def test_a_context_opened_beside_a_run_does_not_wait_for_its_end(text: int) -> None:
    server = large_server()
    first = Runner(server, 3)
    run = first.start(first.sampler(GREEDY), 100)
    second = Runner(server, text, first)
    assert second.steps(second.sampler(GREEDY), 20) == plain(server, text, 20)
    assert 1 < len(first.tokens(run)) < 100  # it waits for its program


def test_a_fork_beside_a_run_waits_for_its_origin_alone() -> None:
    server = large_server()
    first = Runner(server, 3)
    second, fork = Runner(server, 0, first), Runner(server, 0, first)
    first.start(first.sampler(GREEDY), 100)
    second.append(list(range(8)))  # a full page, written after the run began
    fork.held, fork.length = list(second.held), 8
    fork.append([8, 9])
    assert fork.steps(fork.sampler(GREEDY), 20) == plain(server, 10, 20)


def test_what_reads_a_run_s_pages_waits_for_its_end() -> None:
    server = large_server()
    first = Runner(server, 3)
    second = Runner(server, 0, first)
    run = first.start(first.sampler(GREEDY), 100)
    embeds, outputs = second.embeds(1), second.embeds(1)
    second.embed([5], 3, embeds)
    second.forward(first.held, embeds, [], outputs)
    future = second.dist(outputs[0])
    server.drain()
    with refused("not-ready"):
        second.take(future)
    first.end(run, 1)
    server.drain()
    assert len(second.take(future)) == 3


def test_what_is_freed_beside_a_run_comes_back() -> None:
    server = large_server()
    first = Runner(server, 3)
    second = Runner(server, 3, first)
    first.start(first.sampler(GREEDY), 100)
    server.drain()
    for _ in range(300):  # more than there are of each
        pages, embeds, sampler = second.pages(1), second.embeds(1), second.sampler(GREEDY)
        allocate.dealloc_kvpage(*second.at, pages)
        allocate.dealloc_emb(*second.at, embeds)
        sample.destroy_sampler(*second.at, sampler)
        server.drain()


def test_what_a_run_needs_comes_back_at_its_end() -> None:
    server = large_server()
    pages, embeds = server.service.pages, server.service.embeds
    first = Runner(server, 12)
    second = Runner(server, 3, first)
    sampler = first.sampler(GREEDY)
    run = first.start(sampler, 100)
    server.drain()
    queued = first.instance.queues[first.queue].runs[run]
    page = int(queued.pages.pages[0])

    def is_free() -> tuple[bool, bool]:
        return pages._references[page] == 0, queued.embed in embeds._free._ids[: embeds.free]

    allocate.dealloc_kvpage(*first.at, [first.held[0], 1])
    allocate.dealloc_emb(*first.at, [first.own, 1])
    sample.destroy_sampler(*first.at, sampler)
    second.append([3])
    server.drain()
    assert is_free() == (False, False)
    calls.next_tokens(*first.at, run, 60)
    server.drain()
    assert first.tokens(run)[:40] == plain(server, 12, 40)
    calls.end_run(*first.at, run, 1)
    server.drain()
    assert is_free() == (True, True)


def plain(server: Server, text: int, count: int) -> list[int]:
    alone = Runner(server, text)
    return alone.steps(alone.sampler(GREEDY), count)


@dataclass(eq=False)
class FakeQueue:
    id: int
    account: Any


NAMES = st.lists(st.integers(0, 5), max_size=3)
SHARED = -1  # several instances have it, so that none may write it


@dataclass(frozen=True)
class Call:
    """What a queue's call reads and writes, pages and embeds."""

    queue: int  # of the instance `queue % 2`
    read: tuple[list[int], list[int]]
    written: tuple[list[int], list[int]]
    # Before the call of which number the instance got each page, and each embed.
    got: tuple[list[int], list[int]]

    def must_follow(self, earlier: Call, number: int) -> bool:
        """Whether both touch a name, and one of them writes it, that was not given away since."""
        return any(
            number >= self.got[kind][name]
            for kind in (0, 1)
            for name in (*self.read[kind], *self.written[kind])
            if name in earlier.written[kind]
            or (name in earlier.read[kind] and name in self.written[kind])
        )


@st.composite
def calls_of_two(draw: st.DrawFn) -> list[Call]:
    """Calls of two instances, in order: of names that one of them has, or that both only read."""
    has = [[0] * 6, [0] * 6]  # who, of pages and of embeds
    got = [[0] * 6, [0] * 6]
    made: list[Call] = []
    for queue in draw(st.lists(st.integers(0, 5), min_size=1, max_size=40)):
        for kind, names in draw(st.lists(st.tuples(st.integers(0, 1), NAMES), max_size=2)):
            for name in names:
                if has[kind][name] != queue % 2:
                    has[kind][name], got[kind][name] = queue % 2, len(made) + 1
        for name in draw(NAMES):
            has[0][name] = SHARED
        touched = [
            [name for name in draw(NAMES) if has[kind][name] in holders]
            for holders in ((queue % 2, SHARED), (queue % 2,))
            for kind in (0, 1)
        ]
        read, written = (touched[0], touched[1]), (touched[2], touched[3])
        made.append(Call(queue, read, written, (list(got[0]), list(got[1]))))
    return made


@settings(max_examples=300)
@given(made=calls_of_two())
def test_a_command_waits_for_the_newest_of_another_queue_that_it_conflicts_with(
    made: list[Call],
) -> None:
    """Against all pairs of calls."""
    accounts = [SimpleNamespace(id=1, active={}), SimpleNamespace(id=2, active={})]
    queues = [FakeQueue(100 + i, accounts[i % 2]) for i in range(6)]
    for queue in queues:
        queue.account.active[queue] = None
    order = CallOrder(6, 6)
    for number, call in enumerate(made, start=1):
        command: Any = SimpleNamespace(
            number=number,
            queue=queues[call.queue],
            after=0,
            read=lambda call=call: call.read,
            written=lambda call=call: call.written,
        )
        order.record(command)
        others = [
            (earlier, other)
            for earlier, other in enumerate(made[: number - 1], start=1)
            if other.queue != call.queue and other.queue % 2 == call.queue % 2
        ]
        needed = [earlier for earlier, other in others if call.must_follow(other, earlier)]
        since_ever = replace(call, got=([0] * 6, [0] * 6))
        allowed = [earlier for earlier, other in others if since_ever.must_follow(other, earlier)]
        assert max(needed, default=0) <= command.after <= max(allowed, default=0)


def test_a_second_queue_sees_what_was_queued_before_it_was_opened() -> None:
    server = large_server()
    first = Runner(server, 8)  # a full page, and nothing of it is sent
    second = Runner(server, 0, first)
    second.held, second.length = list(first.held), 8
    second.append([8, 9])
    assert second.steps(second.sampler(GREEDY), 3) == plain(server, 10, 3)
