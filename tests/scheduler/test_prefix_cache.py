"""The prefix cache: what is found is what was asked for, whatever programs do to deceive it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar, Self, cast

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.fake_worker import embedded, run_forward
from support.instances import take
from support.rig import offload, runtime
from support.scheduler_fixtures import Guest, Server, refused, u32

from pie_control.api import allocate, prefix
from pie_control.api.text import embed_txt
from pie_control.errors import ApiError
from pie_control.prefix.provenance import Provenance
from pie_control.prefix.tree import Node
from pie_control.resources.pools import PagePool
from pie_control.scheduler import backlog, forming
from pie_control.scheduler.backlog import KINDS
from pie_control.scheduler.commands.command import Command, Touched
from pie_control.wasm.linker import SUSPENDED
from pie_py.config.scheduling import InterceptionConfig, PrefixCacheConfig
from pie_py.wire.plan import CopyKv

PAGE = 4
FACTS: dict[str, Any] = {"page_size": PAGE, "embeds": 64, "kv_pages": 24, "max_batch_commands": 4}
ADAPTERS = ["", "x", "y"]


@pytest.fixture
def server() -> Server:
    return Server(**FACTS)


def values(tokens: list[int], adapter: str = "") -> list[int]:
    """What the slots of a text hold."""
    inputs = [(embedded(token), place) for place, token in enumerate(tokens)]
    return run_forward(inputs, [], [], ADAPTERS.index(adapter) - 1)


def addresses(spans: list[int]) -> list[int]:
    return [
        a for first, n in zip(spans[::2], spans[1::2], strict=True) for a in range(first, first + n)
    ]


def pair(page: int) -> list[int]:
    return [page, 1]


class Text:
    """A context as the SDKs have it, with the calls of the contract."""

    def __init__(self, guest: Guest, adapter: str = "") -> None:
        self.guest = guest
        self.adapter = adapter
        self.tokens: list[int] = []
        self.pages: list[int] = []  # addresses

    @property
    def spans(self) -> list[int]:
        return [number for page in self.pages for number in pair(page)]

    def match(self, tokens: list[int]) -> int:
        """Begins with what is there of the tokens; a future if one should wait."""
        guest = self.guest
        given = *guest.at, self.adapter, u32(*tokens)
        pages, future = cast("tuple[list[int], int]", prefix.match_prefix(*given))
        self.pages = addresses(pages)
        self.tokens = tokens[: len(self.pages) * PAGE]
        return future

    def run(self, tokens: list[int], insert: bool = True) -> None:
        """Computes tokens."""
        guest, start = self.guest, len(self.tokens)
        need = -(-(start + len(tokens)) // PAGE) - len(self.pages)
        if need > 0:
            self.pages += addresses(guest.pages(need))
        embeds = guest.embeds(len(tokens))
        guest.embed(tokens, start, embeds)
        self.keep(embeds, len(tokens))
        allocate.dealloc_emb(*guest.at, embeds)
        self.tokens += tokens
        if insert:
            self.insert()

    def extend(self, embeds: list[int], tokens: list[int]) -> int:
        """Goes on by tokens whose embeds are no text's; how many pages are a text still."""
        self.keep(embeds, len(tokens))
        self.tokens += tokens
        return 1

    def keep(self, embeds: list[int], count: int) -> None:
        """Runs embeds and keeps what comes of them."""
        guest, start = self.guest, len(self.tokens)
        inputs = self.spans[: 2 * -(-start // PAGE)]
        targets = self.spans[2 * (start // PAGE) : 2 * -(-(start + count) // PAGE)]
        if self.adapter:
            guest.forward_with(self.adapter, inputs, embeds, targets)
        else:
            guest.forward(inputs, embeds, targets)

    def insert(self) -> int:
        return insert(self.guest, self.spans)

    def release(self) -> None:
        guest = self.guest
        allocate.dealloc_kvpage(*guest.at, self.spans)
        self.pages = []


def insert(guest: Guest, pages: list[int]) -> int:
    return prefix.insert_prefix(*guest.at, pages)


def found(guest: Guest, tokens: list[int], adapter: str = "") -> int:
    """Tokens that a new text finds; they are right."""
    text = Text(guest, adapter)
    assert text.match(tokens) == 0
    check_mapped(text)
    if text.pages:
        text.release()
    return len(text.tokens)


def check_mapped(text: Text) -> None:
    server = text.guest.server
    pool = server.service.pages
    physical = server.service.space(text.guest.instance).pages.find(text.spans, pool.size)
    if getattr(server.scheduler, "_first", None):
        return  # they are on their way back
    held = [
        server.worker.slots[page * PAGE + i].value
        for page in physical.tolist()
        for i in range(PAGE)
    ]
    assert held == values(text.tokens, text.adapter)
    assert pool.used[physical].tolist() == [PAGE] * len(physical)


def check_tree(server: Server) -> None:
    """Every page of the tree holds what its path says; the pool's counts are right."""
    cache, pool = server.service.prefixes, server.service.pages

    def below(node: Node, text: list[int]) -> Iterator[tuple[Node, list[int]]]:
        for edge, child in node.children.items():
            longer = text + np.frombuffer(edge, np.int32).tolist()
            yield child, longer
            yield from below(child, longer)

    seen: list[int] = []
    away: list[int] = []
    for (_, adapter), root in cache._roots.items():
        for node, text in below(root, []):
            if node.page < 0:
                away.append(node.host)
                continue
            seen.append(node.page)
            assert cache._nodes[node.page] is node
            assert pool.immutable[node.page]
            assert pool.used[node.page] == PAGE
            assert pool.masks[node.page] == 0
            if node.pending is None and not getattr(server.scheduler, "_first", None):
                slots = server.worker.slots[node.page * PAGE : (node.page + 1) * PAGE]
                wanted = values(text, ADAPTERS[adapter + 1])[-PAGE:]
                assert [slot.value for slot in slots] == wanted
    assert len(seen) == len(set(seen)) == len(cache._nodes) == pool._cached
    assert sorted(seen) == np.flatnonzero(pool.cached).tolist()
    host = server.service.host_pages
    assert sorted(away) == sorted(page for own in cache._away._nodes.values() for page in own)
    assert all(cache._away._nodes.values()), "who has none there is forgotten"
    assert len(away) == len(set(away)) == host.cached
    assert pool.idle == len(pool.idle_pages())
    assert pool.free == np.count_nonzero(pool._references - pool.cached == 0)


def settle(guest: Guest) -> None:
    """Runs everything, and lets the queue go on after a failure."""
    guest.server.drain()
    future = guest.sync()
    with suppress(ApiError):
        take(guest.instance, future)


TOKENS = list(range(10, 23))  # three pages and one token


def begun(guest: Guest, tokens: list[int] = TOKENS, adapter: str = "") -> Text:
    """A text, asked for and not there, whose tokens are queued."""
    text = Text(guest, adapter)
    assert text.match(tokens) == 0
    assert text.tokens == []
    text.run(tokens)
    return text


def computed(guest: Guest, tokens: list[int] = TOKENS, adapter: str = "") -> Text:
    """A text that has been computed, and is there for others."""
    text = begun(guest, tokens, adapter)
    guest.server.drain()
    return text


def test_what_one_instance_computed_another_of_its_user_finds(server: Server) -> None:
    ann, heir, ben = Guest(server), Guest(server), Guest(server, server.launch("ben"))
    computed(ann)
    assert found(heir, TOKENS) == 12
    assert found(heir, TOKENS[:11]) == 8
    assert found(heir, [*TOKENS[:7], 99, *TOKENS[8:]]) == 4
    assert found(heir, TOKENS[1:]) == 0
    assert found(ben, TOKENS) == 0
    server.registry.kill(ann.instance, "test")
    assert found(heir, TOKENS) == 12
    assert server.service.pages.free == server.facts.kv_pages
    check_tree(server)


def test_the_operator_may_do_without() -> None:
    server = Server(**FACTS, prefix_cache=PrefixCacheConfig(enabled=False))
    text = computed(Guest(server))
    assert text.insert() == 0
    assert found(text.guest, TOKENS) == 0


def test_what_went_through_an_adapter_is_found_with_it_only(server: Server, guest: Guest) -> None:
    for adapter in "", "x":
        text = computed(guest, TOKENS, adapter)
        assert found(guest, TOKENS, adapter) == 12
    assert found(guest, TOKENS, "y") == 0
    with refused("not-found"):
        Text(guest, "z").match(TOKENS)
    # A text that goes through both is that of neither.
    text = begun(guest, [1, 2, 3, 4])
    text.adapter = "x"
    text.run([5, 6, 7, 8])
    server.drain()
    assert found(guest, [1, 2, 3, 4, 5, 6, 7, 8]) == 4
    assert found(guest, [1, 2, 3, 4, 5, 6, 7, 8], "x") == 0
    # The slot of an adapter that is gone is the next one's.
    server.registry.kill(guest.instance, "test")
    server.service.adapters.on_free = server.service.prefixes.drop_adapter
    server.service.adapters.remove("", "x")
    assert server.service.adapters.reserve("", "new") == 0
    server.service.adapters.add(("", "new"), "")
    late = Guest(server)
    pages, future = prefix.match_prefix(*late.at, "new", u32(*TOKENS))
    assert (pages, future) == ([], 0)
    assert found(late, TOKENS) == 12


def test_who_asks_while_the_first_computes_waits_for_it(server: Server) -> None:
    first, *others = [Guest(server) for _ in range(6)]
    text = begun(first)
    futures = []
    for guest in others:
        future = Text(guest).match(TOKENS)
        assert future
        assert not guest.ready(future)
        futures.append(future)
    server.drain()
    for guest, future in zip(others, futures, strict=True):
        take(guest.instance, future)
        assert found(guest, TOKENS) == 12
    assert sum(rows for kind, _, rows in server.worker.sizes if kind == "forward") == len(TOKENS)
    # For one page nobody waits, nor one of higher priority for one of lower.
    text.run([1, 2, 3])
    assert found(others[0], [*TOKENS, 1, 2, 3, 4]) == 12
    text.run(TOKENS)
    runtime.set_queue_priority(others[0].instance, others[0].queue, 1)
    assert found(others[0], [*TOKENS, 1, 2, 3, *TOKENS]) == 12


@pytest.mark.parametrize("end", ["kill", "fail"])
def test_who_waits_for_what_never_comes_computes_it(server: Server, end: str) -> None:
    first, second, third = Guest(server), Guest(server), Guest(server)
    begun(first)
    waits = [(guest, Text(guest).match(TOKENS)) for guest in (second, third)]
    if end == "kill":
        server.registry.kill(first.instance, "test")
    else:
        server.worker.fail_kinds = {"forward"}
        server.drain()
        server.worker.fail_kinds = set()
    for guest, future in waits:
        take(guest.instance, future)
    assert len(server.service.prefixes._nodes) == 0
    begun(second)
    assert Text(third).match(TOKENS)
    server.drain()
    assert found(third, TOKENS) == 12
    check_tree(server)


def test_what_has_been_sent_when_its_instance_ends_is_kept(server: Server) -> None:
    first, second = Guest(server), Guest(server)
    begun(first)
    while first.instance.queued_commands and any(
        q.queue.pending for q in first.instance.queues.values()
    ):
        server.send()
    server.registry.kill(first.instance, "test")
    while server.results:
        server.deliver()
    assert found(second, TOKENS) == 12
    check_tree(server)


def test_generated_tokens_enter_also_those_that_were_not_known_when_they_were_queued(
    server: Server, guest: Guest
) -> None:
    text = Text(guest)
    text.match(TOKENS)
    text.run(TOKENS[:-1], insert=False)
    one = guest.embeds(1)
    guest.embed(TOKENS[-1:], 12, one)
    sampler = guest.sampler('{"seed": 1}')
    text.pages += addresses(guest.pages(2))
    futures = []
    for _ in range(6):
        inputs = text.spans[: 2 * -(-len(text.tokens) // PAGE)]
        guest.forward(inputs, one, pair(text.pages[len(text.tokens) // PAGE]), one)
        text.tokens.append(-1)
        futures.append(guest.sample(one[0], sampler))
        guest.embed_sampled(sampler, len(text.tokens), one[0])
    assert text.insert() == 3
    server.drain()
    tokens = TOKENS + [guest.take_sample(future) for future in futures]
    assert text.insert() == 4
    assert found(guest, tokens) == 16


def test_a_fork_goes_on_from_what_it_shares_and_what_it_has_copied(
    server: Server, guest: Guest
) -> None:
    text = Text(guest)
    text.match(TOKENS)
    text.run(TOKENS[:10], insert=False)
    fork = Text(guest)
    fork.tokens, fork.pages = text.tokens[:], [*text.pages[:2], *addresses(guest.pages(1))]
    guest.copy(text.pages[2], 0, fork.pages[2], 0, 2)
    fork.run([1, 2, 3])
    text.run([4, 5, 6])
    side = Text(guest)
    side.tokens, side.pages = text.tokens[:4], text.pages[:1]
    side.run([7, 8, 9, 10])
    server.drain()
    assert found(guest, [*TOKENS[:10], 1, 2, 3]) == 12
    assert found(guest, [*TOKENS[:10], 4, 5, 6]) == 12
    assert found(guest, [*TOKENS[:4], 7, 8, 9, 10]) == 8
    check_tree(server)


def test_steps_that_were_taken_back_leave_nothing(server: Server, guest: Guest) -> None:
    text = Text(guest)
    text.match(TOKENS)
    text.run(TOKENS[:10], insert=False)
    guest.truncate(pair(text.pages[2]), 1)
    del text.tokens[9:]
    text.run([1, 2, 3])
    server.drain()
    assert text.insert() == 3
    assert found(guest, [*TOKENS[:9], 1, 2, 3]) == 12
    assert found(guest, TOKENS) == 8
    check_tree(server)


def test_pages_that_entered_cannot_change_but_can_leave(server: Server) -> None:
    guest, other = Guest(server), Guest(server)
    text = computed(guest)
    with refused("immutable"):
        guest.truncate(pair(text.pages[0]), 1)
    with refused("immutable"):
        guest.mask(pair(text.pages[0]), 1)
    mapped = Text(other)
    mapped.match(TOKENS)
    guest.swap_out(text.spans)
    server.drain()
    check_tree(server)
    check_mapped(mapped)
    guest.swap_in(text.spans)
    text.run([1, 2, 3])
    server.drain()
    assert guest.used(text.spans) == [4, 4, 4, 4]
    check_tree(server)


def test_under_pressure_what_was_not_asked_for_the_longest_goes_first_and_before_anybody(
    server: Server, guest: Guest
) -> None:
    texts = [[number] * 17 for number in range(4)]  # four pages and one token each
    for tokens in texts:
        computed(guest, tokens).release()
    assert found(guest, texts[0]) == 16
    stats = server.service.stats()
    assert stats["kv_pages_free"] == 24
    assert stats["prefix_pages"] == stats["prefix_pages_free"] == 16
    young = server.launch()
    allocate.alloc_kvpage(young, runtime.create_queue(young, "symbolic"), 8)
    assert server.service.stats()["prefix_pages"] == 16
    assert server.service.prefixes.rested() is None
    guest.pages(5)  # four of the text asked for least lately, and the last page of the next
    assert [found(guest, tokens) for tokens in texts] == [16, 0, 12, 16]
    assert server.service.stats()["prefix_pages_evicted"] == 5
    assert server.service.prefixes.rested() is not None
    assert not young.ended_event.is_set()
    guest.pages(11)
    assert [found(guest, tokens) for tokens in texts] == [0, 0, 0, 0]
    assert not young.ended_event.is_set()
    guest.pages(1)
    assert young.ended_event.is_set()
    check_tree(server)


def test_among_a_users_pages_those_worth_least_go_first(server: Server) -> None:
    guest, other = Guest(server), Guest(server, server.launch("ben"))
    texts = [[number] * 17 for number in range(3)]  # four pages and one token each

    def compute(who: Guest, tokens: list[int], priority: int, seconds: float) -> None:
        text = computed(who, tokens)
        time = int(seconds * 1e9)
        allocate.retain_kvpage(*who.at, text.spans, priority, time)
        text.release()

    compute(guest, texts[0], 3, 60)
    compute(other, texts[0], 0, 0)
    compute(guest, texts[1], 3, 5)
    compute(guest, texts[2], -1, 0)
    server.clock.seconds += 6
    taken = guest.pages(8 + 4)
    # Four of the pages that were there are this user's by their age: those worth least.
    assert [found(guest, tokens) for tokens in texts] == [16, 16, 0]
    assert found(other, texts[0]) == 16
    allocate.dealloc_kvpage(*guest.at, taken)
    compute(guest, texts[2], -1, 0)
    found(guest, texts[2])  # it is used again
    guest.pages(8 + 4)
    assert [found(guest, tokens) for tokens in texts] == [16, 0, 16]
    assert found(other, texts[0]) == 16
    check_tree(server)


def test_what_is_faster_back_from_host_memory_than_computed_moves_there(
    server: Server, guest: Guest
) -> None:
    server.service.prefixes._away._pays = lambda pages: True
    texts = [[number] * 17 for number in range(5)]  # four pages and one token each
    for tokens in texts:
        computed(guest, tokens).release()
    taken = guest.pages(20)
    stats = server.service.stats()
    assert (stats["prefix_pages"], stats["prefix_pages_moved"]) == (4, 12)
    assert (stats["prefix_pages_evicted"], stats["host_pages_free"]) == (4, 12)
    check_tree(server)
    text = Text(guest)
    assert text.match(texts[3]) == 0
    assert len(text.tokens) == 16
    assert found(guest, texts[2]) == 0, "no page is free"
    allocate.dealloc_kvpage(*guest.at, taken)
    text.run([1, 1, 1, 1])
    server.drain()
    check_mapped(text)
    check_tree(server)
    guest.swap_out(text.spans)
    server.drain()
    assert server.service.host_pages.free == 7
    check_tree(server)


def test_what_is_in_host_memory_waits_for_room_and_is_not_computed_again() -> None:
    server = Server(interception=InterceptionConfig(), **FACTS)
    service, executor = server.service, server.parts.executor
    service.prefixes._away._pays = lambda pages: True
    first, running, late = (Guest(server) for _ in range(3))
    text = Text(first)
    text.match([1] * 40)
    for _ in range(2):
        text.run([1] * 20)
    server.drain()
    text.release()
    held = running.pages(24)
    answers: list[Any] = []
    executor.answer = lambda instance, value: answers.append(value)  # type: ignore[method-assign]
    asked = prefix.match_prefix(*late.at, "", u32(*[1] * 41))
    assert (asked, answers) == (SUSPENDED, [])
    allocate.dealloc_kvpage(*running.at, held)
    server.drain()
    assert service.evictor is not None
    service.evictor.after_turn()
    [([_, count], future)] = answers
    assert (count, future) == (10, 0)


def test_of_the_user_with_the_most_in_host_memory_the_oldest_goes(server: Server) -> None:
    """However much a user's texts push out there, another's stay."""
    service = server.service
    service.prefixes._away._pays = lambda pages: True
    ann, ben = Guest(server), Guest(server, server.launch("ben"))

    def move(guest: Guest, number: int) -> None:
        computed(guest, [number] * 16).release()
        service.prefixes._evict(4)
        server.drain()

    move(ben, 0)
    for number in range(1, 6):
        move(ann, number)
    assert service.host_pages.cached == service.host_pages.size
    assert found(ben, [0] * 16) == 16
    assert [found(ann, [number] * 16) for number in range(1, 6)] == [0, 0, 0, 16, 16]
    check_tree(server)


def test_nobody_goes_on_with_pages_that_did_not_reach_host_memory(
    server: Server, guest: Guest
) -> None:
    """Asked for again before the worker has told that they could not be moved."""
    server.service.prefixes._away._pays = lambda pages: True
    for number in range(5):
        computed(guest, [number] * 17).release()
    server.worker.fail_kinds = {"swap_out"}
    allocate.dealloc_kvpage(*guest.at, guest.pages(20))
    first, second = Guest(server), Guest(server)
    for other in (first, second):
        text = Text(other)
        text.match([3] * 17)
        text.run([1] * 4)
    server.drain()
    assert first.instance.ended_event.is_set()
    assert second.instance.ended_event.is_set()
    assert not guest.instance.ended_event.is_set()
    assert found(guest, [3] * 17) == 0
    check_tree(server)


@given(
    st.lists(st.lists(st.integers(0, 1), min_size=5, max_size=17), min_size=4, max_size=25),
    st.lists(st.booleans(), min_size=25, max_size=25),
)
def test_texts_that_come_and_go_are_right_wherever_they_were(
    texts: list[list[int]], fails: list[bool]
) -> None:
    server = Server(**{**FACTS, "kv_pages": 8, "host_pages": 5})
    server.service.prefixes._away._pays = lambda pages: True
    guest = Guest(server)
    for tokens, fail in zip(texts, fails, strict=False):
        text = Text(guest)
        assert text.match(tokens[:-1]) == 0
        rest = tokens[len(text.tokens) :]
        text.run(rest + [0] * (-len(tokens) % PAGE))
        server.worker.fail_kinds = {"swap_out"} if fail else set()
        server.drain()
        if guest.instance.ended_event.is_set():
            guest = Guest(server)
            continue
        check_mapped(text)
        text.release()
        server.drain()
        check_tree(server)


def test_a_text_waits_for_conversations_that_go_on_soon(server: Server) -> None:
    service, timers = server.service, server.parts.timers
    service.room._seconds = lambda first, end: 1.0 * (end - first)
    service.prefixes.pauses._history.add("ann", "tool build", 70.0)
    turns = []
    for number in range(2):
        guest = Guest(server)
        text = computed(guest, [number] * 16)
        text.run([number] * 16)
        server.drain()
        text.release()
        server.parts.models.await_tools(guest.instance, ["build"])
        turns.append(guest.instance)

    def look() -> None:
        server.clock.seconds += 0.2
        timers.fire()

    late, later, other = Guest(server), Guest(server), Guest(server, server.launch("ben"))
    assert found(late, [7] * 20) == 0, "there is room for five pages"
    assert found(other, [7] * 40) == 0, "other users' conversations keep nobody waiting"
    first, second = Text(late).match([7] * 41), Text(later).match([8] * 41)
    assert 0 not in (first, second)
    third = Guest(server)
    runtime.cancel(third.instance, Text(third).match([9] * 41))
    assert Text(third).match([9] * 41) == 0, "each instance waits once"
    look()
    assert not late.ready(first)
    assert server.parts.models.go_on(turns[0].id, "ann") is not None
    look()
    assert (late.ready(first), later.ready(second)) == (True, False), "one at a time"
    take(late.instance, first)
    assert found(late, [7] * 41) == 0, "each instance waits once"
    allocate.alloc_kvpage(*late.at, 11)
    look()
    assert not later.ready(second)
    server.clock.seconds += 11 * 10 * 2
    look()
    assert later.ready(second), "no longer than it is worth"
    assert service.stats()["prefix_room_waits"] == 3


def test_a_limit_on_pages_holds_for_those_that_are_found(server: Server) -> None:
    computed(Guest(server))
    small = Guest(server, server.launch(kv_pages=2))
    with refused("limit-exceeded"):
        Text(small).match(TOKENS)
    assert found(small, TOKENS[:9]) == 8


class Deceit:
    """Things done between a text's first six tokens and its next six; the pages that may be found
    after.
    """

    def positions_with_a_gap(self, text: Text) -> int:
        guest, start = text.guest, len(text.tokens)
        embeds = guest.embeds(2)
        embed_txt(*guest.at, [1, 2], [start, 1, start + 5, 1], embeds)
        return text.extend(embeds, [1, 2])

    def positions_from_elsewhere(self, text: Text) -> int:
        guest = text.guest
        embeds = guest.embeds(2)
        guest.embed([1, 2], 1, embeds)
        return text.extend(embeds, [1, 2])

    def other_embeds_than_the_newest(self, text: Text) -> int:
        guest, start = text.guest, len(text.tokens)
        old, new = guest.embeds(2), guest.embeds(2)
        guest.embed([1, 2], start, old)
        guest.embed([3, 4], start, new)
        return text.extend(old, [3, 4])

    def an_embed_written_twice(self, text: Text) -> int:
        guest, start = text.guest, len(text.tokens)
        embeds = guest.embeds(2)
        guest.embed([1, 2], start, embeds)
        guest.embed([3], start, [embeds[0], 1])
        return text.extend(embeds, [1, 2])

    def an_embed_that_is_a_copy(self, text: Text) -> int:
        guest, start = text.guest, len(text.tokens)
        embeds = guest.embeds(2)
        guest.embed([1, 2], start, embeds)
        guest.copy_embeds([embeds[0], 1], [embeds[0] + 1, 1], [start + 1, 1])
        return text.extend(embeds, [1, 2])

    def a_hidden_state_for_a_token(self, text: Text) -> int:
        guest, start = text.guest, len(text.tokens)
        embeds = guest.embeds(1)
        guest.embed([1], start, embeds)
        guest.forward([], embeds, [], embeds)
        return text.extend(embeds, [1])

    def an_embed_that_failed(self, text: Text) -> int:
        guest, start = text.guest, len(text.tokens)
        guest.server.drain()
        embeds = guest.embeds(2)
        guest.embed([9, 9], start, embeds)
        guest.server.drain()
        guest.server.worker.fail_kinds = {"embed_text"}
        guest.embed([1, 2], start, embeds)
        settle(guest)
        guest.server.worker.fail_kinds = set()
        text.extend(embeds, [1, 2])
        return 0

    def a_mask(self, text: Text) -> int:
        guest, start = text.guest, len(text.tokens)
        embeds = guest.embeds(1)
        guest.embed([1], start, embeds)
        guest.forward(text.spans, embeds, text.spans, [], [2, 1, start])
        text.tokens.append(1)
        return 1

    def cut_and_written_anew_where_a_fork_reads(self, text: Text) -> int:
        guest = text.guest
        fork = Text(guest)
        fork.tokens, fork.pages = text.tokens[:4], text.pages[:1]
        fork.run([1, 2, 3, 4], insert=False)
        guest.truncate(pair(text.pages[0]), 0)
        text.tokens, text.pages = [], text.pages[:1]
        text.run([7, 7, 7, 7], insert=False)
        guest.server.drain()
        assert fork.insert() == 0
        return 2


OF_ANY_TEXT = (  # those that ask nothing of its length
    "positions_with_a_gap",
    "positions_from_elsewhere",
    "other_embeds_than_the_newest",
    "an_embed_written_twice",
    "an_embed_that_is_a_copy",
    "a_hidden_state_for_a_token",
    "a_mask",
)
DECEITS = [name for name in vars(Deceit) if not name.startswith("_")]


@pytest.mark.parametrize("name", DECEITS)
def test_what_is_no_text_is_not_found(server: Server, name: str) -> None:
    text = Text(Guest(server))
    text.match([])
    text.run(TOKENS[:4], insert=False)
    text.run(TOKENS[4:6], insert=False)
    findable = getattr(Deceit(), name)(text)
    with suppress(ApiError):  # pages that it has not
        text.run(TOKENS[6:12], insert=False)
    assert text.insert() == findable
    for _ in range(9):
        server.send()
        check_tree(server)
        if server.results:
            server.deliver()
        check_tree(server)
    assert text.insert() == findable
    check_tree(server)
    assert found(text.guest, text.tokens) == findable * PAGE


def test_an_old_mark_says_nothing_of_what_is_written_anew(server: Server, guest: Guest) -> None:
    text = Text(guest)
    text.match([])
    text.run(TOKENS[:8], insert=False)
    server.send()  # and its mark with it
    guest.truncate([*pair(text.pages[0]), *pair(text.pages[1])], 2, 0)
    text.tokens = text.tokens[:2]
    text.run([1, 2, 3, 4, 5, 6])
    server.deliver()
    check_tree(server)
    server.drain()
    check_tree(server)
    assert found(guest, text.tokens) == 8


@dataclass(slots=True, eq=False)
class FloodPage(Command):
    """A kind of command that provenance knows nothing of: a page's slots become copies of its
    first.
    """

    kind: ClassVar[str] = CopyKv.kind
    page: int

    def read(self) -> Touched:
        return [self.page], []

    def written(self) -> Touched:
        return [self.page], []

    @classmethod
    def join(cls, commands: Sequence[Self]) -> CopyKv:
        first = np.repeat([command.page * PAGE for command in commands], PAGE - 1)
        others = first + np.tile(np.arange(1, PAGE), len(commands))
        return CopyKv(first.astype(np.int32), others.astype(np.int32))

    def scrub(self, scrub: Any) -> None:
        pass


@pytest.fixture
def flood(monkeypatch: pytest.MonkeyPatch) -> Callable[[Text, int], None]:
    """Queues the made-up kind for a page of a text."""
    monkeypatch.setattr(backlog, "KINDS", [*KINDS, FloodPage])
    monkeypatch.setattr(forming, "LIGHT_KINDS", [*forming.LIGHT_KINDS, FloodPage])

    def queue_flood(text: Text, at: int) -> None:
        target = text.guest.instance.queues[text.guest.queue]
        (page,) = target.space.pages.find(pair(text.pages[at]), 1).tolist()
        target.scheduler.enqueue(target.queue, FloodPage(page))

    return queue_flood


@pytest.mark.parametrize("at", [0, 1, 2])
@pytest.mark.parametrize("drained", [False, True])
def test_a_page_that_an_unknown_kind_of_command_wrote_is_not_believed(
    flood: Callable[[Text, int], None], server: Server, at: int, drained: bool
) -> None:
    text, other = Text(Guest(server)), Guest(server)
    tokens = list(range(3 * PAGE))
    assert text.match(tokens) == 0
    text.run(tokens, insert=False)
    if drained:
        server.drain()
    flood(text, at)
    text.run([90, 91, 92, 93], insert=False)  # goes on from what is there now
    assert text.insert() == at
    server.drain()
    assert found(other, [*tokens, 90, 91, 92, 93]) == at * PAGE


@dataclass(eq=False)
class FakeWriter:
    failure: ApiError | None = None
    failures: int = 0
    branch: Any = None
    id: int = 0


def test_embeds_that_an_unknown_kind_of_command_wrote_are_not_taken_for_tokens() -> None:
    provenance = Provenance(PagePool(4, PAGE), 16, cast(Any, None))
    queue = FakeWriter()
    step: Any = SimpleNamespace(
        inputs=[3],
        pages=np.empty(0, np.int32),
        page_used=np.empty(0, np.int32),
        output_slots=[0],
        output_pages=[0],
        adapter=-1,
    )
    for written, believed in (([], True), ([16], True), ([3], False), ([5, 20], False)):
        provenance.embedded(queue, [3], [0], [7])
        provenance.overwritten([], written)  # names from 16 on are samplers'
        provenance.extended(queue, step)
        assert (provenance.find(np.array([0], np.int32)) is not None) == believed
        provenance.forget(np.array([0], np.int32))


def test_some_pages_of_a_text_are_not_the_text() -> None:
    """Only its first ones are: those after them hold what was computed from all before."""
    provenance = Provenance(PagePool(8, PAGE), 16, cast(Any, None))
    queue, embeds = FakeWriter(), list(range(PAGE))

    def extend(pages: list[int], target: int) -> None:
        step: Any = SimpleNamespace(
            inputs=embeds,
            pages=np.array(pages, np.int32),
            page_used=np.full(len(pages), PAGE, np.int32),
            output_slots=[target * PAGE + place for place in range(PAGE)],
            output_pages=[target],
            adapter=-1,
        )
        start = len(pages) * PAGE
        provenance.embedded(queue, embeds, list(range(start, start + PAGE)), [7] * PAGE)
        provenance.extended(queue, step)

    def own(*pages: int) -> int:
        """How many of these pages are the first ones of a text."""
        found = provenance.find(np.array(pages, np.int32))
        return 0 if found is None else found[1]

    extend([], 0)
    extend([0], 1)
    assert (own(0, 1), own(0), own(1), own(5, 1)) == (2, 1, 0, 0)
    extend([1], 2)
    assert (own(0, 2), own(1, 2), own(2)) == (1, 0, 0)
    extend([0], 3)
    assert (own(0, 3), own(0, 1)) == (2, 2)


class Deceivers(RuleBasedStateMachine):
    """Programs of two users that do what they like to pages, on a small pool, while plans fail."""

    @initialize(shared=st.booleans(), reference=st.booleans())
    def start(self, shared: bool, reference: bool) -> None:
        self.server = Server(
            reference=reference, **FACTS, prefix_cache=PrefixCacheConfig(shared=shared)
        )
        self.texts: list[Text] = []
        self.guests: list[Guest] = []

    def guest(self, data: st.DataObject) -> Guest:
        self.guests = [g for g in self.guests if not g.instance.ended_event.is_set()]
        self.texts = [t for t in self.texts if not t.guest.instance.ended_event.is_set()]
        if (len(self.guests) < 4 and data.draw(st.integers(0, 3)) == 0) or not self.guests:
            guest = Guest(self.server, self.server.launch(data.draw(st.sampled_from("ab"))))
            self.guests.append(guest)
        return data.draw(st.sampled_from(self.guests))

    def text(self, data: st.DataObject) -> Text | None:
        self.guest(data)
        texts = [t for t in self.texts if t.pages]
        return data.draw(st.sampled_from(texts)) if texts else None

    @rule(
        data=st.data(),
        tokens=st.lists(st.integers(0, 1), min_size=1, max_size=17),
        adapter=st.sampled_from(["", "", "", "x"]),
        insert=st.booleans(),
        ask=st.booleans(),
    )
    def begin(
        self, data: st.DataObject, tokens: list[int], adapter: str, insert: bool, ask: bool
    ) -> None:
        text = Text(self.guest(data), adapter)
        self.texts.append(text)

        def fill() -> None:
            if ask:
                future = text.match(tokens[:-1])
                if future:
                    runtime.cancel(text.guest.instance, future)
                check_mapped(text)
            text.run(tokens[len(text.tokens) :], insert)

        self.attempt(fill)

    @rule(
        data=st.data(),
        tokens=st.lists(st.integers(0, 1), min_size=1, max_size=5),
        insert=st.booleans(),
    )
    def go_on(self, data: st.DataObject, tokens: list[int], insert: bool) -> None:
        if text := self.text(data):
            self.attempt(lambda: text.run(tokens, insert))

    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        text = self.text(data)
        if text is None or not text.tokens:
            return
        length = data.draw(st.integers(1, len(text.tokens)))
        keep, rest = divmod(length, PAGE)
        guest = text.guest
        if data.draw(st.booleans()):
            guest = Guest(self.server, text.guest.instance)  # another queue
        fork = Text(guest, text.adapter)
        fork.tokens, fork.pages = text.tokens[:length], text.pages[:keep]

        def copy() -> None:
            if rest:
                fork.pages += addresses(guest.pages(1))
                guest.copy(text.pages[keep], 0, fork.pages[-1], 0, rest)

        if self.attempt(copy):
            self.texts.append(fork)

    @rule(data=st.data(), kind=st.integers(0, 12), drained=st.booleans())
    def deceive(self, data: st.DataObject, kind: int, drained: bool) -> None:
        """What is not just the next tokens of a text, and then some more of those."""
        text = self.text(data)
        if text is None:
            return
        self.cheat(data, kind, text)
        self.attempt(lambda: text.run([0, 1, 0, 1, 0], False))
        if drained:
            self.drain()
        self.attempt(text.insert)

    def cheat(self, data: st.DataObject, kind: int, text: Text) -> None:
        guest = text.guest
        page = data.draw(st.sampled_from(text.pages))
        number = data.draw(st.integers(0, PAGE))
        if kind == 0:
            self.attempt(lambda: guest.mask(pair(page), number))
        elif kind == 1:
            self.attempt(lambda: guest.truncate(pair(page), number))
        elif kind == 2:  # other positions
            text.tokens = text.tokens[: len(text.tokens) - number]
        elif kind == 3:  # other pages
            text.pages = data.draw(st.permutations(text.pages))
        elif kind == 4:
            other = data.draw(st.sampled_from(text.pages))
            self.attempt(lambda: guest.copy(page, 0, other, number // 2, 1 + number % 3))
        elif kind == 5:
            text.adapter = data.draw(st.sampled_from(ADAPTERS))
        elif kind == 6:
            self.attempt(lambda: offload.discard(*guest.at, pair(page)))
        elif kind == 7:
            self.attempt(lambda: guest.swap_out(pair(page)))
            if data.draw(st.booleans()):
                self.attempt(lambda: guest.swap_in(text.spans))
        else:
            how = getattr(Deceit(), data.draw(st.sampled_from(OF_ANY_TEXT)))
            self.attempt(lambda: how(text))

    @rule(data=st.data())
    def generate(self, data: st.DataObject) -> None:
        text = self.text(data)
        if text is None:
            return
        guest = text.guest
        count = data.draw(st.integers(1, 4))

        def steps() -> None:
            sampler = guest.sampler('{"seed": 1, "top_k": 1}')
            embed = guest.embeds(1)
            guest.embed([0], len(text.tokens), embed)
            text.pages += addresses(guest.pages(2))
            for _ in range(count):
                start = len(text.tokens)
                inputs = text.spans[: 2 * -(-start // PAGE)]
                guest.forward(inputs, embed, pair(text.pages[start // PAGE]), embed)
                text.tokens.append(0)
                guest.sample(embed[0], sampler)
                guest.embed_sampled(sampler, len(text.tokens), embed[0])
            text.insert()

        self.attempt(steps)

    def attempt(self, call: Any) -> bool:
        with suppress(ApiError):
            call()
            return True
        return False

    @rule(data=st.data(), whole=st.booleans())
    def insert(self, data: st.DataObject, whole: bool) -> None:
        if text := self.text(data):
            pages = text.pages if whole else data.draw(st.permutations(text.pages))
            spans = [number for page in pages for number in pair(page)]
            self.attempt(lambda: insert(text.guest, spans))

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        if text := self.text(data):
            self.attempt(text.release)
            self.texts.remove(text)

    @rule(data=st.data())
    def kill(self, data: st.DataObject) -> None:
        self.server.registry.kill(self.guest(data).instance, "test")

    @rule(data=st.data())
    def synchronize(self, data: st.DataObject) -> None:
        self.guest(data).sync()

    @rule(
        fails=st.sets(st.sampled_from(["forward", "embed_text", "copy_kv", "sample"]), max_size=1)
    )
    def send(self, fails: set[str]) -> None:
        if len(self.server.results) < 2:
            self.server.worker.fail_kinds = fails
            self.server.send()
            self.server.worker.fail_kinds = set()

    @rule()
    @precondition(lambda self: self.server.results)
    def deliver(self) -> None:
        self.server.deliver()

    @rule()
    def drain(self) -> None:
        while self.server.results:
            self.server.deliver()
        self.server.drain()

    @invariant()
    def the_cache_holds_what_it_says(self) -> None:
        check_tree(self.server)

    def teardown(self) -> None:
        if not hasattr(self, "server"):
            return
        self.drain()
        for guest in self.guests:
            self.server.registry.kill(guest.instance, "test")
        check_tree(self.server)
        assert self.server.service.pages.free == self.server.facts.kv_pages


TestDeceivers = Deceivers.TestCase
TestDeceivers.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


def test_who_gives_up_waiting_for_a_text_is_forgotten(server: Server) -> None:
    one, other = Guest(server), Guest(server)
    tokens = u32(*range(16))
    prefix.match_prefix(*one.at, "", tokens)
    pages, embeds = one.pages(4), one.embeds(12)
    one.embed(list(range(12)), 0, embeds)
    one.forward(pages, embeds, pages)
    assert prefix.insert_prefix(*one.at, [pages[0], 3]) == 3
    future = 0
    for _ in range(50):
        if future:
            runtime.cancel(other.instance, future)
        _, future = prefix.match_prefix(*other.at, "", tokens)
        assert future
    (pending,) = {node.pending for node in server.service.prefixes._nodes.values() if node.pending}
    assert len(pending.waiters) == 1
    server.drain()
    assert other.ready(future)
