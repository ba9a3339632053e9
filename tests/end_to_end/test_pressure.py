"""More programs than pages: those that wait lend theirs, and nobody notices or is ended."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import reference
from support.servers import Server

pytestmark = pytest.mark.slow

PAGES, HOST_PAGES, COUNT = 16, 96, 12
PROMPTS = [random.Random(seed).choices(range(3, 300), k=30 + 5 * seed) for seed in range(3)]


@pytest.fixture(scope="module")
def scarce(checkpoint: Path) -> Iterator[Server]:
    """A server whose pool holds three of these programs."""
    model = {
        "source": str(checkpoint),
        "name": "test",
        "page_size": 16,
        "kv_pages": PAGES,
        "host_pages": HOST_PAGES,
    }
    with Server(models=[model]) as running:
        yield running


def given(number: int, **others: Any) -> str:
    facts = {"tokens": PROMPTS[number % 3], "parts": 3, "count": 8, "seconds": 0.05}
    return json.dumps({**facts, "policy": None, "wait": False, **others})


def stats(server: Server) -> dict[str, Any]:
    with server.client() as client:
        found: dict[str, Any] = client.stats()["test"]
        return found


def test_more_programs_than_fit_all_end_well(
    scarce: Server, guests: Path, checkpoint: Path
) -> None:
    wanted = [reference.greedy(checkpoint, prompt, 24) for prompt in PROMPTS]
    before = stats(scarce)["interception"]["pages_restored"]
    with scarce.client() as client:
        program = client.upload(guests / "paused.py")
        instances = [client.launch(program, [given(n)]) for n in range(COUNT)]
        for number, instance in enumerate(instances):
            assert json.loads(instance.result())["tokens"] == wanted[number % 3]
    after = stats(scarce)
    assert after["interception"]["pages_restored"] > before
    assert after["kv_pages_free"] == PAGES
    assert after["host_pages_free"] == HOST_PAGES


@pytest.mark.parametrize("policy", ["preserve", "discard", "swap", "min-waste", ""])
def test_programs_choose_what_becomes_of_their_pages(
    scarce: Server, guests: Path, checkpoint: Path, policy: str
) -> None:
    with scarce.client() as client:
        program = client.upload(guests / "paused.py")
        instance = client.launch(program, [given(1, policy=policy)])
        found = json.loads(instance.result())
    assert found["tokens"] == reference.greedy(checkpoint, PROMPTS[1], 24)
    if policy in ("preserve", "discard", "swap"):
        assert found["choices"] == [policy, policy]
    assert set(found["choices"]) <= {"preserve", "discard", "swap"}


def test_who_is_ended_while_its_pages_are_away_leaves_none(scarce: Server, guests: Path) -> None:
    with scarce.client() as client:
        program = client.upload(guests / "paused.py")
        waiting = []
        for number in range(6):  # one after the other, so that each finds the others waiting
            text = random.Random(100 + number).choices(range(3, 300), k=40)
            waits = given(0, tokens=text, policy="preserve", wait=True)
            waiting.append(client.launch(program, [waits]))
            assert waiting[-1].receive() == "waiting"
        assert stats(scarce)["interception"]["absent"] > 0
        for instance in waiting[:5]:
            instance.cancel()
        waiting[5].send("go on")
        waiting[5].result()
    after = stats(scarce)
    assert after["kv_pages_free"] == PAGES
    assert after["host_pages_free"] == HOST_PAGES
    assert after["interception"]["absent"] == 0
