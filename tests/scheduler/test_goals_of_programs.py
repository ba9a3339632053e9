"""Which of one user's programs go first where not all have room, and that other users lose nothing
by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import hypothesis.strategies as st
import pytest
from hypothesis import given
from scheduler.test_runs import Runner
from support.prompts import Decoder, Prompt
from support.scheduler_fixtures import Guest, Server

from pie_control.api.binder import queue_of
from pie_control.instances.aim import Class
from pie_control.instances.futures import FutureKind
from pie_control.instances.instance import Instance
from pie_control.scheduler.adaptive import Adaptive
from pie_control.scheduler.batching import by_goals
from pie_control.scheduler.commands.command import QueueOwner
from pie_py.config.limits import ProgramGoal
from pie_py.wire.methods import Goal

FACTS: dict[str, Any] = {"kv_pages": 1400, "embeds": 4000, "samplers": 64}
LATENCY, THROUGHPUT = Goal(objective="latency"), Goal(objective="throughput")


class Turns(Adaptive):
    """As without goals."""

    def order(self, owners: Sequence[QueueOwner], plan: int) -> Sequence[int]:
        return range(len(owners))


def ended(server: Server, program: str, tokens: int) -> None:
    """A program has generated so many tokens."""
    instance = server.launch(program=program)
    instance.generated_tokens = tokens
    server.end(instance)


def rest(instance: Instance) -> float:
    return instance.precedence[1]


class Run:
    """A run of so many tokens, once it is started."""

    def __init__(self, server: Server, instance: Instance, most: int = 30) -> None:
        self.most = most
        self.runner = Runner(server, beside=cast(Guest, SimpleNamespace(instance=instance)))
        self.sampler = self.runner.sampler()
        server.drain()

    def start(self) -> None:
        self.run = self.runner.start(self.sampler, self.most)

    @property
    def tokens(self) -> int:
        return len(queue_of(*self.runner.at).runs[self.run].tokens)


@dataclass(eq=False)
class Owner:
    number: int
    precedence: int = 0


def steps(server: Server, runs: Sequence[Run], count: int) -> None:
    """Starts runs, and sends so many plans."""
    for run in runs:
        run.start()
    for _ in range(count):
        server.step()


def test_the_shortest_expected_rest_goes_first() -> None:
    server = Server(**FACTS)
    for _ in range(3):
        ended(server, "short", 10)
        ended(server, "long", 300)
    longs = [Run(server, server.launch(program="long")) for _ in range(8)]
    shorts = [Run(server, server.launch(program="short"), 10) for _ in range(4)]
    steps(server, [*longs, *shorts], 17)
    assert [run.tokens for run in shorts] == [10] * 4, "equal turns would give them 8"
    assert all(run.tokens for run in longs), "some places go by turns"


def test_what_nobody_knows_goes_by_what_it_has_had() -> None:
    server = Server(**FACTS)
    old, new = server.launch(), server.launch()
    old.generated_tokens = 40
    assert new.precedence < old.precedence == (Class.USUAL, 40)


@pytest.mark.parametrize("goal", [LATENCY, THROUGHPUT, Goal(deadline=1e-3)])
def test_users_have_what_they_have_without_goals(goal: Goal) -> None:
    """However many programs of a user there are, and whatever they ask for."""
    had = []
    for policy in ("adaptive", f"{__name__}:{Turns.__name__}"):
        server = Server(policy=policy, **FACTS)
        runs: dict[str, list[Run]] = {"ann": [], "bob": []}
        for user, count in (("bob", 3), ("ann", 12)):
            for number in range(count):
                instance = server.launch(user)
                if user == "ann" and number % 3 == 0:
                    instance.aim.take(goal)
                runs[user].append(Run(server, instance))
        steps(server, [*runs["ann"], *runs["bob"]], 40)
        had.append({user: sum(run.tokens for run in own) for user, own in runs.items()})
    assert had[0] == had[1]
    assert had[0]["bob"] > 0 < had[0]["ann"]


@given(owners=st.integers(1, 40), room=st.integers(1, 12), data=st.data())
def test_nobody_has_less_than_a_quarter_of_equal_turns(
    owners: int, room: int, data: st.DataObject
) -> None:
    """Whatever the others' goals are, and however these change."""
    precedences = st.lists(st.integers(0, 3), min_size=owners, max_size=owners)
    line = [Owner(number) for number in range(owners)]
    last = dict.fromkeys(range(owners), 0)
    bound = -(-4 * owners // room) + 4  # plans
    changing = [data.draw(precedences) for _ in range(3)]
    for plan in range(1, 3 * bound):
        for owner, precedence in zip(line, changing[plan % 3], strict=True):
            owner.precedence = precedence
        waiting = sorted(line, key=lambda each: last[each.number])
        order = by_goals(cast(Any, waiting), plan)
        assert sorted(order) == list(range(owners))
        for place in order[:room]:
            last[waiting[place].number] = plan
        assert min(last.values()) >= plan - bound


def test_an_instance_goes_by_its_goal() -> None:
    server = Server(goals={"nightly": ProgramGoal(objective="throughput")}, **FACTS)
    usual, asked, hinted, soon = (server.launch() for _ in range(4))
    nightly, child = server.launch(program="nightly"), server.launch(parent=asked)
    asked.aim.take(LATENCY)
    hinted.aim.take(Goal(expected_tokens=100))
    soon.aim.take(Goal(deadline=60.0))
    for instance in (usual, asked, hinted, soon, nightly):
        instance.generated_tokens = 20
    order = [asked, usual, soon, hinted, nightly]
    assert sorted(order, key=lambda each: each.precedence) == order
    assert rest(hinted) == 80
    assert child.precedence[0] is Class.USUAL, "it was there before its parent's goal was"
    assert server.launch(parent=asked).precedence[0] is Class.LATENCY
    server.clock.seconds += 35
    assert min(order, key=lambda each: each.precedence) is soon
    server.clock.seconds += 30
    assert soon.aim.is_late
    assert soon.precedence == usual.precedence, "late, it goes on as others do"
    server.end(soon)
    assert server.parts.goals.missed == 1


def test_the_rest_is_learned_by_the_calls_that_have_ended() -> None:
    server = Server(**FACTS)

    def call(instance: Instance, what: str) -> None:
        instance.futures.create_outside(FutureKind.TEXT, what).resolve("")

    for _ in range(2):
        instance = server.launch(program="agent")
        instance.generated_tokens = 50
        call(instance, "mcp search")
        instance.generated_tokens = 55
        server.end(instance)
    instance = server.launch(program="agent")
    assert rest(instance) == 55
    instance.generated_tokens = 30
    assert rest(instance) == 25
    call(instance, "reader")
    assert rest(instance) == 25, "a slow client is no call"
    call(instance, "http host")
    assert rest(instance) == 5
    instance.generated_tokens = 40
    assert rest(instance) == 40, "none has had as many behind the call"
    assert rest(server.launch("bob", program="agent")) == 0, "users do not learn of one another"


def test_prompts_go_by_goals_and_the_oldest_gets_on() -> None:
    server = Server(prompt_tokens=64, max_batch_tokens=512, **FACTS)
    ended(server, "short", 4)
    ended(server, "long", 300)
    decoder = Decoder(server)
    decoder.step()
    server.drain()
    guests = [Guest(server, server.launch(program="long")) for _ in range(3)]
    longs = [Prompt(guest, [1] * 400) for guest in guests]
    short = Prompt(Guest(server, server.launch(program="short")), [2] * 100)
    for _ in range(4):
        decoder.step()
        server.step()
    assert short.guest.ready(short.future)
    assert short.is_right()
    assert not any(long.guest.ready(long.future) for long in longs)
    while not all(long.guest.ready(long.future) for long in longs):
        decoder.step() if len(decoder.tokens) < 16 else None
        assert server.step()
    assert all(long.is_right() for long in longs)
