"""Shares of what users have in common: whose turn it is, counted in turns and costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st
from support.puppets import Puppet, PuppetProgram
from support.rig import PROGRAM, Rig, runtime

from pie_control.fairness import FairQueue, Owner
from pie_control.instances.cool_down import CoolDown
from pie_control.instances.futures import FutureKind
from pie_control.instances.instance import Instance
from pie_control.instances.launcher import Launcher
from pie_control.instances.turns import Executor
from pie_control.programs.guests import Guests
from pie_control.programs.store import Program, ProgramStore
from pie_control.wasm.guest import Status

CREDIT = 5.0
COSTS = st.integers(1, 40)


class Model:
    """The same by definition: everybody's virtual time, looked through at each choice."""

    def __init__(self) -> None:
        self.served: dict[tuple[str, ...], float] = {}
        self.now: dict[str, float] = {}  # of the users, and of each user's instances
        self.items: dict[Owner, list[int]] = {}

    def enter(self, line: str, who: tuple[str, ...]) -> None:
        start = self.now.get(line, 0.0) - CREDIT
        self.served[who] = max(self.served.get(who, 0.0), start)

    def push(self, owner: Owner, item: int) -> None:
        if owner not in self.items:
            self.enter(owner.user, tuple(owner))
            if all(other.user != owner.user for other in self.items):
                self.enter("", (owner.user,))
        self.items.setdefault(owner, []).append(item)

    def popped(self, owner: Owner, item: int) -> None:
        """Checks a choice, and follows it."""
        users = {other.user for other in self.items}
        assert self.served[owner.user,] <= min(self.served[user,] for user in users)
        mine = [other for other in self.items if other.user == owner.user]
        assert self.served[tuple(owner)] <= min(self.served[tuple(other)] for other in mine)
        assert self.items[owner].pop(0) == item
        self.now[""] = max(self.now.get("", 0.0), self.served[owner.user,])
        self.now[owner.user] = max(self.now.get(owner.user, 0.0), self.served[tuple(owner)])
        if self.items[owner]:
            self.enter(owner.user, tuple(owner))
        else:
            del self.items[owner]
        if any(other.user == owner.user for other in self.items):
            self.enter("", (owner.user,))

    def charge(self, owner: Owner, cost: float, weight: float) -> None:
        self.served[owner.user,] += cost / weight
        self.served[tuple(owner)] += cost / weight
        for line, who, waits in (
            ("", (owner.user,), bool(self.items)),
            (owner.user, tuple(owner), any(o.user == owner.user for o in self.items)),
        ):
            if not waits:
                self.now[line] = max(self.now.get(line, 0.0), self.served[who])


@settings(max_examples=200)
@given(
    st.lists(st.one_of(st.tuples(st.sampled_from("abc"), st.sampled_from("xyz")), COSTS)),
    st.sampled_from([1.0, 4.0]),
)
def test_the_least_served_user_is_next_and_of_him_the_least_served_instance(
    steps: list[tuple[str, str] | int], weight: float
) -> None:
    queue: FairQueue[int] = FairQueue(CREDIT, lambda user: weight if user == "a" else 1.0)
    model = Model()
    for number, step in enumerate(steps):
        if isinstance(step, tuple):
            owner = Owner(*step)
            queue.push(owner, number)
            model.push(owner, number)
        elif model.items:
            taken = queue.pop()
            assert taken is not None, "somebody waits"
            model.popped(*taken)
            queue.charge(taken[0], step)
            model.charge(taken[0], step, weight if taken[0].user == "a" else 1.0)
        else:
            assert queue.pop() is None
        assert len(queue) == sum(map(len, model.items.values()))


ROUND = st.tuples(
    st.dictionaries(st.sampled_from("vwxyz"), st.none()).map(list), st.lists(COSTS, min_size=1)
)


@settings(max_examples=300)
@given(st.lists(ROUND, max_size=12), st.sampled_from([1.0, 2.0]))
def test_rounds_of_one_users_instances_go_as_if_each_waited_in_line(
    rounds: list[tuple[list[str], list[int]]], weight: float
) -> None:
    """Of who comes before each round, and what each of its turns costs; the others are left."""
    in_rounds: FairQueue[str] = FairQueue(CREDIT, lambda user: weight)
    in_line: FairQueue[str] = FairQueue(CREDIT, lambda user: weight)
    waiting: list[str] = []
    starts: dict[str, float] = {}
    for arrived, costs in rounds:
        arrived = [name for name in arrived if name not in waiting]
        starts.update(zip(arrived, in_rounds.enter_all("ann", arrived), strict=True))
        for name in arrived:
            in_line.push(Owner("ann", name), name)
        waiting += arrived
        order = sorted(waiting, key=starts.__getitem__)
        served = list(zip(order, costs, strict=False))
        for name, cost in served:
            taken = in_line.pop()
            assert taken is not None
            assert taken[1] == name
            in_line.charge(taken[0], cost)
        waiting = [name for name in waiting if name not in dict(served)]
        if not served:
            continue
        in_rounds.served_round("ann", served, all_of_them=not waiting)
        mine, other = in_rounds._instances["ann"], in_line._instances["ann"]
        assert (mine.served, mine._now) == (other.served, other._now)
        if not waiting:
            assert in_rounds._users.served == in_line._users.served
            assert in_rounds._users._now == in_line._users._now


def test_who_has_left_is_forgotten() -> None:
    queue: FairQueue[None] = FairQueue(CREDIT)
    for number in range(5000):
        owner = Owner(f"u{number}", "i")
        queue.push(owner, None)
        assert queue.pop() == (owner, None)
        queue.charge(owner, 1.0)
    assert len(queue._instances) < 500


class World:
    """An executor whose guests take the time that they say."""

    def __init__(self) -> None:
        self.rig = Rig()
        self.now = 0
        self.ran: list[str] = []
        self.turns = 0
        self.users: set[str] = set()
        end = self.rig.registry.end
        self.executor = Executor(end, 0.002, 0.010, lambda: self.now)
        self.executor.after_turn.append(self._after)

        self.on_turn: Callable[[], None] = lambda: None

    def _after(self, result: bool) -> None:
        self.turns += 1
        self.on_turn()

    def launch(self, user: str, milliseconds: float, waits: bool = False) -> Instance:
        """A guest that works for so long, gives its turn away, and wants another, or waits."""
        instance = self.rig.launch(user)
        self.users.add(user)

        def program() -> PuppetProgram:
            while True:
                self.ran.append(f"{user}, who waits" if waits else user)
                self.now += int(milliseconds * 1e6)
                if not waits and not guest.spins:
                    self.executor.give_turn(instance)
                yield

        guest = _Yielding(program())
        instance.guest = cast(Any, guest)
        self.executor.add(instance)
        return instance


class _Yielding(Puppet):
    spins = False  # and so is interrupted

    def poll(self) -> Any:
        self._waits = False
        status = super().poll()
        return Status.RUNNING if self.spins else status


def turns(world: World, until: Callable[[], bool]) -> None:
    for _ in range(10_000):
        world.executor.turn()
        if until():
            return
    raise AssertionError("it never came")


def test_nine_hundred_who_give_their_turn_away_in_time_delay_a_bystander_by_one_turn_each() -> None:
    """`wait` for nothing after 4 ms of work: no slice is ever used up, so nobody is interrupted."""
    world = World()
    for _ in range(900):
        world.launch("mallory", 4.0)
    turns(world, lambda: len(world.ran) > 100)
    world.launch("victim", 0.1)
    world.ran.clear()
    turns(world, lambda: world.ran.count("victim") == 50)
    assert len(world.ran) <= 100, "one of mallory's between two of the victim's"


@pytest.mark.parametrize("user", ["mallory", "victim"])
def test_no_plan_waits_for_those_who_give_their_turn_away(user: str) -> None:
    """A result wakes one guest; those that are ready beside it always are, and bring nothing."""
    world = World()
    for _ in range(100):
        world.launch(user, 4.0)
    waits = world.launch("victim", 0.1, waits=True)
    turns(world, lambda: len(world.ran) > 200 and world.executor.caught_up)
    for _ in range(20):
        world.ran.clear()
        world.executor.turn(lambda: world.executor.give_turn(waits))
        assert world.ran == ["victim, who waits"], "then what it asked for is sent"
        assert world.executor.caught_up
        world.executor.turn(lambda: None)
        assert len(world.ran) == 1, "a result that wakes nobody"
        world.executor.turn()
        assert len(world.ran) > 1


def test_one_that_has_used_its_slice_runs_once_the_plan_is_sent() -> None:
    world = World()
    cast(Any, world.launch("mallory", 5.0).guest).spins = True
    sent: list[int] = []
    world.on_turn = lambda: sent.append(len(world.ran))
    world.executor.turn()
    world.executor.turn()
    world.executor.turn(lambda: None)
    assert sent == [1, 2, 3], "each slice but the first came after the turn's plan"
    assert len(world.ran) == 3, "and none with a result"


def test_one_who_comes_during_a_turn_of_a_user_alone_is_next() -> None:
    world = World()
    for _ in range(10):
        world.launch("mallory", 0.1)
    turns(world, lambda: world.now > 200e6)
    world.ran.clear()
    clock = world.executor._clock_ns

    def comes() -> int:
        if len(world.ran) == 3 and "victim" not in world.users:
            world.launch("victim", 0.1)
        return clock()

    world.executor._clock_ns = comes  # it is asked after each guest's turn
    world.executor.turn()
    world.executor.turn()
    assert world.ran[:4] == ["mallory"] * 3 + ["victim"]


def test_those_who_are_left_of_a_round_keep_their_turn_beside_others_in_the_background() -> None:
    world = World()
    for _ in range(300):
        cast(Any, world.launch("ann", 1.0).guest).spins = True
        world.launch("ann", 1.0)
    turns(world, lambda: world.now > 5e9)
    assert len(world.ran) * 1e6 == world.now


def test_what_a_host_call_costs_is_charged() -> None:
    world = World()
    world.launch("mallory", 40.0)  # of one call
    world.launch("victim", 1.0)
    turns(world, lambda: world.now > 8e9)
    assert world.ran.count("victim") > 0.4 * 8000, "half of the time"


def test_after_long_turns_most_of_the_time_is_free_in_one_piece() -> None:
    """The victim waits for something after each of its steps, so it is never ready when a long call
    begins. A call of 70 ms between any two of them would be all that it notices."""
    world = World()
    for _ in range(20):
        cast(Any, world.launch("mallory", 70.0).guest).spins = True
    victim = world.launch("victim", 0.5, waits=True)
    met = []  # how long each step of the victim took to come
    for _ in range(2000):
        asked = world.now
        world.executor.give_turn(victim)
        while victim.turn.scheduled:
            world.executor.turn()
        met.append((world.now - asked) / 1e6)
        assert world.executor.caught_up
        world.now += 1_000_000  # the worker's step
    assert sum(each > 1 for each in met) * 100 < len(met)
    assert max(met) < 2 * 71
    assert 0.1 < world.ran.count("mallory") * 70e6 / world.now < 0.3


def test_who_has_a_long_turn_now_and_then_rests_as_long() -> None:
    rests = CoolDown(lambda user: 1.0)
    for at in range(0, 60_000, 10_000):
        began = at * 1_000_000
        rests.comes("victim", began)
        assert rests.ran("mallory", began, began + 70_000_000)
        assert rests.left(began + 70_000_000) == pytest.approx(70_000_000, rel=0.1)


def test_who_has_a_long_turn_alone_goes_on() -> None:
    world = World()
    for _ in range(3):
        cast(Any, world.launch("mallory", 70.0).guest).spins = True
    world.launch("victim", 0.1, waits=True)
    while world.now < 3e9:
        world.executor.turn()
        world.now += 1_000_000
    before, ran = world.now, len(world.ran)
    turns(world, lambda: world.now > 13e9)
    assert (len(world.ran) - ran) * 70e6 == world.now - before


def test_who_has_rested_goes_on_though_nothing_else_happens() -> None:
    world = World()
    world.executor._clock_ns = lambda: world.now + int(trio.current_time() * 1e9)

    async def main() -> None:
        world.launch("victim", 0.1, waits=True)
        for _ in range(2):
            world.launch("mallory", 70.0)
        with trio.move_on_after(10) as scope:
            world.on_turn = lambda: scope.cancel() if len(world.ran) == 5 else None
            await world.executor.run()
        assert trio.current_time() < 1

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert world.ran.count("mallory") == 4


def _never() -> PuppetProgram:
    while True:
        yield


class _Puppets(Guests):
    """Guests that return at once, and take a millisecond to be made."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self.made = 0

    async def prepare(self, program: Program) -> None:
        """Nothing is to be loaded."""

    def is_prepared(self, program: Program) -> bool:
        return True

    def start(self, program: Program, state: object, args: list[str]) -> tuple[Any, bool]:
        self.made += 1
        self._rig.clock.seconds += 0.001
        return _Yielding(_never()), False

    def start_durable(self, program: Program, state: object, args: list[str]) -> Any:
        return self.start(program, state, args)[0]

    async def run(self) -> None:
        """There are no warm guests."""


@dataclass
class Parents:
    """Instances of two users, and what launches their children."""

    rig: Rig
    guests: _Puppets
    launcher: Launcher
    mallory: Instance
    victim: Instance


@pytest.fixture
def parents(tmp_path: Path) -> Parents:
    rig = Rig()
    guests = _Puppets(rig)
    programs = ProgramStore(tmp_path, 1 << 20, rig.clock.date_ns)
    timers = rig.parts.timers
    launcher = Launcher(rig.registry, rig.executor, timers, programs, guests, rig.clock)
    launcher.models_ready.set()
    return Parents(rig, guests, launcher, rig.launch("mallory"), rig.launch("victim"))


def test_others_have_their_turns_between_two_children_of_a_user(parents: Parents) -> None:
    rig, guests, launcher = parents.rig, parents.guests, parents.launcher
    for parent in [parents.mallory] * 50 + [parents.victim]:
        launcher.start_child(parent, PROGRAM, [], lambda end: None)
    assert launcher.children_of(parents.mallory) == 50
    for _ in range(50):
        before = guests.made
        rig.executor.turn()
        assert guests.made - before <= 3
    assert guests.made == 51


def test_others_have_their_turns_while_a_tree_of_instances_ends(parents: Parents) -> None:
    """Each child frees what takes a millisecond; its parent ends at once."""
    rig, launcher = parents.rig, parents.launcher
    ends: list[str] = []

    def freed(instance: Instance) -> None:
        rig.clock.seconds += 0.001
        ends.append(instance.user)

    for _ in range(50):
        launcher.start_child(parents.mallory, PROGRAM, [], lambda end: None)
    while rig.registry.children_of(parents.mallory) < 50:
        rig.executor.turn()
    children = [each for each in rig.registry.instances("mallory") if each.parent is not None]
    rig.registry.on_end.append(freed)
    rig.registry.kill(parents.mallory, "for this test")
    assert ends == ["mallory"]
    assert all(child.ended is not None and child.guest is None for child in children)
    assert rig.registry.users.alive("mallory") == 50, "they hold what they had"
    for _ in range(100):
        before = len(ends)
        rig.executor.turn()
        assert len(ends) - before <= 3
    assert len(ends) == 51
    assert rig.registry.users.alive("mallory") == 0


def test_what_an_ended_instance_holds_is_freed_at_once_where_it_is_needed(parents: Parents) -> None:
    rig, launcher = parents.rig, parents.launcher
    launcher.start_child(parents.mallory, PROGRAM, [], lambda end: None)
    rig.executor.turn()
    [child] = [each for each in rig.registry.instances("mallory") if each.parent is not None]
    rig.registry.kill(parents.mallory, "for this test")
    assert rig.registry.users.alive("mallory") == 1
    rig.registry.reclaim([child], lambda: rig.registry.users.alive("mallory") == 0)
    assert rig.registry.users.alive("mallory") == 0
    rig.executor.turn()
    assert rig.registry.users.alive("mallory") == 0


def test_the_background_waits_for_guests_of_less_served_users() -> None:
    """Mallory's guest spins; the victim's have each another turn after the other."""
    world = World()
    cast(Any, world.launch("mallory", 5.0).guest).spins = True
    for _ in range(5):
        world.launch("victim", 1.0)
    turns(world, lambda: world.now > 1e9)
    world.ran.clear()
    begin = world.now
    turns(world, lambda: world.now > begin + 1e9)
    assert 0.45e9 < world.ran.count("mallory") * 5e6 < 0.55e9, "half of the time, and no more"


def test_a_user_who_comes_delays_others_by_little() -> None:
    world = World()
    victim = world.launch("victim", 0.5, waits=True)

    def goes_on() -> float:
        """How long a step of the victim takes to come, in milliseconds."""
        asked = world.now
        world.executor.give_turn(victim)
        while victim.turn.scheduled:
            world.executor.turn()
        took = (world.now - asked) / 1e6
        world.now += 1_000_000  # the worker's step
        return took

    for _ in range(500):
        goes_on()
    for _ in range(20):
        cast(Any, world.launch("mallory", 5.0).guest).spins = True
    assert max(goes_on() for _ in range(500)) < 60


# Futures


COUNT = 4096


class Handle(int):
    """A number that counts how often it is compared."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        Handle.compared += 1
        return int(self) == other

    def __hash__(self) -> int:
        return int(self)


def test_futures_that_become_ready_together_are_looked_for_once_each() -> None:
    rig = Rig()
    one = rig.launch()
    futures = [one.futures.create(FutureKind.DONE) for _ in range(COUNT)]
    one.futures.announce = lambda handle: rig.executor._announce(one, handle)
    runtime.wait(one, [Handle(future.handle) for future in reversed(futures)])
    Handle.compared = 0
    for future in futures:
        future.resolve()
    assert one.turn.scheduled
    assert Handle.compared <= 2 * COUNT
