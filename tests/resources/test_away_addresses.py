"""Addresses with nothing in the pool behind them, and host pages, against dictionaries."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from pie_control.errors import ApiError
from pie_control.resources.addresses import (
    EMPTY,
    Addresses,
    addresses_of,
    entries_of,
    host_pages_of,
    is_on_host,
)
from pie_control.resources.pools import HostMemory, HostPages

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["map", "away", "back", "end"]), st.integers(0, 60), st.integers(0, 4)
    ),
    max_size=60,
)


@given(STEPS)
def test_addresses_that_are_away(steps: list[tuple[str, int, int]]) -> None:
    addresses = Addresses("page")
    live: dict[int, int] = {}  # what is behind each, negative if it is away
    number = 0
    for what, at, count in steps:
        spans = [at, count]
        there = [address in live for address in range(at, at + count)]
        number += count
        if what == "map":
            entries = np.arange(number, number + count, dtype=np.int32)
            first = addresses.map(entries)
            live.update(zip(range(first, first + count), entries.tolist(), strict=True))
        elif not all(there):
            with pytest.raises(ApiError, match="invalid-handle"):
                addresses.find_apart(spans, 100)
            with pytest.raises(ApiError, match="invalid-handle"):
                addresses.unmap(spans)
        elif count == 0:
            continue
        elif what == "end":
            assert addresses.unmap(spans).tolist() == [live.pop(at + i) for i in range(count)]
        else:
            hosts = np.arange(number, number + count, dtype=np.int32)
            new = entries_of(hosts) if what == "away" else hosts
            if what == "away":
                assert is_on_host(new).all()
                assert host_pages_of(new).tolist() == hosts.tolist()
                new[0] = EMPTY
                assert not is_on_host(new)[0]
            addresses.set_entries(addresses_of(spans), new)
            live.update(zip(range(at, at + count), new.tolist(), strict=True))
        assert addresses.live == len(live)
        assert addresses.away == sum(entry < 0 for entry in live.values())
        for address, entry in live.items():
            assert addresses.find_entries([address, 1], 1).tolist() == [entry]
            if entry < 0:
                with pytest.raises(ApiError, match="swapped-out: page"):
                    addresses.find_one(address)
                with pytest.raises(ApiError, match="swapped-out: page"):
                    addresses.find([address, 1], 1)
            else:
                assert addresses.find_one(address) == entry
    assert sorted(addresses.unmap_all().tolist()) == sorted(live.values())
    assert addresses.live == addresses.away == 0


def test_the_same_address_twice() -> None:
    addresses = Addresses("page")
    first = addresses.map(np.arange(4, dtype=np.int32))
    twice = [first, 2, first + 1, 1]
    assert addresses.find_entries(twice, 9).tolist() == [0, 1, 1]
    with pytest.raises(ApiError, match="more than once"):
        addresses.find_apart(twice, 9)
    with pytest.raises(ApiError, match="no pairs"):
        addresses.find_apart([first], 9)
    with pytest.raises(ApiError, match="invalid-argument"):
        addresses.find_apart([first, 4], 3)
    for spans in ([first, 2, first + 2, 2], [first, 0] * 4):
        with pytest.raises(ApiError, match="invalid-argument: 4 pages"):
            addresses.find_apart(spans, 3)


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(-4, 4)), max_size=40))
def test_host_pages_are_free_or_held(steps: list[tuple[int, int]]) -> None:
    pool = HostMemory(6, first_name=100)
    instances = [HostPages(pool, 4), HostPages(pool, None)]
    held: list[list[int]] = [[], []]
    for who, count in steps:
        pages, mine = instances[who], held[who]
        if count < 0:
            gone, mine[:] = mine[:-count], mine[-count:]
            pages.release(np.array(gone, np.int32))
        elif who == 0 and len(mine) + count > 4:
            with pytest.raises(ApiError, match="limit-exceeded"):
                pages.allocate(count)
        elif count > pool.free:
            with pytest.raises(ApiError, match="out-of-resources"):
                pages.allocate(count)
        else:
            mine += pages.allocate(count).tolist()
        assert pages.held == len(mine)
        everyone = held[0] + held[1]
        assert len(set(everyone)) == len(everyone) == pool.size - pool.free
