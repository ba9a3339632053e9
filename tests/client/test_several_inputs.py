"""`client.map`: an instance gets several inputs, and one of them costs the others nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any
from unittest.mock import AsyncMock

import pytest
from support.servers import Server

from pie_py.client import Client, InferletFailed, RpcError, sync
from pie_py.testing.script import Line

BEFORE: list[str] = []  # of an instance: what it was asked


@pytest.fixture(scope="module")
def client() -> Iterator[sync.Client]:
    lines, limits = [Line("a mouse in the house")], {"cpu_seconds": 2.0}
    with Server(replays=lines, limits=limits) as server, server.client() as connected:
        yield connected


def ended(client: sync.Client, name: str) -> list[str]:
    """How the instances of a function have ended."""
    found = client.instances(ended=True)
    return [each["state"] for each in found if each["program"] == f"function-{name}"]


async def waits(number: int) -> int:
    await asyncio.sleep(0.2)
    return number


def test_an_instance_gets_several_inputs_at_once(client: sync.Client) -> None:
    assert client.map(waits, range(60), at_once=30) == [*range(60)]
    assert ended(client, "waits") == ["finished"] * 2  # of 16 and 14 inputs at once


async def leaves(number: int) -> int:
    async def task() -> None:
        await asyncio.sleep(0)
        raise SystemExit(3)

    await asyncio.sleep(0.01)
    if number == 5:
        await asyncio.gather(task())
    await asyncio.sleep(0.1)
    return number


def test_an_input_that_ends_its_instance_leaves_the_others(client: sync.Client) -> None:
    found = client.map(leaves, range(12), return_exceptions=True)
    assert isinstance(found[5], InferletFailed)
    assert "SystemExit" in str(found[5])
    assert [*found[:5], *found[6:]] == [n for n in range(12) if n != 5]


def fills(size: int) -> int:
    return len(bytearray(size))


def test_an_input_that_fills_the_memory_leaves_the_others(client: sync.Client) -> None:
    found = client.map(fills, [10, 1 << 30, 20], at_once=1, return_exceptions=True)
    assert (found[0], found[2]) == (10, 20)
    assert isinstance(found[1], MemoryError)


async def computes(number: int) -> int:
    for _ in range(6_000):  # some 0.2 s of a CPU: to a guest its clock goes on while others run
        sum(range(1000))
    await asyncio.sleep(0)
    return number


@pytest.mark.parametrize("is_found", [True, False], ids=["found", "not found"])
def test_another_instance_goes_on_before_the_limit_of_cpu_time(
    client: sync.Client, monkeypatch: pytest.MonkeyPatch, is_found: bool
) -> None:
    """One that has ended before it is looked at gets no more either."""
    if not is_found:
        gone = AsyncMock(side_effect=RpcError("not-found", "it has ended"))
        monkeypatch.setattr(Client, "inspect", gone)
    assert client.map(computes, range(10), at_once=1) == [*range(10)]
    states = ended(client, "computes")
    assert len(states) > 1
    assert set(states) == {"finished"}  # none has reached its limit


def number_of(text: str) -> int:
    BEFORE.append(text)
    return len(BEFORE)


def test_inputs_that_begin_alike_go_together(client: sync.Client) -> None:
    texts = ["b 1", "a 1", "b 2", "a 2"]
    assert client.map(number_of, texts, at_once=1) == [3, 1, 4, 2]


@pytest.mark.parametrize("at_once", [0, -1])
def test_inputs_of_which_none_may_be_under_way_are_an_error(
    client: sync.Client, at_once: int
) -> None:
    with pytest.raises(ValueError, match=f"at_once={at_once}: .* give 1 or more"):
        client.map(waits, [1, 2], at_once=at_once)


def test_a_bar_is_shown_to_who_asks_for_it(
    client: sync.Client, capsys: pytest.CaptureFixture[str]
) -> None:
    for progress in (False, True):
        assert client.map(waits, [1, 2], progress=progress) == [1, 2]
        assert ("2/2" in capsys.readouterr().err) == progress


def test_an_input_that_is_too_large_is_its_own_error(client: sync.Client) -> None:
    found = client.map(lambda text: len(text), ["x", "y" * (3 << 20), "zz"], return_exceptions=True)
    assert (found[0], found[2]) == (1, 2)
    assert "limit-exceeded" in str(found[1])


async def named(number: int) -> int:
    return number


def test_an_instance_that_cannot_begin_costs_nothing_once_others_have_all_inputs(
    client: sync.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch, begun = Client.launch, 0

    async def second_refused(self: Client, *args: Any, **options: Any) -> Any:
        nonlocal begun
        begun += 1
        if begun < 2:
            return await launch(self, *args, **options)
        done = False
        while not done:
            found = await self.instances(ended=True)
            done = ("function-named", "finished") in [
                (one["program"], one["state"]) for one in found
            ]
        raise RpcError("limit-exceeded", "of instances")

    monkeypatch.setattr(Client, "launch", second_refused)
    assert client.map(named, range(17)) == [*range(17)]
    assert begun == 2
