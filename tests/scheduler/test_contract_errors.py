"""Every error that the contract names for allocate, forward, input-text and output-text."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from support.scheduler_fixtures import Guest, Server, refused, u32

from pie_control.api import allocate, forward, text


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def guest(server: Server) -> Guest:
    return Guest(server)


def snapshot(server: Server, guest: Guest) -> object:
    """All that a refused call must leave as it was."""
    pages, embeds = server.service.pages, server.service.embeds
    return (
        pages.free,
        embeds.free,
        pages.used.tolist(),
        pages.masks.tolist(),
        pages.immutable.tolist(),
        embeds.written.tolist(),
        guest.instance.queued_commands,
        len(guest.instance.futures),
        server.scheduler.stats(),
        server.service.exports.names("ann"),
    )


def test_handles_that_are_not_the_instances_own(server: Server, guest: Guest) -> None:
    other = Guest(server)
    theirs, gone = other.pages(8), guest.pages(1)
    mine, embed = guest.pages(1), guest.embeds(1)
    guest.embed([1], 0, embed)
    allocate.dealloc_kvpage(guest.instance, guest.queue, gone)
    before = snapshot(server, guest)
    for bad in ([99, 1], gone, [mine[0], 2], [0, 1], [1], [*mine, *gone], theirs, [2**32 - 1, 2]):
        calls: tuple[Callable[[], object], ...] = (
            lambda: guest.used(bad),  # noqa: B023
            lambda: guest.forward(bad, embed),  # noqa: B023
            lambda: guest.forward([], embed, bad),  # noqa: B023
            lambda: guest.mask(bad, 0),  # noqa: B023
            lambda: allocate.dealloc_kvpage(guest.instance, guest.queue, bad),  # noqa: B023
            lambda: allocate.export_kvpage(guest.instance, guest.queue, bad, "n", False),  # noqa: B023
        )
        for call in calls:
            with refused("invalid-handle"):
                call()
    for call in (
        lambda: guest.forward([], [embed[0], 2]),
        lambda: guest.forward([], embed, [], [embed[0] + 1, 1]),
        lambda: guest.embed([1, 2], 0, [embed[0], 2]),
        lambda: guest.dist(embed[0] + 1),
        lambda: guest.copy(gone[0], 0, mine[0], 0, 1),
        lambda: guest.copy(mine[0], 0, 99, 0, 1),
        lambda: allocate.dealloc_emb(guest.instance, guest.queue, [embed[0], 1, embed[0], 1]),
        lambda: allocate.alloc_kvpage(guest.instance, 77, 1),
        lambda: allocate.alloc_emb(guest.instance, 77, 1),
        lambda: allocate.dealloc_kvpage(guest.instance, 77, mine),
        lambda: allocate.dealloc_emb(guest.instance, 77, embed),
        lambda: allocate.export_kvpage(guest.instance, 77, mine, "n", False),
        lambda: allocate.import_kvpage(guest.instance, 77, "n"),
        lambda: allocate.list_exports(guest.instance, 77),
        lambda: allocate.release_export(guest.instance, 77, "n"),
        lambda: allocate.copy_kvpage(guest.instance, 77, 1, 0, 1, 0, 1),
        lambda: allocate.kvpage_used(guest.instance, 77, mine),
        lambda: allocate.pool_stats(guest.instance, 77),
        lambda: forward.forward(guest.instance, 77, [], embed, [], [], []),
        lambda: forward.mask_kvpage(guest.instance, 77, mine, u32(0)),
        lambda: text.embed_txt(guest.instance, 77, [1], [0, 1], embed),
        lambda: text.get_next_dist(guest.instance, 77, embed[0], 1),
        lambda: text.take_dist(guest.instance, 77),
    ):
        with refused("invalid-handle"):
            call()
    assert snapshot(server, guest) == before


def test_allocation(server: Server, guest: Guest) -> None:
    limited = Guest(server, kv_pages=3, embeds=2)
    limited.pages(3)
    before = snapshot(server, limited)
    with refused("limit-exceeded"):
        limited.pages(1)
    with refused("limit-exceeded"):
        limited.embeds(3)
    for what in (guest.pages, guest.embeds):
        with refused("invalid-argument"):
            what(0)
        with refused("out-of-resources"):
            what(97)
    assert snapshot(server, limited) == before


def test_forward(server: Server, guest: Guest) -> None:
    pages = guest.filled(12)
    embeds = guest.embeds(30)
    guest.embed([1] * 20, 0, [embeds[0], 20])
    server.drain()
    before = snapshot(server, guest)
    one = [embeds[0], 1]
    with refused("page-full"):
        guest.forward([], [embeds[0], 5], pages)
    with refused("page-full"):
        guest.forward([], one, [pages[0], 0])
    with refused("invalid-argument"):
        guest.forward([], [])
    with refused("invalid-argument"):
        guest.forward([], [embeds[0] + 20, 1])  # nothing was written to it
    with refused("invalid-argument"):
        guest.forward([], one, [], [embeds[0], 2])
    with refused("invalid-argument"):
        guest.forward([], [embeds[0], 2], [], [*one, *one])
    with refused("invalid-argument"):
        guest.forward([], [embeds[0], 5], [pages[0] + 1, 1, pages[0] + 1, 1])
    with refused("limit-exceeded"):
        guest.forward([], [embeds[0], 25])
    columns = 13
    for mask in ([1], [2, 0, 12], [1, columns + 1], [3, 1, 1], [2, 0, columns, 0], [2**32 - 1, 1]):
        with refused("invalid-argument"):
            guest.forward(pages, one, [], [], mask)
    with refused("invalid-argument"):  # one row for two inputs
        guest.forward(pages, [embeds[0], 2], [], [], [2, 0, 14])
    with refused("limit-exceeded"):
        forward.forward(guest.instance, guest.queue, pages, one, [], [], [1] * (1 << 19))
    assert snapshot(server, guest) == before
    guest.forward(pages, one, [], [], [2, 0, columns])


def test_mask(server: Server, guest: Guest) -> None:
    pages = guest.filled(12)
    server.drain()
    before = snapshot(server, guest)
    for words in ([0, 0b10000], [0], [0, 0, 0], [1 << 8, 0], [0, 1 << 31]):
        with refused("invalid-argument"):
            guest.mask(pages, *words)
    with refused("invalid-argument"):
        guest.mask([pages[0], 1, pages[0], 1], 0, 0)
    assert snapshot(server, guest) == before
    guest.mask(pages, 0xFF, 0b1111)
    guest.mask([])


def test_mask_of_a_page_of_32_slots() -> None:
    server = Server(page_size=32, max_batch_tokens=64, embeds=96)
    guest = Guest(server)
    pages = guest.filled(32)
    guest.mask(pages, 0xFFFFFFFF)
    copy = guest.pages(1)
    guest.copy(pages[0], 0, copy[0], 0, 32)
    server.drain()
    assert server.service.pages.masks.tolist().count(0xFFFFFFFF) == 2


def test_copy(server: Server, guest: Guest) -> None:
    pages, target = guest.filled(12), guest.pages(1)
    server.drain()
    first, second = pages[0], pages[0] + 1
    before = snapshot(server, guest)
    for numbers in (
        (first, 0, target[0], 0, 0),
        (first, 1, target[0], 0, 8),
        (second, 3, target[0], 0, 2),
        (first, 0, target[0], 1, 1),
        (first, 2**32 - 1, target[0], 0, 2**32 - 1),
    ):
        with refused("invalid-argument"):
            guest.copy(*numbers)
    with refused("page-full"):
        guest.copy(first, 0, second, 4, 5)
    assert snapshot(server, guest) == before
    guest.copy(first, 0, second, 4, 4)
    assert guest.used(pages) == [8, 8]


def test_embedding(server: Server, guest: Guest) -> None:
    embeds = guest.embeds(2)
    before = snapshot(server, guest)

    def embed(tokens: list[int], positions: list[int], into: list[int]) -> None:
        text.embed_txt(guest.instance, guest.queue, tokens, positions, into)

    for tokens, positions, into in (
        ([1000, 1], [0, 2], embeds),
        ([1, 1000], [0, 2], embeds),
        ([1, 1], [4095, 2], embeds),
        ([1, 1], [2**32 - 1, 1, 0, 1], embeds),
        ([1, 1], [0, 1], embeds),
        ([1, 1], [0], embeds),
        ([1, 1], [0, 3], embeds),
        ([1], [0, 2], embeds),
        ([1, 1], [0, 2], [embeds[0], 1, embeds[0], 1]),
        ([], [], embeds),
    ):
        with refused("invalid-argument"):
            embed(tokens, positions, into)
    assert snapshot(server, guest) == before
    embed([], [], [])
    embed([999, 0], [4095, 1, 0, 1], embeds)


def test_copies_of_embeds(server: Server, guest: Guest) -> None:
    embeds = guest.embeds(30)
    first = embeds[0]
    guest.embed([1] * 24, 0, [first, 24])
    before = snapshot(server, guest)
    for sources, targets, positions in (
        ([first, 2], [first + 24, 1], []),
        ([first, 1], [first + 24, 2], []),
        ([first, 1], [], []),
        ([first, 2], [first + 24, 2], [0, 1]),
        ([first, 2], [first + 24, 2], [0, 3]),
        ([first, 2], [first + 24, 2], [0]),
        ([first, 2], [first + 24, 2], [4095, 2]),
        ([first, 2], [first + 24, 1, first + 24, 1], []),
        ([first + 24, 1], [first, 1], []),  # nothing was written to it
    ):
        with refused("invalid-argument"):
            guest.copy_embeds(sources, targets, positions)
    with refused("limit-exceeded"):
        guest.copy_embeds([first, 25], [first, 25])
    for bad in ([first + 29, 2], [first - 1, 1], [first], [77, 1]):
        with refused("invalid-handle"):
            guest.copy_embeds(bad, bad)
    assert snapshot(server, guest) == before
    guest.copy_embeds([], [])
    guest.copy_embeds([first, 1] * 6, [first + 24, 6], [7, 1] * 6)
    with refused("limit-exceeded"):  # no more commands
        limited = Guest(server, queued_commands=1)
        one = limited.embeds(1)
        limited.embed([1], 0, one)
        limited.copy_embeds(one, one)


def test_distributions(server: Server, guest: Guest) -> None:
    embeds = guest.embeds(2)
    guest.embed([1], 0, [embeds[0], 1])
    before = snapshot(server, guest)
    with refused("invalid-argument"):
        guest.dist(embeds[0], k=0)
    with refused("invalid-argument"):
        guest.dist(embeds[0] + 1)  # holds nothing
    assert snapshot(server, guest) == before
    future = guest.dist(embeds[0], k=10**6)
    with refused("not-ready"):
        guest.take(future)
    server.drain()
    assert len(guest.take(future)) == 1000
    with refused("invalid-handle"):
        guest.take(future)
    mark = guest.sync()
    with refused("invalid-handle"):
        guest.take(mark)


def test_queued_commands_and_futures_are_limited(server: Server) -> None:
    guest = Guest(server, queued_commands=3, futures=2)
    pages, embeds = guest.pages(1), guest.embeds(2)
    guest.embed([1, 1], 0, embeds)
    guest.forward(pages, embeds, pages, embeds)
    guest.dist(embeds[0])
    before = snapshot(server, guest)
    for call in (
        lambda: guest.embed([1, 1], 0, embeds),
        lambda: guest.forward(pages, embeds, pages, embeds),
        lambda: guest.mask(pages, 1),
        lambda: guest.copy(pages[0], 0, pages[0], 1, 1),
        lambda: guest.dist(embeds[0]),
    ):
        with refused("limit-exceeded"):
            call()
    assert snapshot(server, guest) == before
    server.drain()
    guest.sync()
    with refused("limit-exceeded"):
        guest.dist(embeds[0])
    with refused("limit-exceeded"):
        guest.sync()


def test_exports(server: Server, guest: Guest) -> None:
    instance, queue = guest.instance, guest.queue
    pages = guest.filled(12)
    with refused("busy"):
        allocate.export_kvpage(instance, queue, pages, "prompt", False)
    server.send()
    with refused("busy"):  # sent is not done
        allocate.export_kvpage(instance, queue, pages, "prompt", False)
    server.drain()
    before = snapshot(server, guest)
    for name, which in (("", pages), ("x" * 257, pages), ("prompt", [])):
        with refused("invalid-argument"):
            allocate.export_kvpage(instance, queue, which, name, False)
    with refused("limit-exceeded"):
        allocate.export_kvpage(instance, queue, guest.pages(30), "many", False)
    allocate.dealloc_kvpage(instance, queue, [pages[1] + pages[0], 30])
    assert snapshot(server, guest) == before

    allocate.export_kvpage(instance, queue, pages, "prompt", False)
    allocate.export_kvpage(instance, queue, [pages[0], 1], "all", True)
    for name, shared in (("prompt", False), ("all", True)):
        with refused("already-exists"):
            allocate.export_kvpage(instance, queue, pages, name, shared)

    # Immutable for the exporter too, and full pages of it may still stand among the output pages.
    embeds = guest.embeds(1)
    guest.embed([1], 12, embeds)
    with refused("immutable"):
        guest.forward(pages, embeds, pages)
    with refused("immutable"):
        guest.mask([pages[0], 1], 1)
    with refused("immutable"):
        guest.copy(pages[0], 0, pages[0] + 1, 4, 1)
    context = [pages[0], 1, *guest.pages(1)]
    guest.forward(context, embeds, context)
    assert guest.used(context) == [8, 1]

    ben = Guest(server, server.launch("ben"))
    assert allocate.list_exports(ben.instance, ben.queue) == ["all"]
    assert allocate.list_exports(instance, queue) == ["all", "prompt"]
    with refused("not-found"):
        allocate.import_kvpage(ben.instance, ben.queue, "prompt")
    mapped = allocate.import_kvpage(ben.instance, ben.queue, "all")
    assert ben.used(mapped) == [8]
    with refused("immutable"):
        ben.mask(mapped, 1)
    with refused("permission-denied"):
        allocate.release_export(ben.instance, ben.queue, "all")
    with refused("not-found"):
        allocate.release_export(ben.instance, ben.queue, "prompt")
    limited = Guest(server, kv_pages=1)
    with refused("limit-exceeded"):
        allocate.import_kvpage(limited.instance, limited.queue, "prompt")

    # The pages outlive the exporter, and its exports until they are released and unmapped.
    server.drain()
    server.registry.kill(instance, "test")
    assert server.service.pages.free == server.facts.kv_pages - 2
    heir = Guest(server)
    allocate.release_export(heir.instance, heir.queue, "prompt")
    allocate.release_export(heir.instance, heir.queue, "all")
    with refused("not-found"):
        allocate.import_kvpage(heir.instance, heir.queue, "all")
    assert server.service.pages.free == server.facts.kv_pages - 1
    assert ben.used(mapped) == [8]
    with refused("immutable"):
        ben.mask(mapped, 1)
    allocate.dealloc_kvpage(ben.instance, ben.queue, mapped)
    assert server.service.pages.free == server.facts.kv_pages


def test_pool_stats(server: Server, guest: Guest) -> None:
    guest.pages(3)
    guest.embeds(4)
    Guest(server).pages(5)
    assert json.loads(allocate.pool_stats(guest.instance, guest.queue)) == {
        "kv_pages": 48,
        "kv_pages_free": 40,
        "kv_pages_cached": 0,
        "host_pages": 12,
        "host_pages_free": 12,
        "embeds": 96,
        "embeds_free": 92,
        "kv_pages_mine": 3,
        "embeds_mine": 4,
        "host_pages_mine": 0,
    }


def test_a_forward_in_place_names_no_embed_twice(server: Server, guest: Guest) -> None:
    embeds = guest.embeds(2)
    guest.embed([1, 2], 0, embeds)
    first = embeds[0]
    twice = [first, 2, first, 1]
    before = snapshot(server, guest)
    with refused("invalid-argument"):
        guest.forward([], twice, [], twice)
    assert snapshot(server, guest) == before
    guest.forward([], twice)  # as inputs alone it may


def test_a_model_whose_keys_cannot_be_turned_says_so() -> None:
    guest = Guest(Server())
    with refused("unsupported"):
        forward.shift_kvpage(guest.instance, guest.queue, guest.pages(1), 3)
