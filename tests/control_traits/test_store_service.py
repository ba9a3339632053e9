"""The store's futures: order, turns, what is given up, and how much may wait."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio
from support.instances import failure, is_ready, take, until_ready, with_store
from support.rig import Rig, store

from pie_control.errors import ApiError
from pie_control.instances.instance import Instance


@asynccontextmanager
async def running(path: Path, **config: Any) -> AsyncIterator[Rig]:
    instances = with_store(path, **config)
    async with trio.open_nursery() as nursery:
        await nursery.start(instances.parts.store.run)
        yield instances
        nursery.cancel_scope.cancel()


async def result(instance: Instance, handle: int) -> Any:
    await until_ready(instance, handle)
    try:
        return take(instance, handle)
    except ApiError as error:
        return error.code


async def test_operations_take_effect_in_the_order_of_the_calls(tmp_path: Path) -> None:
    async with running(tmp_path) as instances:
        one, two = instances.launch(), instances.launch()
        calls = []
        for n in range(600):  # more than a batch
            calls.append((n, store.store_set(one, "n", b"%d" % n), store.store_get(two, "n")))
        for n, written, read in calls:
            assert await result(one, written) is None
            assert await result(two, read) == b"%d" % n
        assert await result(one, store.store_get(one, "x")) == "not-found"
        assert await result(one, store.store_delete(one, "x")) is None
        bob = instances.launch("bob")
        assert await result(bob, store.store_get(bob, "n")) == "not-found"


async def test_users_take_turns(tmp_path: Path) -> None:
    async with running(tmp_path) as instances:
        ann, bob = instances.launch("ann"), instances.launch("bob")
        many = [store.store_set(ann, str(n), b"") for n in range(2000)]
        assert await result(bob, store.store_set(bob, "k", b"")) is None
        assert not is_ready(ann, many[-1])


async def test_what_is_given_up_before_it_begins_does_not_happen(tmp_path: Path) -> None:
    async with running(tmp_path) as instances:
        one, other = instances.launch(), instances.launch()
        one.futures.cancel(store.store_set(one, "a", b"1"))
        store.store_set(one, "b", b"1")
        instances.end(one)
        listed = store.store_list(other, "", "", 10)
        assert await result(other, listed) == []
        assert not instances.parts.store._held


async def test_bytes_that_wait_are_bounded(tmp_path: Path) -> None:
    async with running(tmp_path, waiting_bytes=2500, value_bytes=2000) as instances:
        one = instances.launch()
        sets = [store.store_set(one, key, b"x" * 2000) for key in "ab"]
        with failure("would-block", "4258 bytes", "store-room"):
            store.store_set(one, "c", b"")
        assert len(one.futures) == len(sets)
        with failure("limit-exceeded", "2001"):
            store.store_set(one, "c", b"x" * 2001)
        rooms = [store.store_room(one) for _ in range(3)]
        assert not is_ready(one, rooms[0])
        one.futures.cancel(rooms[2])
        for handle in (*sets, *rooms[:2]):
            assert await result(one, handle) is None
        reads = [store.store_get(one, key) for key in "abab"]
        await until_ready(one, reads[3])
        room = store.store_room(one)
        assert not is_ready(one, room)
        values = [await result(one, handle) for handle in reads]
        assert values == [b"x" * 2000] * 2 + ["would-block"] * 2
        assert is_ready(one, room)
        store.store_get(one, "a")
        instances.end(one)
        assert not instances.parts.store._held
        assert not instances.parts.store._waiting


async def test_keys_that_wait_are_bounded_as_values_are(tmp_path: Path) -> None:
    async with running(tmp_path, waiting_bytes=20_000) as instances:
        calls: tuple[Callable[[Any, list[str]], object], ...] = (
            lambda one, keys: store.store_commit(one, [], keys, [], []),
            lambda one, keys: store.store_commit(one, [], [], [], keys),
            lambda one, keys: store.store_commit(one, [(key, b"") for key in keys], [], [], []),
        )
        for call in calls:
            one = instances.launch()
            call(one, ["k" * 1000 + str(i) for i in range(20)])
            with failure("would-block"):
                store.store_get(one, "k")
        one = instances.launch()
        for _ in range(313):
            store.store_get(one, "k")
        with failure("would-block"):
            store.store_get(one, "k")
        instances.end(one)


async def test_wrong_arguments_open_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as instances:
        one = instances.launch()
        for key in ("", "x" * 1025, "é" * 513):
            calls: tuple[Callable[[str], object], ...] = (
                lambda k: store.store_get(one, k),
                lambda k: store.store_delete(one, k),
                lambda k: store.store_set(one, k, b""),
                lambda k: store.store_commit(one, [(k, b"")], [], [], []),
                lambda k: store.store_commit(one, [], [k], [], []),
            )
            for call in calls:
                with failure("invalid-argument", "1024"):
                    call(key)
        with failure("invalid-argument", "twice"):
            store.store_commit(one, [], [], [("a", b"")], ["a"])
        with failure("invalid-argument", "twice"):
            store.store_commit(one, [("a", b"")], ["a"], [], [])
        with failure("limit-exceeded", "1001 keys"):
            store.store_commit(one, [], [], [], [str(n) for n in range(1001)])
        for limit in (0, 1001):
            with failure("invalid-argument", "1000"):
                store.store_list(one, "", "", limit)
        with failure("invalid-argument"):
            store.store_list(one, "x" * 1025, "", 1)
        assert len(one.futures) == 0
        assert await result(one, store.store_commit(one, [], [], [], [])) is None
