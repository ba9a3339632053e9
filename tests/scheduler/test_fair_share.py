"""How the worker's time is divided between steps of a user and longer forwards of others."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any, cast

import hypothesis.strategies as st
from hypothesis import given, settings
from support.prompts import Decoder, Timed, forwards
from support.rig import runtime
from support.scheduler_fixtures import Guest, Server

from pie_control.scheduler.commands.command import NOTHING, Account, CommandQueue
from pie_control.scheduler.commands.forward import ForwardCommand
from pie_control.scheduler.fair_share import FairShare
from pie_py.config.limits import Quota

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
                runtime.set_queue_priority(*guest.at, rank)

    def go_on(self) -> None:
        for guest in self.guests:
            guest.flood(self.inputs)


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


def test_a_users_own_steps_do_not_make_his_prompts_wait_for_ever() -> None:
    """He shares the other one's steps whether his prompts run or wait."""
    server = limited()
    flood, steps = Flood(server, "mallory", 600, 8), Stepper(server, "mallory", 3)
    victim = Stepper(server, "victim")
    server.worker = worker = Timed(server.facts)
    worker.steps = STEP
    prompts = whole = 0.0
    while whole < MS:
        for each in (victim, steps, flood):
            each.go_on()
        assert server.step()
        whole += worker.took[-1]
        prompts += worker.took[-1] - STEP
    assert 0.4 < prompts / whole < 0.6


BOUND, SHORT, STEP_SECONDS, INPUT_SECONDS = 0.05, 16, 0.004, 0.0005
QUEUES: dict[str, CommandQueue] = {}


def command(user: str, inputs: int) -> ForwardCommand:
    """A forward of a user."""
    owner = cast(Any, SimpleNamespace(user=user))
    made = ForwardCommand([0] * inputs, NOTHING, NOTHING, False, None, [], [], None)
    made.queue = QUEUES.setdefault(user, CommandQueue(Account(owner, 0), len(QUEUES)))
    return made


def run(shares: FairShare, forwards: list[ForwardCommand], running: set[str]) -> float:
    """The worker runs a batch; seconds that it takes."""
    extra = sum(len(each.inputs) - 1 for each in forwards)
    step = STEP_SECONDS if running else 0.0
    shares.took(forwards, lambda: running, step + INPUT_SECONDS * extra, step)
    return step + INPUT_SECONDS * extra


@given(
    weights=st.lists(st.sampled_from([0.5, 1.0, 2.0, 4.0]), min_size=2, max_size=6),
    steppers=st.integers(1, 3),
    rounds=st.lists(st.integers(17, 300), min_size=30, max_size=200),
)
@settings(max_examples=60, deadline=None)
def test_no_user_who_always_has_work_falls_behind(
    weights: list[float], steppers: int, rounds: list[int]
) -> None:
    """The bound of start-time fair queueing: of users who all have work none is ahead of one with
    steps by more than the bound and a batch, nor of one with prompts by more than a batch.

    A user with steps may be ahead: his steps keep nothing waiting.
    """
    users = [f"u{number}" for number in range(len(weights))]
    weight = dict(zip(users, weights, strict=True))
    shares = FairShare(BOUND, SHORT, weight.__getitem__)
    steps, others = set(users[:steppers]), users[steppers:]
    longest = 0.0
    for inputs in rounds:
        forwards = shares.without_waiting([command(user, inputs) for user in others], steps)
        forwards.sort(key=lambda each: shares.start_of(each.queue.owner.user))
        longest = max(longest, run(shares, forwards[:1], steps))
        times = [shares.start_of(user) for user in others] or [0.0]
        batch = longest / min(weights) + 1e-9
        lacking = min(shares.start_of(user) + BOUND / weight[user] for user in steps)
        assert max(times) <= lacking + batch
        assert max(times) - min(times) <= 2 * batch


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 0.2)), max_size=60))
def test_virtual_times_are_what_users_have_had_since_they_came(
    batches: list[tuple[str, float]],
) -> None:
    """The same by definition: of one user in each batch, nothing is forgotten."""
    shares = FairShare(BOUND, SHORT, lambda user: 2.0 if user == "a" else 1.0)
    served: dict[str, float] = {}
    now = 0.0
    for user, seconds in batches:
        start = max(served.get(user, 0.0), now - BOUND)
        now = max(now, start)
        served[user] = start + seconds / (2 if user == "a" else 1)
        shares.charge({user: seconds})
        for each in "abc":
            assert shares.start_of(each) == max(served.get(each, 0.0), now - BOUND)


def test_a_user_who_comes_begins_where_the_others_are() -> None:
    shares = FairShare(BOUND, SHORT, lambda user: 1.0)
    for _ in range(100):
        run(shares, [command("ann", 200)], set())
    assert shares.start_of("bob") > shares.start_of("ann") - BOUND - 0.2
    late = command("bob", 200)
    assert shares.without_waiting([late], {"ann"}) == [late], "ann repays nothing to him"
    assert shares.without_waiting([command("ann", 200)], {"bob"}) == []
    assert shares.without_waiting([step := command("ann", 1)], {"bob"}) == [step]


def test_steps_for_which_nothing_waits_cost_nothing() -> None:
    shares = FairShare(BOUND, SHORT, lambda user: 1.0)

    def running() -> set[str]:
        raise AssertionError("nobody has to know whose steps these are")

    shares.took([command("ann", 1), command("bob", 1)], running, 1.0, 1.0)
    assert shares.served == {}
    run(shares, [command("ann", 300)], set())
    assert shares.without_waiting([command("ann", 300)], {"bob"}) == []
    for _ in range(40):
        run(shares, [], {"bob"})
    assert shares.start_of("bob") > shares.start_of("ann") - 2 * STEP_SECONDS
    shares.took([command("ann", 1), command("bob", 1)], running, 1.0, 1.0)


def test_what_the_operator_lets_go_first_makes_a_user_wait_for_no_more_than_some_seconds() -> None:
    shares = FairShare(BOUND, SHORT, lambda user: 1.0)
    for _ in range(1000):
        run(shares, [command("boss", 300)], {"victim"})
    waited = 0.0
    while not shares.without_waiting([command("boss", 300)], {"victim"}):
        waited += run(shares, [], {"victim"})
    assert waited <= 10.0
