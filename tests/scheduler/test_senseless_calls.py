"""Senseless arguments for offload, adapters and attention: an error each time, and nothing
changes.
"""

from __future__ import annotations

import contextlib
from typing import Any

import hypothesis.strategies as st
from hypothesis import given, settings
from support.rig import adapter, offload
from support.scheduler_fixtures import Guest, Server, refused

from pie_control.api import introspect
from pie_control.errors import ApiError

U32 = st.one_of(st.integers(0, 40), st.integers(0, 2**32 - 1))
LISTS = st.lists(U32, max_size=7)
CALLS = st.one_of(
    st.tuples(
        st.sampled_from([offload.swap_out, offload.swap_in, offload.discard]), st.tuples(LISTS)
    ),
    st.tuples(
        st.just(adapter.forward_with_adapter),
        st.tuples(st.sampled_from(["x", "", "\0", "z" * 5000]), LISTS, LISTS, LISTS, LISTS, LISTS),
    ),
    st.tuples(
        st.just(introspect.forward_with_attention),
        st.tuples(
            LISTS,
            LISTS,
            LISTS,
            LISTS,
            LISTS,
            U32,
            st.sampled_from(["total", "layers", "heads"]),
            st.sampled_from(["", "y", "nobody"]),
        ),
    ),
)


@settings(max_examples=100)
@given(st.lists(CALLS, min_size=1, max_size=12))
def test_errors_and_no_harm(calls: list[tuple[Any, tuple[Any, ...]]]) -> None:
    server = Server(kv_pages=12, host_pages=5, embeds=24)
    neighbour, guest = Guest(server), Guest(server)
    theirs = neighbour.filled(11)
    server.drain()
    guest.filled(20)
    server.drain()
    embeds = guest.embeds(4)
    guest.embed([1, 2, 3, 4], 20, embeds)
    for call, arguments in calls:
        with contextlib.suppress(ApiError):
            call(guest.instance, guest.queue, *arguments)
    server.drain()
    assert neighbour.used(theirs) == [8, 3]
    assert guest.instance.queued_commands == 0
    server.registry.kill(guest.instance, "test")
    stats = server.service.stats()
    assert stats["kv_pages_free"] == 10
    assert stats["host_pages_free"] == 5
    assert stats["embeds_free"] == 24
    server.service.adapters.remove("x")
    server.service.adapters.remove("y")


@given(U32)
def test_futures_that_are_none(handle: int) -> None:
    guest = Guest(Server())
    with refused("invalid-handle"):
        introspect.take_attention(guest.instance, handle)
