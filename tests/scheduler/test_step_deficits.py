"""How the worker's time is divided between steps of a user and longer forwards of others."""

from __future__ import annotations

import math
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from support.prompts import Decoder, Timed, forwards
from support.rig import runtime
from support.scheduler_fixtures import Guest, Server

from pie_control.api import allocate
from pie_py.config.quotas import Quota

FACTS: dict[str, Any] = {
    "kv_pages": 1400,
    "embeds": 11_000,
    "max_batch_tokens": 2048,
    "max_batch_commands": 100,
}
MS = 1000.0  # of the worker's time, in a test
STEP = 4.0  # milliseconds, of the worker in these tests


def quota(weight: float = 1.0, priority: int = 0) -> Quota:
    return Quota(weight=weight, priority=priority, share=1.0, launches=math.inf)


class Flood:
    """Guests of a user who always have forwards of so many inputs."""

    def __init__(self, server: Server, user: str, inputs: int, guests: int, rank: int = 0) -> None:
        self.inputs = inputs
        self.guests = [Guest(server, server.launch(user)) for _ in range(guests)]
        for guest in self.guests:
            if rank:
                runtime.set_queue_priority(guest.instance, guest.queue, rank)

    def go_on(self) -> None:
        for guest in self.guests:
            if guest.instance.queued_commands:
                continue
            pages, embeds = guest.pages(-(-self.inputs // 8)), guest.embeds(self.inputs)
            guest.embed([1] * self.inputs, 0, embeds)
            guest.forward([], embeds, pages)
            allocate.dealloc_kvpage(guest.instance, guest.queue, pages)
            allocate.dealloc_emb(guest.instance, guest.queue, embeds)


class Stepper:
    """A user who takes one step after the other, on one instance or several."""

    def __init__(self, server: Server, user: str, count: int = 1) -> None:
        self.server, self.user = server, user
        self.decoders = [Decoder(server, user) for _ in range(count)]

    def go_on(self) -> None:
        for at, decoder in enumerate(self.decoders):
            if len(decoder.tokens) == 16:
                assert decoder.is_right()
                self.server.end(decoder.guest.instance)
                decoder = self.decoders[at] = Decoder(self.server, self.user)
            if not decoder.guest.instance.queued_commands:
                decoder.step()


def part_of(stepper: Stepper, floods: list[Flood], server: Server) -> float:
    """The part of the worker's time that a user's steps have had, besides those of others.

    That is all of a batch which has them alone, and of others what the steps take.
    """
    server.worker = worker = Timed(server.facts)
    worker.steps = STEP
    for _ in range(12):
        stepper.go_on()
        server.step()
    had = whole = 0.0
    while whole < MS:
        stepper.go_on()
        for flood in floods:
            flood.go_on()
        assert server.step()
        took = worker.took[-1]
        whole += took
        had += took if forwards(server)[-1][1] <= len(stepper.decoders) else STEP
    return had / whole


def limited(**quotas: Quota) -> Server:
    return Server(prompt_tokens=512, prompt_ms=50.0, quota=quota(), quotas=quotas, **FACTS)


@pytest.mark.parametrize(("inputs", "guests"), [(16, 60), (600, 8)], ids=["small", "long"])
def test_two_users_have_half_of_the_time_each(inputs: int, guests: int) -> None:
    server = limited()
    flood = Flood(server, "mallory", inputs, guests)
    assert 0.42 < part_of(Stepper(server, "victim"), [flood], server) < 0.55


@given(
    others=st.integers(1, 4),
    weight=st.sampled_from([0.5, 1.0, 2.0, 4.0]),
    inputs=st.sampled_from([12, 600]),
    steppers=st.integers(1, 3),
)
@settings(max_examples=12, deadline=None)
def test_steps_have_their_part(others: int, weight: float, inputs: int, steppers: int) -> None:
    """However many others there are, and whatever they send; they have the rest."""
    server = limited(victim=quota(weight))
    floods = [
        Flood(server, f"m{number}", inputs, 3 if inputs == 600 else 12) for number in range(others)
    ]
    part = weight / (weight + others)
    had = part_of(Stepper(server, "victim", steppers), floods, server)
    assert had > part - 0.12
    if inputs == 600:
        assert had < max(part, STEP / 50) + 0.08


def test_steps_of_one_input_are_shared_however_many_there_are() -> None:
    server = limited()
    many, one = Stepper(server, "mallory", 20), Stepper(server, "victim")
    part_of(one, [Flood(server, "eve", 600, 4)], server)
    server.drain()
    for _ in range(50):
        many.go_on()
        one.go_on()
        server.step()
        assert forwards(server)[-1] == (21, 21)


def test_what_the_operator_lets_go_first_does_not_wait() -> None:
    server = limited(boss=quota(priority=1))
    flood = Flood(server, "boss", 600, 4, rank=1)
    assert part_of(Stepper(server, "victim"), [flood], server) < 2 * STEP / 50


def test_others_have_the_whole_time_once_there_are_no_steps() -> None:
    server = limited()
    stepper, flood = Stepper(server, "victim"), Flood(server, "mallory", 600, 4)
    part_of(stepper, [flood], server)
    server.drain()
    for _ in range(10):
        flood.go_on()
        assert server.step()
        assert forwards(server)[-1][1] > 16


def test_who_ran_ahead_when_he_was_alone_repays_who_comes_later() -> None:
    server = limited()
    server.worker = worker = Timed(server.facts)
    worker.steps = STEP
    stepper, flood = Stepper(server, "stepper"), Flood(server, "mallory", 600, 4)
    while not 0.02 < lacks(server, "stepper") < 0.05 or len(stepper.decoders[0].tokens) > 9:
        stepper.go_on()
        flood.go_on()
        server.step()
    stepper.go_on()
    flood.go_on()
    stepper.decoders[0].step()
    server.send()  # with a part of the other one's prompts
    for guest in flood.guests:
        server.end(guest.instance)
    server.send()  # the step after it is alone
    server.deliver()
    server.deliver()
    later, whole = Flood(server, "victim", 600, 1), 0.0
    while forwards(server)[-1][1] == 1:
        stepper.go_on()
        later.go_on()
        server.step()
        whole += worker.took[-1]
        assert whole < MS, "the later one waits for ever"


def lacks(server: Server, user: str) -> float:
    """Seconds that a user lacks."""
    deficit = server.scheduler._in_flight._deficits._users.get(user)
    return 0.0 if deficit is None else deficit.seconds
