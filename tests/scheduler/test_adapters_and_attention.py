"""Adapters and observed forwards through the scheduler: names, users, errors."""

from __future__ import annotations

import pytest
from support.fake_worker import adapted, attention, distribution, embedded, run_forward
from support.rig import adapter, runtime
from support.scheduler_fixtures import Guest, Server, refused

from pie_control.errors import ApiError
from pie_control.models.adapters import MAX_ADAPTERS, Adapters
from pie_py.wire.plan import DETAILS


def asked(guest: Guest, name: str | None) -> int:
    embed, out = guest.embeds(1), guest.embeds(1)
    guest.embed([9], 0, embed)
    if name is None:
        guest.forward([], embed, [], out)
    else:
        guest.forward_with(name, [], embed, [], out)
    return guest.dist(out[0])


def test_adapters_and_none_run_in_one_batch(server: Server) -> None:
    guests = [Guest(server) for _ in range(3)]
    futures = [asked(guest, name) for guest, name in zip(guests, ("y", None, "x"), strict=True)]
    server.drain()
    assert [s for s in server.worker.sizes if s[0] == "forward"] == [("forward", 3, 3)]
    plain = run_forward([(embedded(9), 0)], [], [])
    for guest, future, slot in zip(guests, futures, (1, -1, 0), strict=True):
        assert guest.take(future) == distribution(adapted(plain, slot)[0], 3, 1000)


def test_names_and_traits() -> None:
    server = Server(adapters=["b", "a"])
    guest = Guest(server)
    assert adapter.available_adapters(guest.instance, "symbolic") == ["a", "b"]
    with refused("unknown-model"):
        adapter.available_adapters(guest.instance, "none")
    embed = guest.embeds(1)
    guest.embed([1], 0, embed)
    with pytest.raises(ApiError, match=r"not-found: .*no adapter 'c' loaded; there are: a, b"):
        guest.forward_with("c", [], embed)
    plain = Guest(Server(traits=[]))
    with pytest.raises(ApiError, match=r"unsupported: model 'symbolic' .* trait `adapter`"):
        adapter.available_adapters(plain.instance, "symbolic")
    with refused("unsupported"):
        plain.forward_with("x", [], [])
    with pytest.raises(ApiError, match=r"unsupported: model 'symbolic' .* trait `introspect`"):
        plain.observe([], [])


def test_an_adapter_in_use_stays_until_the_last_leaves(server: Server) -> None:
    guest, other, late = Guest(server), Guest(server), Guest(server)
    adapters, freed = server.service.adapters, list[int]()
    adapters.on_free = freed.append
    for each in (guest, other):
        asked(each, "x")
    adapters.remove("", "x")
    assert adapters.names() == ["y"]
    with refused("not-found"):
        asked(late, "x")
    asked(guest, "x")
    server.registry.kill(guest.instance, "test")
    assert freed == []
    server.registry.kill(other.instance, "test")
    assert freed == [0]
    with refused("not-found"):
        adapters.remove("", "x")


def test_an_instance_stays_with_its_version_and_others_have_the_newest(server: Server) -> None:
    guests = [Guest(server) for _ in range(3)]
    adapters, freed = server.service.adapters, list[int]()
    adapters.on_free, user = freed.append, guests[0].instance.user

    def versions() -> list[str]:
        return [adapters.find("own", guest.instance).version for guest in guests]

    for each, version in zip(guests, "123", strict=True):
        assert adapters.reserve(user, "own") == int(version) + 1
        with refused("busy"):
            adapters.reserve(user, "own")
        adapters.add((user, "own"), version)
        assert adapters.find("own", each.instance).version == version
        asked(each, "own")
    assert versions() == ["1", "2", "3"]
    assert adapters.count_of(user) == 3
    adapters.remove(user, "own")
    assert versions() == ["1", "2", "3"]
    server.registry.kill(guests[1].instance, "test")
    assert freed == [3]
    assert adapters.reserve("another", "own") == 3
    adapters.add(("another", "own"), "4")
    assert adapters.names() == ["x", "y"]
    assert adapters.names("another") == ["own", "x", "y"]
    with refused("not-found"):
        adapters.find("own", Guest(server).instance)
    with refused("already-exists"):
        adapters.reserve("another", "x")


def test_a_refused_forward_uses_nothing(server: Server, guest: Guest) -> None:
    freed: list[int] = []
    server.service.adapters.on_free = freed.append
    with refused("invalid-argument"):
        guest.forward_with("x", [], [])
    server.service.adapters.remove("", "x")
    assert freed == [0]


def test_slots_are_reserved_and_given_again() -> None:
    adapters = Adapters("m", ["a"])
    assert adapters.reserve("", "b") == 1
    assert adapters.reserve("", "c") == 2
    for name, error in (("a", "already-exists"), ("b", "busy")):
        with refused(error):
            adapters.reserve("", name)
    adapters.give_up(("", "b"))
    assert adapters.reserve("", "d") == 1
    adapters.add(("", "d"), "")
    adapters.add(("", "c"), "")
    assert adapters.names() == ["a", "c", "d"]
    for name in ("", "a b", "ä", "x" * 65, "../x"):
        with refused("invalid-argument"):
            adapters.reserve("", name)
    for i in range(MAX_ADAPTERS - 3):
        adapters.reserve("", f"n{i}")
    with refused("limit-exceeded"):
        adapters.reserve("", "more")


def test_attention_comes_with_the_forward(server: Server) -> None:
    guest, quiet = Guest(server), Guest(server)
    pages = guest.filled(11)
    embeds = guest.embeds(3)
    guest.embed([1, 2, 3], 11, embeds)
    futures = [
        guest.observe(pages, embeds, observed=2, detail=detail)
        for detail in ("total", "layers", "heads")
    ]
    other = asked(quiet, None)
    server.drain()
    assert len(quiet.take(other)) == 3
    for future, rows in zip(futures, (1, 2, 6), strict=True):
        assert guest.take_attention(future) == (rows, attention(14, 2, rows))
    with refused("invalid-handle"):
        guest.take_attention(futures[0])


def test_attention_through_an_adapter(server: Server, guest: Guest) -> None:
    pages, embeds = guest.pages(1), guest.embeds(2)
    guest.embed([1, 2], 0, embeds)
    future = guest.observe([], embeds, pages, adapter="y")
    again = guest.observe(pages, [embeds[0], 1])
    server.drain()
    assert guest.take_attention(future) == (1, attention(2, 1, 1))
    assert guest.take_attention(again) == (1, attention(3, 1, 1))
    kept = run_forward([(embedded(1), 0), (embedded(2), 1)], [], [], 1)
    assert [slot.value for slot in server.worker.slots[:2]] == kept
    with refused("not-found"):
        guest.observe([], embeds, adapter="z")


def test_what_cannot_be_observed_changes_nothing() -> None:
    server = Server(heads=1 << 18)
    guest = Guest(server)
    pages, embeds = guest.pages(1), guest.embeds(2)
    guest.embed([1, 2], 0, embeds)
    for observed in (0, 3, 2**32 - 1):
        with refused("invalid-argument"):
            guest.observe([], embeds, pages, observed=observed)
    with refused("limit-exceeded"):
        guest.observe([], embeds, pages, detail="heads")
    assert guest.used(pages) == [0]
    tight = Guest(server, futures=1)
    embed = tight.embeds(1)
    tight.embed([1], 0, embed)
    first = tight.observe([], embed)
    with refused("limit-exceeded"):
        tight.observe([], embed)
    runtime.cancel(tight.instance, first)
    server.drain()
    assert DETAILS == ("total", "layers", "heads")


def test_a_failed_forward_fails_its_attention(server: Server, guest: Guest) -> None:
    embed = guest.embeds(1)
    guest.embed([1], 0, embed)
    server.drain()
    server.worker.fail_kinds.add("forward")
    first = guest.observe([], embed)
    server.send()
    second = guest.observe([], embed)
    server.drain()
    with refused("internal"):
        guest.take_attention(first)
    with refused("failed-dependency"):
        guest.take_attention(second)
    server.scheduler.fail_all("gone")
    third = guest.observe([], embed)
    with refused("worker-lost"):
        guest.take_attention(third)
