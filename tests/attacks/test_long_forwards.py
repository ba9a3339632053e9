"""Long forwards of one user beside the steps of another: by masks, and by keeping nothing."""

from __future__ import annotations

from typing import Any

from support.prompts import Decoder, Timed
from support.scheduler_fixtures import Guest, Server

from pie_control.scheduler.next_plan import share_worker

FACTS: dict[str, Any] = {
    "kv_pages": 1200,
    "embeds": 5000,
    "max_batch_tokens": 2048,
    "max_batch_commands": 64,
}


def timed(**facts: Any) -> Server:
    server = Server(prompt_tokens=512, prompt_ms=50.0, **{**FACTS, **facts})
    server.worker = Timed(server.facts)
    return server


def flood(server: Server, users: int, mask: list[int]) -> list[Guest]:
    """Each of so many instances of mallory has a forward of 1000 inputs that it keeps."""
    guests = []
    for _ in range(users):
        guest = Guest(server, server.launch("mallory"))
        embeds, pages = guest.embeds(1000), guest.pages(125)
        guest.embed([1] * 1000, 0, embeds)
        guest.forward([], embeds, pages, [], mask)
        guests.append(guest)
    return guests


def longest(server: Server, plans: int) -> float:
    """Milliseconds of the longest batch between steps of a bystander, after the first ones."""
    victim = Decoder(server, "victim")
    for _ in range(plans):
        victim.step()
        server.step()
        assert victim.is_right(), "each plan has its step"
        if len(victim.tokens) == 16:
            victim = Decoder(server, "victim")
    assert isinstance(server.worker, Timed)
    return max(server.worker.took[8:])


def test_a_bystander_beside_forwards_with_masks_waits_no_longer_than_the_operator_says() -> None:
    server = timed()
    window = [n for row in range(1000) for n in (3, max(0, row - 9), min(row, 9) + 1, 999 - row)]
    flood(server, 4, window)
    assert longest(server, 200) < 75
    assert server.scheduler.stats()["parts"] > 15


def test_many_small_forwards_take_no_longer_than_the_operator_says() -> None:
    """Each counts as a step, and is not divided: a user has so many in a batch as have time."""
    server = timed(max_batch_commands=512)
    line = [Guest(server, server.launch("mallory")) for _ in range(32)]
    for guest in line:
        embeds = guest.embeds(16)
        guest.embed([1] * 16, 0, embeds)
        for _ in range(64):
            guest.forward([], embeds)
    assert longest(server, 20) < 60
    inputs = [rows for kind, _, rows in server.worker.sizes if kind == "forward"]
    assert min(rows for rows in inputs[8:] if rows > 1) > 700, "and it is used"
    while any(guest.instance.queued_commands for guest in line):
        server.step()
    assert max(rows for kind, _, rows in server.worker.sizes if kind == "forward") > 1000, (
        "a user alone has all of it"
    )


def test_masks_are_not_taken_for_plain_prompts_which_cost_less() -> None:
    server = timed()
    flood(server, 2, [])
    longest(server, 12)
    flood(server, 2, [n for row in range(1000) for n in (3, 0, row + 1, 999 - row)])
    assert longest(server, 40) < 110, "the first part of one; as a plain prompt it would take 130"


def test_prompts_of_another_model_have_no_more_of_the_time_than_steps_under_way() -> None:
    of_victim, of_mallory = timed(), timed()
    share_worker([of_victim.scheduler, of_mallory.scheduler])
    guests = flood(of_mallory, 4, [])
    victim = Decoder(of_victim, "victim")
    while any(guest.instance.queued_commands for guest in guests):
        victim.step()
        assert of_victim.send(), "its next step is at the worker"
        if of_mallory.send():
            of_mallory.deliver()
        of_victim.deliver()
        if len(victim.tokens) == 16:
            victim = Decoder(of_victim, "victim")
    assert isinstance(of_victim.worker, Timed)
    assert isinstance(of_mallory.worker, Timed)
    steps, prompts = sum(of_victim.worker.took), sum(of_mallory.worker.took)
    assert 0.7 * prompts < steps < 1.3 * prompts
    assert max(of_mallory.worker.took[8:]) < 75, "and its parts are as short"
