"""`advise`: programs that ask within a step share its transfers as the policy wants it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.instances import failure
from support.rig import offload
from support.scheduler_fixtures import Guest, Server, refused

from pie_control.api import allocate
from pie_control.wasm.linker import SUSPENDED
from pie_py.config.scheduling import InterceptionConfig

PAGE = 8
SLOW = {  # a step of 20 ms moves some pages only
    "page_bytes": 1 << 16,
    "page_size": PAGE,
    "swap_out": {"seconds": 1e-5, "bytes_per_second": 1 << 25},  # 2 ms a page
    "swap_in": {"seconds": 1e-5, "bytes_per_second": 1 << 25},
    "prefill": {"tokens": [16, 64, 256], "seconds": [1.0, 4.0, 16.0], "fit": [0.9, 0.06, 0]},
    "decode": {"sequences": [1, 8], "seconds": [0.02, 0.02]},
}


@pytest.fixture(autouse=True)
def _half_of_a_step_moves_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """And all of the memory is wanted."""
    monkeypatch.setattr("pie_control.interception.policy_input.LOW_WATER", 1.0)
    monkeypatch.setattr("pie_control.interception.policy_input.SWAP_SHARE", 0.5)


class Waits:
    """Guests with contexts, which wait for tools."""

    def __init__(self, **facts: Any) -> None:
        self.server = Server(
            interception=InterceptionConfig(policy="min-waste"),
            **{
                "kv_costs": SLOW,
                "kv_pages": 64,
                "host_pages": 64,
                "embeds": 400,
                "max_batch_tokens": 256,
                **facts,
            },
        )

    def context(self, pages: int, user: str = "ann") -> tuple[Guest, list[int]]:
        guest = Guest(self.server, self.server.launch(user))
        held = guest.filled(pages * PAGE)
        self.server.drain()
        return guest, held

    def ask(self, context: tuple[Guest, list[int]], seconds: float) -> dict[str, Any]:
        guest, pages = context
        wait = json.dumps({"expected_ns": int(seconds * 1e9)})
        answer: dict[str, Any] = json.loads(
            offload.advise(guest.instance, guest.queue, pages, wait)
        )
        return answer


def test_the_transfers_of_a_step_go_where_most_is_wasted_and_not_to_who_asks_first() -> None:
    made = Waits()
    small, large = made.context(4), made.context(16)
    first = made.ask(large, 1.0)
    assert (first["choice"], first["pages"]) == ("swap", 5), "a step moves so many"
    made.server.clock.seconds += 0.03  # both ask again in the next step
    made.context(1)
    assert made.ask(small, 0.9)["choice"] != "swap", "the large one comes first"
    assert made.ask(large, 0.9)["choice"] == "swap"


def test_who_is_alone_has_the_transfers() -> None:
    made = Waits()
    assert made.ask(made.context(4), 0.9)["choice"] == "swap"


@pytest.mark.parametrize("gone", ["ended", "late", "asks nothing"])
def test_who_waits_no_more_does_not_count(gone: str) -> None:
    made = Waits()
    small, large = made.context(4), made.context(16)
    made.ask(large, 1.0)
    made.server.clock.seconds += 0.03
    made.context(1)
    if gone == "ended":
        made.server.end(large[0].instance)
    elif gone == "late":
        made.server.clock.seconds += 1.0
    else:
        made.ask((large[0], []), 1.0)
    assert made.ask(small, 0.9)["choice"] == "swap"


def test_who_asks_later_than_in_this_step_does_not_count() -> None:
    made = Waits()
    small, large = made.context(4), made.context(16)
    made.ask(large, 10.0)
    made.context(1)
    assert made.ask(small, 0.9)["choice"] == "swap"


def test_the_text_of_a_wait_is_short() -> None:
    """Each field that nobody knows costs an error, and a program may write millions."""
    made = Waits()
    guest, pages = made.context(4)
    many = json.dumps({f"field {number}": 1 for number in range(1000)})
    with failure("invalid-argument", "wait: ", "4096 at most"):
        offload.advise(guest.instance, guest.queue, pages, many)


def test_memory_that_nobody_waits_for_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that could discard asks again within a second, once half of the memory is in use."""
    monkeypatch.setattr("pie_control.interception.policy_input.LOW_WATER", 0.1)
    made = Waits(host_pages=0, kv_pages=32)
    first = made.context(8)
    advice = made.ask(first, 1000.0)
    assert (advice["choice"], advice["seconds"]) == ("preserve", 250.0)
    second = made.context(12)
    advice = made.ask(first, 1000.0)
    assert (advice["choice"], advice["seconds"]) == ("preserve", 1.0)
    waiting = Guest(made.server, made.server.launch("ann"))
    assert allocate.alloc_kvpage(waiting.instance, waiting.queue, 14) is SUSPENDED
    assert made.ask(first, 1000.0)["choice"] == "discard"
    first[0].discard(first[1])
    made.server.drain()
    assert made.ask(second, 1000.0)["choice"] == "preserve", "the first has given enough"


@pytest.mark.parametrize("policy", ["preserve", "cheapest", "swap"])
def test_for_what_no_policy_gives_up_when_it_is_wanted_none_waits(
    monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    monkeypatch.setattr("pie_control.interception.policy_input.LOW_WATER", 0.1)
    made = Waits(host_pages=0, kv_pages=32)
    guest, pages = made.context(20)
    wait = json.dumps({"policy": policy, "expected_ns": 10**6})
    assert json.loads(offload.advise(guest.instance, guest.queue, pages, wait))["pages"] == 0
    guest.instance.turn.awaited = [1]  # its tool
    waiting = Guest(made.server, made.server.launch("ann"))
    with refused("out-of-resources"):
        allocate.alloc_kvpage(waiting.instance, waiting.queue, 14)
