"""Pools and addresses by themselves, against sets and dictionaries."""

from __future__ import annotations

from collections.abc import Callable

import hypothesis.strategies as st
import numpy as np
import pytest
import trio
import trio.testing
from hypothesis import given
from support.programs_read import bound_by

from inferlet import Sampler
from pie_control.errors import ApiError
from pie_control.resources import addresses as addresses_module
from pie_control.resources import exports as exports_module
from pie_control.resources.addresses import Addresses
from pie_control.resources.exports import Exports
from pie_control.resources.pools import EmbedPool, HostMemory, HostPages, PagePool, within_users
from pie_control.resources.samplers import SamplerPool, Samplers
from pie_control.resources.space import Space
from pie_control.shares import Shares
from pie_control.timers import Timers
from pie_py.config.limits import Quota, Quotas
from pie_py.device_programs.recording import Recorded

SHARES = Shares(Quotas(Quota(share=1.0), {}))


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 10**6)), max_size=60))
def test_pages_are_free_or_held_and_never_both(steps: list[tuple[int, int]]) -> None:
    pool = PagePool(20, 8)
    held: list[int] = []  # a page as often as it has references
    for what, number in steps:
        if what < 4:
            count = min(number % 6, pool.free)
            pages = pool.allocate(count)
            assert len(set(pages.tolist())) == count
            assert not set(pages.tolist()) & set(held)
            assert not pool.used[pages].any()
            assert not pool.immutable[pages].any()
            held += pages.tolist()
            pool.used[pages] = 3
            pool.set_masks(pages, np.full(count, number % 2, np.uint32))
            pool.immutable[pages] = True
        elif held and what < 7:
            again = [held[number % len(held)]] * (1 + number % 2)
            pool.retain(np.array(again, np.int32))
            held += again
        elif held:
            start = number % len(held)
            gone, held = held[start : start + 5], held[:start] + held[start + 5 :]
            pool.release(np.array(gone, np.int32))
        assert pool.free == pool.size - len(set(held))
        assert pool.masked == np.count_nonzero(pool.masks)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(-3, 3)), max_size=12))
def test_worth_changes_places_within_a_user(items: list[tuple[str, int]]) -> None:
    users, worth = [user for user, _ in items], [priority for _, priority in items]
    found = within_users(range(len(items)), users, worth)
    assert [users[n] for n in found] == users
    for user in "ab":
        own = [n for n in found if users[n] == user]
        assert own == sorted(
            (n for n in range(len(items)) if users[n] == user), key=lambda n: worth[n]
        )


def test_what_was_said_of_a_page_goes_with_its_content_and_ends_with_it() -> None:
    pool, host = PagePool(4, 8), HostMemory(2, 4)
    pages = pool.allocate(2)
    pool.retention.set(pages, 5, until=10.0)
    moved = host.allocate(2)
    host.keep_state(moved, pool, pages)
    pool.release(pages)
    assert pool.retention.rated == 0
    back = pool.allocate(2)
    host.restore_state(moved, pool, back)
    assert pool.retention.of(back, 9.0).tolist() == [5, 5]
    assert pool.retention.of(back, 10.0).tolist() == [0, 0]
    pool.retention.set(back[:1], -5, until=0.0)
    assert pool.retention.of(back, 9.0).tolist() == [-5, 5]
    pool.retention.lift(back)
    assert pool.retention.of(back, 9.0).tolist() == [0, 5]


def test_embeds_forget_what_their_last_owner_wrote() -> None:
    pool = EmbedPool(4)
    embeds = pool.allocate(4)
    pool.written[embeds] = True
    pool.release(embeds[:2])
    assert not pool.written[pool.allocate(2)].any()


class Physical:
    """Ids in the order they are asked for."""

    def __init__(self) -> None:
        self.next = 0

    def take(self, count: int) -> np.ndarray:
        self.next += count
        return np.arange(self.next - count, self.next, dtype=np.int32)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 200), st.integers(1, 90)), max_size=40))
def test_addresses_agree_with_a_dictionary(steps: list[tuple[bool, int, int]]) -> None:
    table, ids = Addresses("page"), Physical()
    model: dict[int, int] = {}
    highest = 0
    for allocate, where, count in steps:
        if allocate or not model:
            physical = ids.take(count)
            first = table.map(physical)
            assert first > highest  # never used before
            highest = first + count - 1
            model.update(zip(range(first, first + count), physical.tolist(), strict=True))
        else:
            keys = sorted(model)
            start = keys[where % len(keys)]
            inside = [address for address in range(start, start + count) if address in model]
            spans = [number for address in inside for number in (address, 1)]
            assert table.unmap(spans).tolist() == [model.pop(address) for address in inside]
        assert table.live == len(model)
        for first in (1, where, highest - count, highest):
            addresses = range(first, first + count)
            if all(address in model for address in addresses):
                expected = [model[address] for address in addresses]
                assert table.find([first, count], 10**6).tolist() == expected
                assert table.find([first, count, first, 1], 10**6).tolist() == [
                    *expected,
                    expected[0],
                ]
                assert table.find_one(first) == expected[0]
            else:
                with pytest.raises(ApiError, match=r"^invalid-handle"):
                    table.find([first, count], 10**6)
    assert sorted(table.unmap_all().tolist()) == sorted(model.values())
    assert table.live == 0


def test_a_table_does_not_grow_with_age() -> None:
    table = Addresses("embed")
    for i in range(20_000):
        first = table.map(np.array([i], np.int32))
        assert table.unmap([first, 1]).tolist() == [i]
    assert len(table._table) == 64


def test_live_addresses_may_not_lie_too_far_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses_module, "MAX_WINDOW", 1000)
    table = Addresses("page")
    kept = table.map(np.array([0], np.int32))
    for i in range(999):
        table.unmap([table.map(np.array([i], np.int32)), 1])
    with pytest.raises(ApiError, match=r"^limit-exceeded"):
        table.map(np.arange(1000, dtype=np.int32))
    table.unmap([kept, 1])
    table.map(np.array([1], np.int32))


def test_a_call_cannot_ask_for_more_than_there_is() -> None:
    table = Addresses("page")
    first = table.map(np.arange(10, dtype=np.int32))
    for spans in ([first, 10] * 3, [first, 0] * 100, [first, 2**32 - 1], [first, 11]):
        with pytest.raises(ApiError, match=r"^invalid-(argument|handle)"):
            table.find(spans, 10)


def test_a_refused_allocation_holds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses_module, "MAX_WINDOW", 70)
    pages, embeds = PagePool(200, 8), EmbedPool(200)
    space = Space(
        pages,
        embeds,
        None,
        None,
        Samplers(SamplerPool(1, 1, 200), 1),
        HostPages(HostMemory(0, 10), None),
    )
    for allocate in (space.allocate_pages, space.allocate_embeds):
        with pytest.raises(ApiError, match=r"^limit-exceeded"):
            allocate(100, lambda count: False)
    assert (pages.free, embeds.free) == (200, 200)


def unlimited(pool: PagePool) -> Exports:
    return Exports(pool, SHARES, "m", lambda: 0.0, Timers(lambda: 0.0))


def test_an_export_that_nobody_imports_ends() -> None:
    async def main() -> None:
        timers, pool = Timers(trio.current_time), PagePool(8, 8)
        shares = Shares(Quotas(Quota(share=1.0, export_seconds=60), {}))
        exports = Exports(pool, shares, "m", trio.current_time, timers)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(timers.run)
            for name in "abcd":
                pages = pool.allocate(1)
                exports.add("ann", name, pages, name == "b")
                pool.release(pages)  # as if its instance had ended
            exports.expire("ann", "b", 20)
            exports.expire("ann", "c", 10)
            exports.release("ann", "c")
            exports.add("ann", "c", pool.allocate(1), False)
            with pytest.raises(ApiError, match=r"^limit-exceeded.*60 s"):
                exports.expire("ann", "a", 61)
            with pytest.raises(ApiError, match=r"^invalid-argument"):
                exports.expire("ann", "a", 0)
            with pytest.raises(ApiError, match=r"^permission-denied"):
                exports.expire("ben", "b", 1)
            await trio.sleep(15)
            assert exports.names("ann") == ["a", "b", "c", "d"]  # a released one takes none with it
            exports.use("ben", "b")
            for _ in range(1000):
                exports.expire("ann", "d", 50)
            assert len(timers) < 200
            await trio.sleep(15)
            assert exports.names("ann") == ["a", "b", "c", "d"]  # `b` has begun anew
            await trio.sleep(10)
            assert exports.names("ann") == ["a", "c", "d"]
            assert pool.free == 5
            await trio.sleep(22)
            assert exports.names("ann") == ["d"]
            await trio.sleep(10)
            assert (len(exports), exports.pages, pool.free) == (0, 0, 7)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_exports_of_one_user_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exports_module, "MAX_EXPORTS", 20)
    pool = PagePool(4, 8)
    exports = unlimited(pool)
    page = pool.allocate(1)
    for i in range(20):
        exports.add("ann", f"{i}", page, i % 2 == 0)
    with pytest.raises(ApiError, match=r"^limit-exceeded"):
        exports.add("ann", "more", page, False)
    exports.add("ben", "more", page, False)
    assert (len(exports), exports.pages) == (20 + 1, 1)
    for i in range(20):
        exports.release("ann", f"{i}")
    exports.release("ben", "more")
    pool.release(page)
    assert pool.free == 4
    assert len(exports) == 0


def test_an_export_has_each_page_once() -> None:
    """An instance may have several addresses of a page, and name each address many times."""
    pool = PagePool(8, 8)
    exports, pages = unlimited(pool), pool.allocate(2)
    with pytest.raises(ApiError, match=r"^invalid-argument.*more than once"):
        exports.add("ann", "twice", pages[[0, 1, 0]], False)
    exports.add("ann", "once", pages, False)
    assert exports.pages == 2


def test_lists_of_exports_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are kept for ever, and hundreds of thousands of pages can be in each of thousands."""
    monkeypatch.setattr(exports_module, "MAX_LISTED", 12)
    pool = PagePool(8, 8)
    exports, pages = unlimited(pool), pool.allocate(4)
    for name in "abc":
        exports.add("ann", name, pages, name == "b")
    with pytest.raises(ApiError, match=r"^limit-exceeded.*list 12 pages"):
        exports.add("ann", "d", pages[:1], False)
    exports.add("ben", "a", pages, False)
    exports.release("ann", "b")
    exports.add("ann", "d", pages, False)
    for user, name in (("ann", "a"), ("ann", "c"), ("ann", "d"), ("ben", "a")):
        exports.release(user, name)
    pool.release(pages)
    assert (exports.pages, pool.free) == (0, 8)


def test_what_is_freed_and_still_taken_has_a_limit_too() -> None:
    """Commands that are not sent name it; an instance could hold the whole pool by such pages."""
    pages, embeds, pool = PagePool(200, 8), EmbedPool(200), SamplerPool(100, 1, 200)
    host = HostPages(HostMemory(0, 10), None)
    samplers = Samplers(pool, 4)
    space = Space(pages, embeds, 4, 4, samplers, host)
    later: list[Callable[[], None]] = []

    def defer(pages: list[int], embeds: list[int], release: Callable[[], None]) -> None:
        later.append(release)

    for allocate, free in (
        (space.allocate_pages, space.free_pages),
        (space.allocate_embeds, space.free_embeds),
    ):
        for _ in range(2):
            free([allocate(4, lambda count: False), 4], defer)
        with pytest.raises(ApiError, match="8 freed ones"):
            allocate(1, lambda count: False)
        while later:
            later.pop()()
        allocate(4, lambda count: False)
    greedy = bound_by(Sampler(temperature=0.0), 300).program

    def create() -> int:
        return samplers.create(program=greedy, source=Recorded(greedy.text, ()), top=0)[0]

    for _ in range(8):
        samplers.free(create(), defer)
    with pytest.raises(ApiError, match="8 destroyed samplers"):
        create()
    while later:
        later.pop()()
    for _ in range(4):
        create()
