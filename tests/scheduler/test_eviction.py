"""Pages under pressure: programs of which more are alive than fit, on the symbolic worker.

The programs are Python generators in the place of Wasm guests; executor, API, evictor and scheduler
are the real ones.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, cast

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from support.fake_worker import Slot, distribution, embedded, run_forward
from support.instances import take
from support.puppets import SPIN, Puppet, PuppetProgram, call
from support.rig import offload, runtime
from support.scheduler_fixtures import Guest, Server

from pie_control.api import allocate, sample
from pie_control.api import run as calls
from pie_control.errors import ApiError
from pie_control.instances.futures import Future, FutureKind
from pie_control.instances.instance import Instance, InstanceState
from pie_control.interception.costs import Costs
from pie_control.interception.waste import Choice, Load, Paused
from pie_py.config.limits import Quota
from pie_py.config.scheduling import InterceptionConfig

PAGE = 8
COSTS = {
    "page_bytes": 1 << 16,
    "page_size": PAGE,
    "swap_out": {"seconds": 1e-5, "bytes_per_second": 1e10},
    "swap_in": {"seconds": 1e-5, "bytes_per_second": 1e10},
    "prefill": {"tokens": [16, 64, 256], "seconds": [0.01, 0.012, 0.04], "fit": [0.009, 1e-4, 0]},
    "decode": {"sequences": [1, 8], "seconds": [0.01, 0.012]},
}


class Machine(Server):
    """A server whose instances run, and lend and wait for pages."""

    def __init__(
        self, interception: dict[str, Any] | None = None, steps: int = 1, **facts: Any
    ) -> None:
        """Plans of runs hold so many steps."""
        self.most_steps = steps
        super().__init__(
            interception=InterceptionConfig.model_validate(interception or {}),
            **{"kv_costs": COSTS, "embeds": 200, "max_batch_commands": 50, **facts},
        )
        self.outside: list[Future] = []  # what programs wait for
        self.puppets: list[Puppet] = []

    def add(self, guest: Guest, program: PuppetProgram) -> Instance:
        """Lets a program be a guest's."""
        puppet = Puppet(program)
        self.puppets.append(puppet)
        guest.instance.guest = cast(Any, puppet)
        self.executor.add(guest.instance)
        return guest.instance

    def start(self, program: Callable[[Guest], PuppetProgram], **limits: Any) -> Instance:
        guest = Guest(self, **limits)
        return self.add(guest, program(guest))

    def begin(self, program: Callable[[Guest], PuppetProgram]) -> Instance:
        """Starts a program, and lets all run until they wait."""
        instance = self.start(program)
        self.settle()
        return instance

    def answer(self, number: int) -> None:
        """What one waits for outside comes."""
        self.outside[number].resolve()
        self.settle()

    def turn(self) -> None:
        self.executor.turn()

    def step(self) -> bool:
        sent = self.send_steps(self.most_steps)
        while self.plans:
            self.run_step()
        return sent

    def settle(self) -> None:
        """Runs until everybody waits for something outside, or has ended."""
        quiet = 0  # turns in which no guest has run and nothing was sent
        for _ in range(1000):
            before = self.polls
            self.turn()
            # A guest may be given its turn at the very end of one.
            moved = self.step() or self.polls != before or self.executor.has_ready
            quiet = 0 if moved else quiet + 1
            if quiet == 2:
                return
        raise AssertionError("it does not come to rest")

    @property
    def polls(self) -> int:
        """How often guests have run."""
        return sum(puppet.polls for puppet in self.puppets)

    @property
    def counts(self) -> dict[str, int]:
        stats: dict[str, int] = self.service.stats()["interception"]
        return stats

    def let_go_on(self) -> None:
        """What all wait for outside comes."""
        for future in self.outside:
            future.resolve()
        self.settle()

    def check_empty(self) -> None:
        stats = self.service.stats()
        assert stats["kv_pages_free"] == self.facts.kv_pages
        assert stats["host_pages_free"] == self.facts.host_pages
        assert stats["embeds_free"] == self.facts.embeds
        assert self.service.pages.masked == 0
        if self.service.evictor is not None:
            assert self.counts["absent"] == self.counts["waiting"] == 0


def pause(guest: Guest) -> PuppetProgram:
    """Waits for something outside."""
    machine: Any = guest.server
    future = guest.instance.futures.create_outside(FutureKind.DONE, "tool")
    machine.outside.append(future)
    yield from call(runtime.wait, guest.instance, [future.handle])
    take(guest.instance, future.handle)
    return ""


@dataclass
class Text:
    """A text that grows page by page, beside the contract's idea of it."""

    guest: Guest
    adapter: str = ""
    pages: list[int] = field(default_factory=list)  # addresses
    embed: list[int] = field(default_factory=list)
    slots: list[Slot] = field(default_factory=list)

    def spans(self) -> list[int]:
        return [number for page in self.pages for number in (page, 1)]

    def run(self, count: int) -> PuppetProgram:
        """Lets the server go on for so many tokens, and then runs the last of them."""
        guest = self.guest
        instance, queue, most = *guest.at, count
        sampler = guest.sampler('{"seed": 5}')
        start = len(self.slots)
        filled = -(-start // PAGE)
        run = calls.start_run(
            instance,
            queue,
            sampler,
            self.embed[0],
            start,
            self.embed[0] + 3,
            self.spans()[: 2 * filled],
            self.spans()[2 * (start // PAGE) :],
            self.adapter,
            most,
            [],
        )
        tokens: list[int] = []
        while len(tokens) < count:
            found = yield from call(calls.next_tokens, instance, queue, run, 1 + count % 3)
            tokens += map(int, found)
        taken = calls.end_run(instance, queue, run, count)
        for first, number in zip(taken[::2], taken[1::2], strict=True):
            self.pages += range(first, first + number)
        sample.destroy_sampler(instance, queue, sampler)
        adapter = {"x": 0, "y": 1}.get(self.adapter, -1)
        for token in tokens[:-1]:
            value = (embedded(token), len(self.slots))
            hidden = run_forward([value], self.slots, [], adapter)
            self.slots.append(Slot(hidden[0], len(self.slots)))
        yield from self.grow(tokens[-1:])
        return ""

    def grow(self, tokens: list[int]) -> PuppetProgram:
        guest, first = self.guest, len(self.slots)
        need = -(-(first + len(tokens)) // PAGE) - len(self.pages)
        if need > 0:
            instance, queue = guest.instance, guest.queue
            start = yield from call(allocate.alloc_kvpage, instance, queue, need)
            self.pages += range(start, start + need)
        if not self.embed:
            self.embed = guest.embeds(4)
        embeds = [self.embed[0], len(tokens)]
        guest.embed(tokens, first, embeds)
        out = [self.embed[0], 1]
        if self.adapter:
            guest.forward_with(self.adapter, self.spans(), embeds, self.spans(), out)
        else:
            guest.forward(self.spans(), embeds, self.spans(), out)
        future = guest.dist(self.embed[0])
        values = [(embedded(token), first + i) for i, token in enumerate(tokens)]
        hidden = run_forward(values, self.slots, [], {"x": 0, "y": 1}.get(self.adapter, -1))
        self.slots += [Slot(h, first + i) for i, h in enumerate(hidden)]
        yield from call(runtime.wait, guest.instance, [future])
        vocab = guest.server.facts.vocab_size
        assert guest.take(future) == distribution(hidden[-1], 3, vocab)
        return ""

    def mask(self, word: int) -> None:
        """Masks slots of the first page."""
        self.guest.mask([self.pages[0], 1], word)
        self.slots = [
            Slot(s.value, s.position, bool(word >> i & 1)) if i < PAGE else s
            for i, s in enumerate(self.slots)
        ]


def story(steps: list[tuple[str, int]], adapter: str = "") -> Callable[[Guest], PuppetProgram]:
    """A program of steps."""

    def program(guest: Guest) -> PuppetProgram:
        text = Text(guest, adapter)
        name = guest.instance.id
        for what, count in steps:
            if what == "grow":
                yield from text.grow(list(range(count, count + 1 + count % 4)))
            elif what == "run":
                yield from text.run(1 + 2 * count)
            elif what == "pause":
                yield from pause(guest)
            elif what == "mask" and text.slots:
                text.mask(count % (1 << min(PAGE, len(text.slots))))
            elif what == "export" and text.pages and len(text.slots) % PAGE == 0:
                done = guest.sync()
                yield from call(runtime.wait, guest.instance, [done])
                take(guest.instance, done)
                export = (*guest.at, text.spans(), name, False)
                with suppress(ApiError):  # exports may have half of the pool at most
                    allocate.export_kvpage(*export)
                    yield from pause(guest)
                    allocate.release_export(*guest.at, name)
            elif what == "swap" and text.pages:
                guest.swap_out(text.spans())
                yield from pause(guest)
                yield from call(offload.swap_in, *guest.at, text.spans())
        return f"{len(text.slots)} tokens"

    return program


def length(steps: list[tuple[str, int]]) -> int:
    sizes = {"grow": lambda count: 1 + count % 4, "run": lambda count: 1 + 2 * count}
    return sum(sizes[what](count) for what, count in steps if what in sizes)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["grow"] * 5 + ["run"] * 2 + ["pause"] * 3 + ["mask", "swap"]),
        st.integers(0, 11),
    ),
    min_size=1,
    max_size=14,
).map(lambda steps: [("grow", 0), *steps])


@settings(max_examples=50)
@given(
    stories=st.lists(st.tuples(STEPS, st.sampled_from(["", "", "x"])), min_size=2, max_size=7),
    seed=st.integers(0, 1 << 30),
    policy=st.sampled_from(["min-waste", "swap"]),
    most=st.sampled_from([1, 4, 9]),
)
def test_nobody_notices_and_nobody_ends_while_both_pools_suffice(
    stories: list[tuple[list[tuple[str, int]], str]], seed: int, policy: str, most: int
) -> None:
    need = sum(-(-length(steps) // PAGE) for steps, _ in stories)
    longest = max(-(-length(steps) // PAGE) for steps, _ in stories)
    pools = {"kv_pages": max(1, longest), "host_pages": 2 * need + 1}
    machine = Machine({"policy": policy}, most, **pools)
    instances = [machine.start(story(steps, adapter)) for steps, adapter in stories]
    chance = random.Random(seed)
    for event in chance.choices(range(8), k=60):
        if event == 0 and machine.outside:
            machine.outside.pop(0).resolve()
        elif event in (1, 2) and machine.plans:
            machine.run_step(looks=event == 1)
        elif (event == 3 and not machine.plans) or (
            event == 3 and len(machine.plans) < 2 and machine.scheduler.may_follow()
        ):
            machine.send_steps(most)
        elif event == 4:
            machine.cut()
        else:
            machine.turn()
    while machine.plans:
        machine.run_step()
    for _ in range(1000):
        machine.settle()
        if not machine.outside:
            break
        machine.outside.pop(chance.randrange(len(machine.outside))).resolve()
    for instance, (steps, _) in zip(instances, stories, strict=True):
        assert instance.ended is not None, (machine.counts, instance.id)
        assert instance.ended.state is InstanceState.FINISHED, instance.ended
        assert instance.ended.text == f"{length(steps)} tokens"
    machine.check_empty()


@settings(max_examples=40)
@given(
    stories=st.lists(STEPS.map(lambda s: [*s, ("export", 0)]), min_size=2, max_size=6),
    kills=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 5)), max_size=4),
    pools=st.tuples(st.integers(2, 6), st.integers(0, 12)),
    most=st.sampled_from([1, 4, 9]),
)
def test_kills_exports_and_full_pools_leave_nothing_behind(
    stories: list[list[tuple[str, int]]],
    kills: list[tuple[int, int]],
    pools: tuple[int, int],
    most: int,
) -> None:
    machine = Machine({"wait_seconds": 1e-9}, most, kv_pages=pools[0], host_pages=pools[1])
    instances = [machine.start(story(steps)) for steps in stories]
    for at in range(200):
        for when, which in kills:
            if when == at:
                machine.registry.kill(instances[which % len(instances)], "test")
        machine.settle()
        if not machine.outside:
            break
        machine.outside.pop(0).resolve()
    for instance in instances:
        assert instance.ended is not None, machine.counts
        if instance.ended.state is InstanceState.FAILED:
            assert instance.ended.text.startswith("out-of-resources"), instance.ended.text
    for instance in instances:
        for name in machine.service.exports.names(instance.user):
            machine.service.exports.release(instance.user, name)
    machine.check_empty()


def finished(*instances: Instance, text: str | None = None) -> bool:
    """Whether they have ended by themselves, with a text as their result."""
    ends = [instance.ended for instance in instances if instance.ended is not None]
    assert len(ends) == len(instances)
    return all(end.state is InstanceState.FINISHED and text in (None, end.text) for end in ends)


def holder(tokens: int, then: int = 0) -> Callable[[Guest], PuppetProgram]:
    """Fills pages, pauses, and fills more."""

    def program(guest: Guest) -> PuppetProgram:
        text = Text(guest)
        for _ in range(tokens // 4):
            yield from text.grow([1, 2, 3, 4])
        yield from pause(guest)
        for _ in range(max(1, then // 4)):
            yield from text.grow([5, 6, 7, 8])
        return f"{len(text.slots)} tokens"

    return program


def test_who_waits_outside_lends_its_pages() -> None:
    machine = Machine(kv_pages=4, host_pages=8)
    first = machine.begin(holder(24))
    second = machine.begin(holder(24))
    assert first.ended is second.ended is None
    assert machine.counts["evictions"] == 1
    assert machine.counts["pages_evicted"] == 2  # as many as were missing
    assert machine.service.host_pages.free == 6
    machine.answer(1)  # the younger one goes on; the older one stays out
    assert second.ended is not None
    machine.answer(0)
    assert finished(first, second)
    machine.check_empty()


def test_the_oldest_goes_first() -> None:
    machine = Machine(kv_pages=4, host_pages=20)
    instances = [machine.start(holder(24)) for _ in range(4)]
    machine.settle()  # one after the other fills the pool; the others lend
    assert machine.counts["absent"] == 3
    for future in reversed(machine.outside):
        future.resolve()
    order: list[Instance] = []
    machine.registry.on_end.append(order.append)
    machine.settle()
    assert [i.number for i in order] == sorted(i.number for i in instances)
    assert finished(*instances)
    machine.check_empty()


def test_a_full_host_pool_ends_younger_ones_as_before() -> None:
    machine = Machine(kv_pages=4, host_pages=1)
    old = machine.begin(holder(8, 24))
    young = machine.begin(holder(24))
    assert young.ended is None
    machine.answer(0)
    assert young.ended is not None
    assert young.ended.state is InstanceState.KILLED
    assert "out-of-resources" in young.ended.text
    assert finished(old)
    machine.check_empty()


def test_shared_pages_stay() -> None:
    machine = Machine(kv_pages=6, host_pages=8)

    def sharer(guest: Guest) -> PuppetProgram:
        text = Text(guest)
        for _ in range(4):
            yield from text.grow([1, 2, 3, 4])
        allocate.export_kvpage(*guest.at, [text.pages[0], 1], "x", False)
        yield from pause(guest)
        yield from text.grow([5, 6])
        return "done"

    first = machine.begin(sharer)
    second = machine.begin(holder(40))
    assert machine.counts["pages_evicted"] == 1
    assert machine.service.pages.free == 0
    machine.let_go_on()
    assert finished(first, text="done")
    assert second.ended is not None
    machine.service.exports.release("ann", "x")
    machine.check_empty()


def test_a_worker_that_cannot_move_pages_fails_their_owner() -> None:
    machine = Machine(kv_pages=4, host_pages=8)
    first = machine.begin(holder(24))
    machine.worker.fail_kinds = {"swap_out"}
    second = machine.begin(holder(24))
    assert first.ended is not None
    assert first.ended.state is InstanceState.FAILED
    assert "told to fail" in first.ended.text
    assert second.ended is None
    machine.answer(-1)
    machine.check_empty()


def test_empty_pages_are_lent_without_room_on_the_host() -> None:
    machine = Machine(kv_pages=4, host_pages=1)

    def reserver(guest: Guest) -> PuppetProgram:
        first = yield from call(allocate.alloc_kvpage, *guest.at, 4)
        yield from pause(guest)
        return str(sum(guest.used([first, 4])))

    first = machine.begin(reserver)
    second = machine.begin(holder(20))
    assert second.ended is None
    assert machine.service.host_pages.free == 1
    machine.answer(1)
    machine.answer(0)
    assert finished(first, text="0")
    machine.check_empty()


def test_pages_come_back_within_the_budget_while_others_run() -> None:
    slow = {"seconds": 0.1, "bytes_per_second": 1.0}  # one page a step, however long that takes
    costs = {**COSTS, "swap_in": slow}
    machine = Machine(kv_pages=8, host_pages=8, kv_costs=costs)
    machine.begin(holder(24))
    other = machine.begin(holder(56))
    machine.answer(1)
    assert other.ended is not None
    assert machine.counts["pages_evicted"] == 3

    def runner(guest: Guest) -> PuppetProgram:
        text = Text(guest)
        for _ in range(30):
            yield from text.grow([1])
        return "done"

    machine.start(runner)
    machine.turn()
    machine.send_steps(1)
    machine.outside[0].resolve()
    restored = [0]
    while machine.counts["absent"]:
        machine.turn()
        while machine.plans:
            machine.run_step()
        machine.turn()
        restored.append(machine.counts["pages_restored"])
        machine.send_steps(1)
        assert len(restored) < 20
    assert restored[-1] == 3
    assert max(b - a for a, b in itertools.pairwise(restored)) == 1
    machine.settle()
    machine.check_empty()


def test_a_run_whose_own_pages_are_away_does_not_wait_for_plans_of_others() -> None:
    """They come back with plans, and its own is none as long as they are away."""
    slow = {"seconds": 0.1, "bytes_per_second": 1.0}  # one page a step
    machine = Machine(kv_pages=8, host_pages=8, kv_costs={**COSTS, "swap_in": slow})

    def older(guest: Guest) -> PuppetProgram:
        text = Text(guest, embed=guest.embeds(60))
        yield from text.grow([1])
        yield from pause(guest)
        yield from call(allocate.alloc_kvpage, *guest.at, 7)
        return "done"

    def runner(guest: Guest) -> PuppetProgram:
        text = Text(guest, embed=guest.embeds(60))
        yield from text.grow([1] * 20)
        yield from text.run(12)
        return "done"

    first = machine.begin(older)
    second = machine.start(runner)
    for _ in range(6):  # its run is under way
        machine.turn()
        machine.step()
    machine.answer(0)
    assert machine.counts["pages_evicted"] >= 2
    assert finished(first, second, text="done")
    machine.check_empty()


def test_pages_that_are_worth_more_stay() -> None:
    machine = Machine({"policy": "swap"}, kv_pages=8, host_pages=8)

    def holding(priority: int) -> Instance:
        def program(guest: Guest) -> PuppetProgram:
            pages = yield from call(allocate.alloc_kvpage, *guest.at, 2)
            embeds = guest.embeds(16)
            guest.embed([1] * 16, 0, embeds)
            guest.forward([], embeds, [pages, 2])
            allocate.retain_kvpage(*guest.at, [pages, 2], priority, 10**9)
            return (yield from pause(guest))

        return machine.start(program)

    guests = [holding(priority) for priority in (7, 0, -2)]
    machine.settle()
    machine.start(holder(28))  # of four pages, two of which are free
    machine.settle()
    away = [machine.service.spaces[guest].pages.away for guest in guests]
    assert away == [0, 0, 2]
    machine.let_go_on()
    machine.check_empty()


def test_pages_move_ahead_of_need_within_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pie_control.interception.policy_input.LOW_WATER", 0.9)
    monkeypatch.setattr("pie_control.interception.policy_input.SWAP_SHARE", 0.004)
    machine = Machine(kv_pages=16, host_pages=32)
    old = machine.begin(holder(96))
    old.futures.get(machine.outside[0].handle).outside.since -= 100  # type: ignore[union-attr]
    machine.start(holder(28))
    moved = machine.counts["pages_evicted"]
    costs = Costs.measured(COSTS)
    assert costs.swap_out is not None
    budget = costs.swap_out.pages_within(0.004 * costs.step_time(1))
    assert 0 < budget < 12
    for _ in range(20):
        machine.turn()
        now = machine.counts["pages_evicted"]
        assert now - moved <= budget
        moved = now
        machine.step()
    assert moved >= 12
    machine.let_go_on()
    machine.check_empty()


def test_preserve_leaves_it_to_first_come_first_served() -> None:
    machine = Machine({"policy": "preserve"}, kv_pages=4, host_pages=8)
    assert machine.service.evictor is None
    first = machine.begin(holder(24))
    second = machine.begin(holder(24))
    assert first.ended is None
    assert second.ended is not None
    assert "out-of-resources" in second.ended.text


def test_an_older_one_goes_on_beside_pages_that_are_shared() -> None:
    machine = Machine(kv_pages=5, host_pages=8)

    def sharer(guest: Guest) -> PuppetProgram:
        text = Text(guest)
        for _ in range(6):
            yield from text.grow([1, 2, 3, 4])
        done = guest.sync()
        yield from call(runtime.wait, guest.instance, [done])
        if guest.instance.number == 2:
            allocate.export_kvpage(*guest.at, text.spans()[:2], "x", False)
        for _ in range(2):
            yield from text.grow([5, 6, 7, 8])
        return "done"

    old = machine.begin(holder(8, 24))
    young = machine.start(sharer)
    for _ in range(12):
        machine.turn()
        machine.step()
    machine.answer(0)
    assert finished(old, young)
    machine.service.exports.release("ann", "x")
    machine.check_empty()


asked: list[int] = []  # how many waited, each time


def careless(paused: list[Paused], load: Load, costs: Costs) -> list[Choice]:
    """An operator's policy with a mistake."""
    asked.append(len(paused))
    raise KeyError("oh")


def test_a_policy_that_fails_harms_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pie_control.interception.policy_input.LOW_WATER", 1.0)
    policy = f"{__name__}:careless"
    machine = Machine({"policy": policy}, kv_pages=4, host_pages=8)
    asked.clear()
    instances = [machine.start(holder(24)) for _ in range(3)]
    machine.settle()
    assert asked
    assert max(asked) >= 1
    assert len(machine.outside) == 3, "pages were lent all the same"
    while machine.outside:
        machine.outside.pop().resolve()
        machine.settle()
    assert finished(*instances)
    machine.check_empty()


def test_a_wait_whose_future_is_gone_is_no_trouble() -> None:
    machine = Machine(kv_pages=4, host_pages=8)
    first = machine.begin(holder(24))
    runtime.cancel(first, machine.outside.pop().handle)  # as a bug of a guest might
    second = machine.begin(holder(24))
    assert len(machine.outside) == 1, "the second one had its pages, and waits"
    machine.registry.kill(first, "test")
    machine.answer(-1)
    assert finished(second)
    machine.check_empty()


def test_who_is_held_in_the_background_gets_one_place_when_let_go() -> None:
    """With a second place it would go on from a wait of which nothing is ready."""
    machine = Machine({"policy": "swap"}, kv_pages=12, host_pages=40)
    executor = machine.executor
    ended: set[str] = set()
    answers: list[Any] = []

    def wait(guest: Guest) -> Generator[Any, Any, Any]:
        future = guest.instance.futures.create_outside(FutureKind.DONE, "test")
        machine.outside.append(future)
        answer = yield from call(runtime.wait, guest.instance, [future.handle])
        return answer

    def allocate_six(guest: Guest) -> Generator[Any, Any, None]:
        yield from call(allocate.alloc_kvpage, *guest.at, 6)

    def oldest(guest: Guest) -> Generator[Any, Any, str]:
        yield from wait(guest)
        yield from allocate_six(guest)
        return "oldest"

    def busy(name: str, holds: bool, then: bool) -> Callable[[Guest], Any]:
        def program(guest: Guest) -> Generator[Any, Any, str]:
            if holds:
                yield from allocate_six(guest)
            while name not in ended:
                yield SPIN
            if then:
                answers.append((yield from wait(guest)))
            return name

        return program

    first = machine.start(oldest)
    gives = machine.start(busy("gives", holds=True, then=False))
    held = machine.start(busy("held", holds=True, then=True))
    machine.start(busy("spins", holds=False, then=False))
    for _ in range(3):
        machine.turn()
    assert {gives, held} <= {*executor._background}
    machine.outside.pop().resolve()
    machine.turn()  # the oldest asks, and both are held back
    ended |= {"gives", "held"}
    for _ in range(6):
        machine.turn()
        ready = [instance for _, _, instance in executor._ready.heap]
        assert [*ready, *executor._ready.line, *executor._background].count(held) <= 1
    assert finished(first)
    assert held.ended is None
    assert answers == []  # its future is not ready
    ended.add("spins")
    future = machine.outside.pop()
    future.resolve()
    machine.settle()
    assert answers == [[future.handle]]
    machine.check_empty()


def test_an_answer_that_cannot_be_made_fails_its_instance_alone() -> None:
    """A program's bytes, say, that are gone from the disk."""

    def reads(guest: Guest) -> PuppetProgram:
        yield  # as in a call that takes time
        return "read"

    machine = Machine()
    instance, other = machine.start(reads), machine.start(reads)
    machine.turn()

    def make() -> bytes:
        raise FileNotFoundError("the program is gone")

    machine.executor.answer_late(instance, make)
    machine.turn()
    assert instance.ended is not None
    assert instance.ended.state is InstanceState.FAILED
    assert "FileNotFoundError: the program is gone" in instance.ended.text
    assert other.ended is None


def hoarder(end: str, leave: int = 0) -> Callable[[Guest], Any]:
    """Takes all pages but a few, and goes on in one of some ways, for ever."""

    def program(guest: Guest) -> Generator[Any, Any, str]:
        instance, queue, pool = *guest.at, guest.server.service.pages
        count = pool.free - leave
        pages = [(yield from call(allocate.alloc_kvpage, instance, queue, count)), count]
        if end.startswith("fills"):
            embeds = guest.embeds(PAGE)
            for at in range(count):
                guest.embed([1] * PAGE, 0, embeds)
                guest.forward([], embeds, [pages[0] + at, 1])
            done = guest.sync()
            yield from call(runtime.wait, instance, [done])
        if end == "exports":
            allocate.export_kvpage(instance, queue, [pages[0], pool.size // 2], "x", False)
        if end == "asks":
            yield from call(allocate.alloc_kvpage, instance, queue, leave + 1)
        if end.endswith("swaps"):
            with suppress(ApiError):  # of what one user may have of host memory
                guest.swap_out([pages[0], count // 2])
        embeds = guest.embeds(1) if end == "queues" else []
        while end == "queues":
            for _ in range(200 - instance.queued_commands):
                guest.embed([1], 0, embeds)
            yield SPIN
        if end.endswith("sleeps"):
            yield from pause(guest)
        while True:
            yield SPIN

    return program


def asks(count: int) -> Callable[[Guest], Any]:
    """Takes pages, and ends."""

    def program(guest: Guest) -> PuppetProgram:
        yield from call(allocate.alloc_kvpage, *guest.at, count)
        return "has them"

    return program


def turns(machine: Machine, count: int) -> None:
    for _ in range(count):
        machine.turn()
        machine.send_steps(1)
        if machine.plans:
            machine.run_step()


WAYS = ["spins", "sleeps", "fills, spins", "fills, sleeps", "asks", "exports", "fills, swaps"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("host_pages", [1, 40])
def test_a_user_within_his_part_never_waits_for_one_above(way: str, host_pages: int) -> None:
    """Whatever the other one does, and though he came first. No time goes by."""
    machine = Machine(kv_pages=12, host_pages=host_pages)
    machine.start(hoarder("spins", leave=11), user="mallory")
    turns(machine, 1)
    hog = machine.start(hoarder(way, leave=2 if way == "asks" else 0), user="mallory")
    turns(machine, 40)
    assert hog.ended is None
    for _ in range(3):
        victim = machine.start(asks(6), user="eve")
        turns(machine, 20)
        assert finished(victim, text="has them"), machine.counts
    ends = way.startswith("fills") and host_pages == 1
    assert (hog.ended is not None) == ends  # only where its pages find no other place


def test_one_above_his_part_holds_nobody_who_is_within() -> None:
    machine = Machine(kv_pages=12, host_pages=40)
    machine.start(hoarder("spins", leave=11), user="mallory")
    turns(machine, 1)
    hog = machine.start(hoarder("asks", leave=4), user="mallory")
    turns(machine, 1)
    victim = machine.start(hoarder("spins", leave=0), user="eve")
    turns(machine, 20)
    assert hog.ended is victim.ended is None
    assert machine.counts["waiting"] == 1
    assert machine.counts["held"] == 0


def test_one_who_asks_for_more_than_his_part_waits_until_others_pause() -> None:
    machine = Machine(kv_pages=12, host_pages=40)
    big = machine.start(hoarder("spins", leave=6), user="ann")
    other = machine.start(asks(9), user="eve")
    turns(machine, 20)
    assert big.ended is other.ended is None
    assert machine.counts["waiting"] == 1
    machine.registry.kill(big, "test")
    turns(machine, 4)
    assert finished(other, text="has them")


def test_what_a_user_exports_counts_as_his() -> None:
    machine = Machine(kv_pages=12, host_pages=40, quota=Quota())
    hog = Guest(machine, user="mallory")
    for name in ("x", "y"):
        pages = hog.pages(3)
        with suppress(ApiError):  # of one user's exports
            allocate.export_kvpage(*hog.at, pages, name, False)
        allocate.dealloc_kvpage(*hog.at, pages)
    machine.step()
    hog = Guest(machine, user="mallory")
    kept = machine.service.pages.size - machine.service.pages.free
    assert kept == 3
    hog.pages(6)  # of which half are above his part
    Guest(machine, user="ann").pages(3)
    victim = machine.start(asks(3), user="eve")
    turns(machine, 4)
    assert finished(victim, text="has them")


@settings(max_examples=30)
@given(
    users=st.lists(
        st.tuples(
            st.lists(st.sampled_from([*WAYS, *["queues"] * 5]), min_size=1, max_size=2),
            st.lists(st.sampled_from([0, 0, 3, 8]), min_size=1, max_size=3),
        ),
        min_size=1,
        max_size=3,
    ),
    host_pages=st.sampled_from([1, 8, 60]),
    order=st.randoms(use_true_random=False),
    busy=st.booleans(),  # the worker, so that what is queued stays so
)
def test_who_stays_within_his_part_gets_it_and_is_never_ended(
    users: list[tuple[list[str], list[int]]], host_pages: int, order: random.Random, busy: bool
) -> None:
    machine = Machine(kv_pages=24, host_pages=host_pages)
    part = 24 // (len(users) + 1)
    starts = [
        (f"hog{n}", order.choice(ways), leave)
        for n, (ways, leaves) in enumerate(users)
        for leave in leaves
    ]
    order.shuffle(starts)
    keeper = machine.start(hoarder("spins", leave=24 - part // 2), user="eve")
    turns(machine, 3)
    for user, way, leave in starts:
        left = min(leave, machine.service.pages.free)
        if machine.service.pages.free > left and way != "exports":
            machine.start(hoarder(way, leave=left), user=user)
        turns(machine, 30)
    victim = machine.start(asks(part - part // 2), user="eve")
    for _ in range(5):
        for _ in range(20):
            machine.turn() if busy else turns(machine, 1)
        machine.clock.seconds += 0.05
    assert finished(victim, text="has them")
    assert keeper.ended is None
