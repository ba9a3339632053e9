"""Two plans at the worker: it goes on without a pause, and no batch is split."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, cast

import hypothesis.strategies as st
import pytest
import trio
from hypothesis import given, settings
from support.fake_worker import FakeLink
from support.instances import take
from support.puppets import Puppet, PuppetProgram
from support.rig import runtime
from support.scheduler_fixtures import Guest, Server, refused

from inferlet import Sampler
from pie_control.api.run import start_run
from pie_control.instances.turns import Executor
from pie_control.scheduler.adaptive import Adaptive
from pie_control.scheduler.dispatcher import Dispatcher
from pie_control.scheduler.pacing import CERTAIN, FOLLOW_SECONDS, GATHER_SECONDS, STEPS_IN_FLIGHT
from pie_control.scheduler.policy import load_policy
from pie_control.timers import Timers
from pie_py.config.plugins import UnknownPolicy
from pie_py.wire.plan import BatchResult, Forward, PlanResult, Sample

GREEDY = Sampler(temperature=0).to_json()
PENALIZED = Sampler(seed=1, presence_penalty=0.5).to_json()
Program = Iterator[int]  # yields futures, each to be ready before it goes on


class Line:
    """Programs, the real dispatcher, and a worker that answers a plan when told to.

    A turn runs one guest; the programs go on after each turn.
    """

    def __init__(self, **facts: Any) -> None:
        self.server = Server(**{"kv_pages": 400, "embeds": 400, "max_batch_commands": 50, **facts})
        self.link = FakeLink(self.server.worker.run)
        self.executor = Executor(self.server.registry.end, 0.0, 0.0)
        self.executor.after_turn.append(self._go_on)
        models = self.server.parts.models.services
        self.timers = timers = Timers(self.server.clock)
        self.dispatcher = Dispatcher(models, self.executor, self.link, timers, self.server.clock)
        self.link.on_results = self.dispatcher.on_results
        self.waiting: dict[int, tuple[Prepared, Program, int]] = {}
        self.starved = 0  # plans that were done while no other was at the worker

    def start(self, number: int, guest: Prepared, program: Program) -> None:
        self.waiting[number] = (guest, program, next(program))

    def begin(self) -> None:
        """A turn that no result has begun."""
        self.executor.turn()

    def answer(self) -> None:
        """The worker has run its first plan."""
        self.starved += self.link.in_flight == 1
        self.link.answer()

    def wake(self) -> bool:
        """Calls back what is due, and has a turn if that gives one."""
        self.timers.fire()
        has_turn = self.executor._work.is_set()
        if has_turn:
            self.executor.turn()
        return has_turn

    def add_guests(self, count: int) -> None:
        """Guests that are ready to run: all but one have not had their turn after the next."""
        for _ in range(count):
            instance = self.server.launch()
            instance.guest = cast(Any, Puppet(waits()))
            self.executor.add(instance)

    def run(self) -> None:
        self.begin()
        while self.link.plans:
            self.answer()
        assert not self.waiting
        self.server.drain()

    def _go_on(self, result: bool) -> None:
        for number, (guest, program, future) in list(self.waiting.items()):
            if guest.ready(future):
                try:
                    self.waiting[number] = (guest, program, next(program))
                except StopIteration:
                    del self.waiting[number]
        self.dispatcher.pump()

    def turns(self, guest: Prepared) -> list[int]:
        """Numbers of the plans that held a forward of the guest, by its pages."""
        pages = set(self.server.service.spaces[guest.instance].pages.find(guest.held, 99).tolist())
        return [
            number
            for number, plan in enumerate(self.link.ran)
            for batch in plan.batches
            if isinstance(batch, Forward) and not pages.isdisjoint(batch.pages.tolist())
        ]


class Prepared(Guest):
    """A guest whose pages hold a token, so that all its forwards name them."""

    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self.held = self.filled(1)
        self.held += self.pages(9)
        self.ring = [self.embeds(1)[0], self.embeds(1)[0]]
        self.draws = self.sampler(PENALIZED)
        self.got: list[int] = []


def line_of(count: int, **facts: Any) -> tuple[Line, list[Prepared]]:
    """A line, and guests that are prepared."""
    line = Line(**facts)
    guests = [Prepared(line.server) for _ in range(count)]
    line.server.drain()
    return line, guests


def waits() -> PuppetProgram:
    """A guest that waits for ever."""
    yield
    return ""


def by_token(guest: Prepared, steps: int) -> Program:
    """Needs each token first."""
    token, embed = 5, guest.ring[0]
    for place in range(1, steps + 1):
        guest.embed([token], place, [embed, 1])
        guest.forward(guest.held, [embed, 1], guest.held, [embed, 1])
        future = guest.sample(embed, guest.draws)
        yield future
        token = guest.take_sample(future)
        guest.got.append(token)


def ahead(guest: Prepared, steps: int, wasted: int = 0) -> Program:
    """Queues each step before the token of the one before is known; `wasted` after its end."""
    ring = guest.ring
    guest.embed([5], 1, [ring[0], 1])
    guest.forward(guest.held, [ring[0], 1], guest.held, [ring[0], 1])
    futures = [guest.sample(ring[0], guest.draws)]
    for place in range(2, steps + 2):
        if place <= steps + wasted:
            embed = ring[(place + 1) % 2]
            guest.embed_sampled(guest.draws, place, embed)
            guest.forward(guest.held, [embed, 1], guest.held, [embed, 1])
            futures.append(guest.sample(embed, guest.draws))
        yield futures[0]
        guest.got.append(guest.take_sample(futures.pop(0)))
    for future in futures:
        runtime.cancel(guest.instance, future)


def expected(steps: int) -> list[int]:
    """The tokens, one command at a time."""
    server = Server(reference=True, kv_pages=400)
    guest = Prepared(server)
    for future in by_token(guest, steps):
        server.drain()
        assert guest.ready(future)
    return guest.got


def consecutive(numbers: list[int]) -> bool:
    return numbers == list(range(numbers[0], numbers[0] + len(numbers)))


@settings(max_examples=25)
@given(
    guests=st.lists(
        st.tuples(st.booleans(), st.integers(1, 12), st.integers(0, 1), st.integers(0, 9)),
        min_size=1,
        max_size=7,
    )
)
def test_no_batch_is_split(guests: list[tuple[bool, int, int, int]]) -> None:
    """Programs of both sorts that begin at any time: each has a forward in every plan till its
    end.
    """
    line, made = line_of(len(guests), samplers=8, count_rows=8)
    line.begin()
    late = sorted(range(len(guests)), key=lambda i: guests[i][3])
    time = 0
    while late or line.link.plans:
        while late and guests[late[0]][3] <= time:
            i = late.pop(0)
            runs_ahead, steps, wasted, _ = guests[i]
            program = ahead(made[i], steps, wasted) if runs_ahead else by_token(made[i], steps)
            line.start(i, made[i], program)
            line.begin()
        if line.link.plans:
            line.answer()
        time += 1
        assert line.link.in_flight <= 2
    line.server.drain()
    assert not line.waiting
    for guest, (_, steps, _, _) in zip(made, guests, strict=True):
        assert guest.got == expected(steps)
        turns = line.turns(guest)
        assert consecutive(turns), turns
        assert guest.instance.queued_commands == 0


def test_the_worker_never_waits_for_guests_that_run_ahead() -> None:
    line, guests = line_of(4)
    for i, guest in enumerate(guests):
        line.start(i, guest, ahead(guest, 20 - 5 * i, wasted=1))  # their ends make no gap either
    line.run()
    assert line.starved == 1  # at the end
    stats = line.server.scheduler.stats()
    assert stats["plans_ahead"] == stats["plans"] - 2
    assert all(len(line.turns(guest)) == 21 - 5 * i for i, guest in enumerate(guests))


def test_sequences_keep_their_order_from_step_to_step() -> None:
    """Two plans in flight are two circles of guests; each would keep the order in which it
    began.
    """
    line, guests = line_of(4)
    for couple in ((2, 0), (3, 1)):
        for i in couple:
            line.start(i, guests[i], ahead(guests[i], 8))
        line.begin()
    line.run()
    orders = [
        batch.pages[batch.page_starts[:-1]].tolist()
        for plan in line.link.ran
        for batch in plan.batches
        if isinstance(batch, Forward)
    ]
    together = [order for order in orders if len(order) == 4]
    assert len(together) >= 6
    assert all(order == together[0] for order in together)


def test_an_idle_worker_waits_for_turns_as_long_as_a_plan_takes() -> None:
    line, [early, late, last] = line_of(3)
    hour = 3600 * 10**9
    line.start(0, early, by_token(early, 1))
    line.begin()
    line.link.results[0].results[-1].nanoseconds = hour
    line.add_guests(3)
    line.answer()  # with the first guest's turn; two are left
    line.start(1, early, by_token(early, 1))
    line.begin()
    assert not line.executor.caught_up
    assert not line.link.plans
    line.start(2, late, by_token(late, 1))
    line.begin()
    assert line.executor.caught_up
    assert line.server.worker.sizes[-1][:2] == ("sample", 2)  # both in one plan
    line.link.results[0].results[-1].nanoseconds = 0
    line.add_guests(3)
    line.answer()
    line.start(3, last, by_token(last, 1))  # a plan takes no time, so that another one is no loss
    line.begin()
    assert not line.executor.caught_up
    assert line.link.plans


def test_a_guest_that_has_gone_is_not_waited_for() -> None:
    line, [first, second] = line_of(2)
    line.start(0, first, by_token(first, 9))
    line.start(1, second, ahead(second, 9))
    line.begin()
    line.answer()
    assert line.link.in_flight == 1
    del line.waiting[0]
    line.server.registry.kill(first.instance, "test")
    line.begin()
    assert line.link.in_flight == 2
    line.run()
    assert second.got == expected(9)


def test_guests_that_have_not_had_their_turn_go_along() -> None:
    line, [guest] = line_of(1)
    line.start(0, guest, ahead(guest, 9))
    line.begin()
    assert line.link.in_flight == 2
    its_turn = line.waiting.pop(0)  # has yet to come
    line.add_guests(2)
    line.answer()
    assert not line.executor.caught_up
    assert line.link.in_flight == 1
    line.waiting[0] = its_turn
    line.begin()
    assert line.link.in_flight == 2
    line.run()
    assert guest.got == expected(9)


def test_an_idle_worker_waits_for_launches_that_arrive() -> None:
    line = Line()
    guest = Prepared(line.server)  # has commands that can be sent
    line.executor._work = trio.Event()
    line.dispatcher.has_requests = lambda: True
    line.dispatcher.after_turn(of_result=False)
    assert not line.link.plans
    assert line.executor._work.is_set(), "another turn looks again"
    line.server.clock.seconds += GATHER_SECONDS * 1.1
    line.dispatcher.after_turn(of_result=False)
    assert len(line.link.plans) == 1
    assert guest.instance.queued_commands


def test_nothing_follows_a_plan_that_surely_takes_long_until_its_end_is_near() -> None:
    line, [guest] = line_of(1)
    line.start(0, guest, by_token(guest, 1))
    line.begin()
    line.link.results[0].results[-1].nanoseconds = 10**9  # for one input
    line.answer()
    line.start(0, guest, ahead(guest, 9))
    line.begin()
    assert line.link.in_flight == 1
    line.server.clock.seconds += CERTAIN - FOLLOW_SECONDS * 1.1
    assert not line.wake()
    line.server.clock.seconds += FOLLOW_SECONDS * 0.2
    assert line.wake()
    assert line.link.in_flight == 2


def test_steps_of_runs_are_cut_where_something_else_waits() -> None:
    line, [guest] = line_of(1)
    run = guest.sampler(GREEDY), guest.ring[0], 1, guest.ring[1], guest.held, guest.held
    guest.embed([5], 1, [guest.ring[0], 1])
    start_run(guest.instance, guest.queue, *run, "", 30, [])
    line.begin()
    while line.server.scheduler.in_flight.steps <= STEPS_IN_FLIGHT:
        line.answer()
    plans = line.link.in_flight
    line.begin()
    assert not line.link.cuts, "nothing else waits"
    other = Prepared(line.server)
    for _ in range(2):
        line.begin()
        assert [cut.plan for cut in line.link.cuts] == [line.link.plans[-1].id]
    assert line.link.in_flight == plans
    while line.link.plans:
        line.answer()
    assert other.instance.queued_commands == 0


def failing_ahead(kind: str) -> tuple[Server, Prepared, list[int], int]:
    """A guest whose first plan fails in a kind while the second one is at the worker."""
    server = Server(kv_pages=400)
    guest = Prepared(server)
    server.drain()
    program = ahead(guest, 4)
    server.worker.fail_kinds = {kind}
    first = next(program)
    assert server.send()
    assert server.scheduler.may_follow()
    server.worker.fail_kinds = set()
    assert server.send()
    futures = sorted(guest.instance.futures._open)
    assert first == futures[0]
    mark = guest.sync()
    return server, guest, futures, mark


def test_a_failure_reaches_the_dependants_in_the_second_plan() -> None:
    server, guest, futures, mark = failing_ahead("forward")
    server.deliver()
    with refused("failed-dependency"):
        guest.take_sample(futures[0])
    assert not guest.ready(futures[1])
    server.deliver()
    with refused("failed-dependency"):
        guest.take_sample(futures[1])
    take(guest.instance, mark)  # it has been told
    assert guest.instance.queued_commands == 0
    fresh = guest.sampler(PENALIZED)
    guest.embed([5], 1, [guest.ring[0], 1])
    again = guest.sample(guest.ring[0], fresh)
    server.drain()
    guest.take_sample(again)


# Parts


def parts(server: Server, guest: Prepared) -> tuple[PlanResult, PlanResult]:
    """A plan's answer in two messages: up to its first sample, and the rest."""
    plan = server.scheduler.next_plan()
    assert plan is not None
    whole = server.worker.run(plan)
    at = 1 + next(i for i, batch in enumerate(plan.batches) if isinstance(batch, Sample))
    results = whole.results
    return (
        replace(whole, results=results[:at], last=False),
        replace(whole, results=results[at:], first=at),
    )


def test_a_part_of_the_results_wakes_those_whose_they_are() -> None:
    server = Server(kv_pages=400)
    guest, other = Prepared(server), Prepared(server)
    server.drain()
    guest.embed([5], 1, [guest.ring[0], 1])
    mine = guest.sample(guest.ring[0], guest.draws)
    other.embed([5], 1, [other.ring[0], 1])
    other.forward(other.held, [other.ring[0], 1], other.held, [other.ring[0], 1])
    theirs, mark = other.sample(other.ring[0], other.draws), other.sync()
    first, rest = parts(server, guest)
    server.scheduler.complete(first)
    assert guest.ready(mine)
    assert not other.ready(theirs)
    assert server.scheduler.stats()["plans_in_flight"] == 1
    guest.embed_sampled(guest.draws, 2, guest.ring[1])
    server.scheduler.complete(rest)
    assert other.ready(theirs)
    assert other.ready(mark)
    assert server.scheduler.stats()["plans_in_flight"] == 0
    assert guest.instance.queued_commands == 1
    server.drain()


@pytest.mark.parametrize("lost", [0, 1])
def test_parts_that_do_not_fit_fail_what_is_left(lost: int) -> None:
    server = Server(kv_pages=400)
    guest = Prepared(server)
    server.drain()
    guest.embed([5], 1, [guest.ring[0], 1])
    mine = guest.sample(guest.ring[0], guest.draws)
    guest.forward(guest.held, [guest.ring[0], 1], guest.held, [guest.ring[0], 1])
    mark = guest.sync()
    first, rest = parts(server, guest)
    if not lost:
        server.scheduler.complete(first)
        rest.results.append(BatchResult())  # one too many
    server.scheduler.complete(rest)
    server.scheduler.complete(rest)
    if lost:
        with refused("failed-dependency"):
            guest.take_sample(mine)
        take(guest.instance, mark)  # it has been told
    else:
        guest.take_sample(mine)
        with refused("internal"):
            take(guest.instance, mark)
    assert server.scheduler.stats()["plans_in_flight"] == 0
    assert guest.instance.queued_commands == 0


class InPairs(Adaptive):
    """An operator's own policy: two at least go together, or one that has waited for a second."""

    since = math.inf

    def wait(self, now: float, ready: Callable[[], int]) -> float:
        self.since = min(self.since, now) if ready() else math.inf
        left = 0.0 if ready() > 1 else self.since + 1.0 - now
        if left <= 0:
            self.since = math.inf
        return left if ready() else 0.0


def test_a_policy_by_path_decides_how_long_what_is_ready_waits_for_more() -> None:
    line, [one, two] = line_of(2, policy=f"{__name__}:InPairs")
    line.start(1, one, by_token(one, 1))
    line.begin()
    assert not line.link.plans
    line.start(2, two, by_token(two, 1))
    line.begin()
    assert len(line.link.plans) == 1, "both"
    line.answer()
    assert one.got == two.got == expected(1)
    alone = Prepared(line.server)
    line.server.drain()
    line.start(3, alone, by_token(alone, 1))
    line.executor._work = trio.Event()
    line.begin()
    assert not line.link.plans
    line.server.clock.seconds += 0.5
    assert not line.wake(), "not before its time"
    line.server.clock.seconds += 0.51
    assert line.wake()
    assert len(line.link.plans) == 1
    line.run()
    assert alone.got == expected(1)


def test_between_steps_what_instances_say_goes_out_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a turn with a result the worker comes first: it is idle."""
    line, order = Line(), list[str]()

    def flushed() -> bool:
        order.append("said")
        return False

    monkeypatch.setattr(line.dispatcher, "has_requests", flushed)
    monkeypatch.setattr(line.dispatcher, "pump", lambda: order.append("sent"))
    for of_result in (False, True):
        line.dispatcher.after_turn(of_result)
    assert order == ["said", "sent", "sent"]


def test_policies_of_scheduling_by_name() -> None:
    assert load_policy("adaptive") is Adaptive
    for wrong in ("fifo", "no.such.module:x", f"{__name__}:nothing", "math:pi"):
        with pytest.raises(UnknownPolicy, match=wrong.split(":")[0]):
            load_policy(wrong)
