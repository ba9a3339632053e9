"""Calls that are refused: any arguments give a result or an error, and an error changes nothing.

Which arguments give which error, of which function, is said by `tests/conformance/cases`. Here are
those errors that no program on that server can have.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from conformance.test_bad_input import TRAITS
from conformance.wit_strategies import arguments, drawn
from hypothesis import given, settings
from support.rig import host_functions
from support.scheduler_fixtures import Guest, Server, refused

from pie_control.api import allocate, forward
from pie_control.errors import ApiError
from pie_control.wasm.linker import HostFunction
from pie_control.wasm.types import Array

OF_MODELS = (
    *("allocate", "forward", "adapter", "introspect", "offload"),
    *("input-text", "output-text", "sample"),
)
FUNCTIONS = {f.name: f for f in host_functions() if f.interface in OF_MODELS}


def snapshot(server: Server, guest: Guest) -> object:
    """All that a refused call must leave as it was."""
    service = server.service
    pages, embeds = service.pages, service.embeds
    return (
        service.stats(),
        pages.used.tolist(),
        pages.masks.tolist(),
        pages.immutable.tolist(),
        embeds.written.tolist(),
        guest.instance.queued_commands,
        len(guest.instance.futures),
        server.scheduler.stats(),
        service.exports.names("ann"),
    )


def call(guest: Guest, function: HostFunction, values: list[Any]) -> Any:
    """Calls a function of the contract as a Wasm guest does."""
    pairs = zip(function.params, values, strict=True)
    made = [np.array(v, np.uint32) if isinstance(of, Array) else v for of, v in pairs]
    return function.call(guest.instance, *made)


DECLARED = [
    (name, function, TRAITS[interface])
    for interface in OF_MODELS
    for name, function in TRAITS[interface].functions.items()
]
OF_QUEUES = {
    name for name, function, _ in DECLARED if "queue" in [p for p, _ in function.params[:1]]
}
SPAN = st.tuples(st.integers(1, 5), st.integers(0, 2)).map(list)


@st.composite
def likely(draw: st.DrawFn, name: str, function: Any, interface: Any) -> list[Any]:
    """Any arguments, but most lists are short spans of what is live."""
    made = draw(arguments(name, function, interface))
    spans = st.lists(SPAN, min_size=1, max_size=2).map(
        lambda some: [n for one in some for n in one]
    )
    return [draw(spans) if type(v) is list and draw(st.integers(0, 3)) else v for v in made]


CALLS = st.one_of(*(st.tuples(st.just(FUNCTIONS[d[0]]), likely(*d)) for d in DECLARED))


class Scene:
    """An instance for which small numbers are live handles of every kind, and another one."""

    def __init__(self) -> None:
        self.server = Server(kv_pages=12, host_pages=5, embeds=24)
        self.neighbour, self.guest = Guest(self.server), Guest(self.server)
        self.theirs = self.neighbour.filled(11)
        embeds, pages = self.guest.embeds(9), self.guest.pages(4)
        self.guest.embed(list(range(3)), 0, [embeds[0], 3])  # the others hold nothing
        self.guest.forward([], [embeds[0], 3], [pages[0], 2])
        self.guest.forward([], [embeds[0], 3], [pages[0] + 2, 1])
        self.guest.sampler()
        self.server.drain()

    def call(self, function: HostFunction, values: list[Any]) -> None:
        """Calls a function, of a queue that there is: if it is refused, all is as it was."""
        if function.name in OF_QUEUES:
            values = [self.guest.queue, *values[1:]]
        before = snapshot(self.server, self.guest)
        try:
            call(self.guest, function, values)
        except ApiError:
            assert snapshot(self.server, self.guest) == before, function.name

    def close(self) -> None:
        """The other one has what it had, and of the first nothing is left."""
        server = self.server
        server.drain()
        assert self.neighbour.used(self.theirs) == [8, 3]
        assert self.guest.instance.queued_commands == 0
        server.registry.kill(self.guest.instance, "test")
        stats = server.service.stats()
        assert stats["kv_pages_free"] == 10 - server.service.exports.pages
        assert stats["host_pages_free"] == 5
        assert stats["embeds_free"] == 24
        assert stats["samplers_free"] == stats["samplers"]
        freed: list[int] = []
        server.service.adapters.on_free = freed.append
        for name in ("x", "y"):
            server.service.adapters.remove("", name)
        assert sorted(freed) == [0, 1]


@settings(max_examples=30)
@given(st.lists(CALLS, min_size=1, max_size=12))
def test_an_error_changes_nothing(calls: list[tuple[HostFunction, list[Any]]]) -> None:
    scene = Scene()
    for function, values in calls:
        scene.call(function, values)
    scene.close()


@pytest.mark.parametrize("declared", DECLARED, ids=lambda d: d[0])
def test_an_error_of_each_function_changes_nothing(
    declared: tuple[str, Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    name, *_ = declared
    monkeypatch.setattr("pie_control.api.sample.SHORT", 1 << 30)  # all is read at once
    scene = Scene()
    # The first example is the simplest one.
    for values in drawn(st.lists(likely(*declared), min_size=40, max_size=40), 2)[-1]:
        scene.call(FUNCTIONS[name], values)
    scene.close()


@pytest.fixture(scope="module")
def any_guest() -> Guest:
    return Guest(Server())


@pytest.mark.parametrize("declared", [d for d in DECLARED if d[0] in OF_QUEUES], ids=lambda d: d[0])
def test_a_queue_that_there_is_not(any_guest: Guest, declared: tuple[str, Any, Any]) -> None:
    @settings(max_examples=10)
    @given(arguments(*declared))
    def check(values: list[Any]) -> None:
        with refused("invalid-handle"):
            call(any_guest, FUNCTIONS[declared[0]], [any_guest.queue + 1, *values[1:]])

    check()


@pytest.mark.parametrize(
    "what",
    [
        lambda guest, pages, embeds: guest.embed([1, 1], 0, embeds),
        lambda guest, pages, embeds: guest.forward(pages, embeds, pages, embeds),
        lambda guest, pages, embeds: guest.mask(pages, 1),
        lambda guest, pages, embeds: guest.copy(pages[0], 0, pages[0], 1, 1),
        lambda guest, pages, embeds: guest.copy_embeds(embeds, embeds),
        lambda guest, pages, embeds: guest.dist(embeds[0]),
    ],
)
def test_queued_commands_are_limited(
    server: Server, what: Callable[[Guest, list[int], list[int]], object]
) -> None:
    guest = Guest(server, queued_commands=3)
    pages, embeds = guest.pages(1), guest.embeds(2)
    guest.embed([1, 1], 0, embeds)
    guest.forward(pages, embeds, pages, embeds)
    guest.dist(embeds[0])
    before = snapshot(server, guest)
    with refused("limit-exceeded"):
        what(guest, pages, embeds)
    assert snapshot(server, guest) == before


def test_futures_are_limited(server: Server) -> None:
    guest = Guest(server, futures=2)
    embeds = guest.embeds(2)
    guest.embed([1, 1], 0, embeds)
    guest.sync()
    guest.dist(embeds[0])
    with refused("limit-exceeded"):
        guest.dist(embeds[0])
    with refused("limit-exceeded"):
        guest.sync()


def test_pages_and_embeds_of_an_instance_are_limited(server: Server) -> None:
    guest = Guest(server, kv_pages=3, embeds=2)
    guest.pages(3)
    before = snapshot(server, guest)
    with refused("limit-exceeded"):
        guest.pages(1)
    with refused("limit-exceeded"):
        guest.embeds(3)
    assert snapshot(server, guest) == before


def test_a_mask_of_a_page_of_32_slots() -> None:
    server = Server(page_size=32, max_batch_tokens=64, embeds=96)
    guest = Guest(server)
    pages = guest.filled(32)
    guest.mask(pages, 0xFFFFFFFF)
    copy = guest.pages(1)
    guest.copy(pages[0], 0, copy[0], 0, 32)
    server.drain()
    assert server.service.pages.masks.tolist().count(0xFFFFFFFF) == 2


def test_a_mask_of_too_many_numbers(guest: Guest) -> None:
    pages, embed = guest.filled(12), guest.embeds(1)
    guest.embed([1], 12, embed)
    with refused("limit-exceeded"):
        guest.forward(pages, embed, mask=[1] * (1 << 19))


def test_exports_of_other_users_and_of_too_many_pages(server: Server, guest: Guest) -> None:
    instance, queue = guest.instance, guest.queue
    pages = guest.filled(12)
    server.send()
    with refused("busy"):  # sent is not done
        allocate.export_kvpage(instance, queue, pages, "prompt", False)
    server.drain()
    with refused("limit-exceeded"):
        allocate.export_kvpage(instance, queue, guest.pages(30), "many", False)
    allocate.export_kvpage(instance, queue, pages, "prompt", False)
    allocate.export_kvpage(instance, queue, [pages[0], 1], "all", True)
    ben = Guest(server, server.launch("ben"))
    assert allocate.list_exports(*ben.at) == ["all"]
    assert allocate.list_exports(instance, queue) == ["all", "prompt"]
    for use in (allocate.import_kvpage, allocate.release_export):
        with refused("not-found"):
            use(*ben.at, "prompt")
    with refused("permission-denied"):
        allocate.release_export(*ben.at, "all")
    limited = Guest(server, kv_pages=1)
    with refused("limit-exceeded"):
        allocate.import_kvpage(*limited.at, "prompt")


def test_a_forward_in_place_names_no_embed_twice(server: Server, guest: Guest) -> None:
    embeds = guest.embeds(2)
    guest.embed([1, 2], 0, embeds)
    twice = [embeds[0], 2, embeds[0], 1]
    with refused("invalid-argument"):
        guest.forward([], twice, [], twice)
    guest.forward([], twice)  # as inputs alone it may


def test_a_model_whose_keys_cannot_be_turned_says_so(guest: Guest) -> None:
    with refused("unsupported"):
        forward.shift_kvpage(*guest.at, guest.pages(1), 3)
