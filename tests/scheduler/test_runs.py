"""Runs: the same tokens, pages and samplers as step by step, whatever happens beside them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from support.instances import take
from support.rig import runtime
from support.scheduler_fixtures import Guest, Server, refused, u32

from inferlet import Sampler, device
from pie_control.api import allocate, prefix
from pie_control.api import run as calls
from pie_control.api.binder import queue_of, run_of
from pie_control.scheduler.commands.run import LEAD
from pie_control.wasm.linker import SUSPENDED
from pie_py.wire.plan import Forward
from pie_py.wire.steps import count_steps

PENALIZED = Sampler(seed=3, presence_penalty=0.5).to_json()
SAMPLERS = (
    '{"temperature": 0, "seed": 0}',
    '{"seed": 1}',
    '{"seed": 2, "top_k": 3}',
    PENALIZED,
    Sampler(seed=4, logit_bias={7: None}).to_json(),
)


@device.program
def counting(logits: device.Tensor, state: device.State) -> device.Tensor:
    state.chosen = state.chosen + 1
    return logits.argmax()


class Runner(Guest):
    """A guest with a text in its pages, which it continues by runs or by steps."""

    def __init__(self, server: Server, text: int = 3, beside: Guest | None = None) -> None:
        super().__init__(server, None if beside is None else beside.instance)
        self.size = server.facts.page_size
        self.held: list[int] = []  # spans
        self.length = 0
        self.last, self.own = self.embeds(1)[0], self.embeds(1)[0]
        if text:
            self.append(list(range(text)))

    @property
    def inputs(self) -> list[int]:
        """Spans of the pages that hold something."""
        return spans(addresses(self.held)[: -(-self.length // self.size)])

    @property
    def outputs(self) -> list[int]:
        """Spans of the pages that are not full."""
        return spans(addresses(self.held)[self.length // self.size :])

    def append(self, tokens: list[int]) -> None:
        """Runs tokens; `last` then has the hidden state after them."""
        need = -(-(self.length + len(tokens)) // self.size) - len(addresses(self.held))
        if need > 0:
            self.held += self.pages(need)
        embeds = self.embeds(len(tokens))
        self.embed(tokens, self.length, embeds)
        self.forward(self.inputs, embeds, self.outputs, [self.last, 1])
        allocate.dealloc_emb(*self.at, embeds)
        self.length += len(tokens)

    def start(self, sampler: int, most: int, stops: tuple[int, ...] = (), adapter: str = "") -> int:
        pages = self.inputs, self.outputs
        return calls.start_run(
            *self.at, sampler, self.last, self.length, self.own, *pages, adapter, most, list(stops)
        )

    def tokens(self, run: int) -> list[int]:
        return list(map(int, calls.take_tokens(*self.at, run)))

    def speculate(self, run: int, text: list[int], most: int) -> None:
        calls.speculate(*self.at, run, text, most)

    def speculate_with(self, run: int, drafter: Runner, draft_run: int, most: int) -> None:
        calls.speculate_with(*self.at, run, drafter.queue, draft_run, most)

    def end(self, run: int, count: int) -> None:
        """Ends a run; the pages then hold its first tokens but the last."""
        self.held += calls.end_run(*self.at, run, count)
        self.length += max(0, count - 1)

    def steps(self, sampler: int, count: int) -> list[int]:
        """As many tokens as a run gives, one command at a time."""
        out: list[int] = []
        while len(out) < count:
            if out:
                self.append(out[-1:])
            future = self.sample(self.last, sampler)
            self.server.drain()
            out.append(self.take_sample(future))
        return out


def addresses(pages: list[int]) -> list[int]:
    pairs = zip(pages[::2], pages[1::2], strict=True)
    return [address for first, count in pairs for address in range(first, first + count)]


def spans(pages: list[int]) -> list[int]:
    return [number for address in pages for number in (address, 1)]


@dataclass(frozen=True)
class Job:
    """What a guest does: a run, given up or not, and another one after it."""

    text: int
    sampler: str
    most: int
    stop: int | None  # index of the token that is a stop token
    give_up: int | None  # ended once it has so many tokens
    again: int  # tokens of the second run
    # At a time, and every which of them is wrong; 0: those of the run's own steps.
    guesses: tuple[int, int] | None = None

    def expected(self) -> tuple[list[int], list[int]]:
        """The tokens of both runs, step by step."""
        all_of_them = chosen(self.text, self.sampler)
        stands = all_of_them[: self.most]
        if self.stop is not None and self.stop < self.most:
            stands = stands[: stands.index(stands[self.stop]) + 1]
        if self.give_up is not None:
            stands = stands[: self.give_up]
        return stands, all_of_them[len(stands) : len(stands) + self.again]


@cache
def chosen(text: int, sampler: str, vocabulary: int = 1000) -> list[int]:
    """The first 30 tokens that follow a text, step by step."""
    guest = Runner(Server(reference=True, kv_pages=200, vocab_size=vocabulary), text)
    return guest.steps(guest.sampler(sampler), 30)


JOBS = st.builds(
    Job,
    st.integers(1, 20),
    st.sampled_from(SAMPLERS),
    st.integers(1, 20),
    st.none() | st.integers(0, 12),
    st.none() | st.integers(1, 9),
    st.integers(1, 5),
    st.none() | st.tuples(st.integers(1, 16), st.just(0) | st.integers(2, 30)),
).map(
    # What a run has chosen in vain counts for penalties.
    lambda job: replace(job, stop=None, give_up=None) if job.sampler == PENALIZED else job
)


class Playing:
    """A guest on its way through its job."""

    def __init__(self, server: Server, job: Job) -> None:
        self.job = job
        self.stands, self.then = job.expected()
        self.guest = Runner(server, job.text)
        self.sampler = self.guest.sampler(job.sampler)
        tokens = chosen(job.text, job.sampler)[: job.most]
        stops = () if job.stop is None or job.stop >= job.most else (tokens[job.stop],)
        self.run = self.guest.start(self.sampler, job.most, stops)
        self.speculate(tokens)
        self.got: list[int] = []
        self.second = False
        self.done = False

    def speculate(self, tokens: list[int]) -> None:
        """Shows the run what it will come to, with mistakes."""
        if self.job.guesses is not None:
            most, wrong = self.job.guesses
            text = [7 if i % wrong == wrong - 1 else t for i, t in enumerate(tokens) if wrong]
            self.guest.speculate(self.run, text, most)

    def look(self) -> None:
        """Takes what is there, and goes on if that is enough."""
        if self.done:
            return
        guest = self.guest
        self.got += guest.tokens(self.run)
        if not self.second:
            assert self.got[: len(self.stands)] == self.stands[: len(self.got)]
            if len(self.got) < len(self.stands):
                return
            guest.end(self.run, len(self.stands))
            guest.append(self.stands[-1:])
            self.run, self.second, self.got = guest.start(self.sampler, self.job.again), True, []
            self.speculate(self.then)
        elif len(self.got) == self.job.again:
            assert self.got == self.then
            guest.end(self.run, self.job.again)
            used = guest.used(guest.inputs)
            assert sum(used) == guest.length
            self.done = True


@settings(max_examples=80)
@given(
    jobs=st.lists(JOBS, min_size=1, max_size=5),
    moves=st.lists(st.tuples(st.integers(0, 4), st.integers(1, 9)), max_size=120),
    tokens=st.sampled_from([24, 24, 1000]),
    commands=st.sampled_from([2, 50, 50]),
    prompt=st.sampled_from([None, 2, 5]),
)
def test_runs_are_as_step_by_step(
    jobs: list[Job], moves: list[tuple[int, int]], tokens: int, commands: int, prompt: int | None
) -> None:
    """In plans of one step and of several, some of them cut."""
    server = Server(
        kv_pages=200,
        embeds=200,
        max_batch_tokens=tokens,
        max_batch_commands=commands,
        prompt_tokens=prompt,
    )
    playing = [Playing(server, job) for job in jobs]
    for move, steps in moves:
        if (
            move == 0
            and len(server.plans) < 2
            and (not server.plans or server.scheduler.may_follow())
        ):
            server.send_steps(steps)
        elif move == 1:
            server.cut()
        elif move == 2:
            for one in playing:
                one.look()
        elif server.plans:
            server.run_step(looks=move == 3)
    steps = 1 + len(moves) % 5
    while not all(one.done for one in playing):
        if server.plans:
            server.run_step()
        else:
            server.send_steps(steps)
        for one in playing:
            one.look()
    while server.plans:
        server.run_step()
    server.drain()
    for one in playing:
        assert one.guest.instance.queued_commands == 0
        server.end(one.guest.instance)
    assert server.service.pages.free == 200
    assert not server.service.pages.immutable.any()


def test_who_waits_and_cancels_leaves_nothing_behind() -> None:
    runner = Runner(Server())
    handle = runner.start(runner.sampler(SAMPLERS[1]), 100)
    for _ in range(1000):
        future = calls.run_progress(*runner.at, handle, 100)
        runtime.cancel(runner.instance, future)
    _, run = run_of(*runner.at, handle)
    assert len(run.waiting) <= 64


def test_a_plan_holds_several_steps_where_nobody_waits() -> None:
    server = Server(kv_pages=200, max_batch_commands=50, max_batch_tokens=1000)
    guests = [Runner(server) for _ in range(3)]
    server.drain()
    runs = [guest.start(guest.sampler(SAMPLERS[1]), 12) for guest in guests]
    assert server.send_steps(5)
    assert count_steps(server.plans[0]) == 1  # the first choice of each is a command of its own
    server.run_step()
    assert server.send_steps(5)
    assert count_steps(server.plans[0]) == 5
    server.run_step()
    server.run_step()
    assert [len(guest.tokens(run)) for guest, run in zip(guests, runs, strict=True)] == [3, 3, 3]
    # Something else comes: what has not begun is left out, and goes along with that.
    late = Runner(server)
    assert server.scheduler.waits
    server.cut()
    server.run_step(looks=False)
    assert server.plans
    assert not server.scheduler.may_follow()
    server.run_step()
    assert not server.plans
    assert server.scheduler.stats()["steps_left_out"] == 2
    server.worker.sizes.clear()
    assert server.send_steps(5)
    assert count_steps(server.plans[0]) == 1
    server.run_step()
    assert ("forward", 4) in [(kind, commands) for kind, commands, _ in server.worker.sizes]
    while server.plans or server.send_steps(3):
        server.run_step()
    again = Runner(server)
    server.drain()
    expected = again.steps(again.sampler(SAMPLERS[1]), 12)
    assert all(guest.tokens(run) == expected[3:] for guest, run in zip(guests, runs, strict=True))
    assert late.length == 3


def test_the_worker_never_waits_for_a_run(server: Server) -> None:
    """Two plans are at the worker until the run's end."""
    guest = Runner(server)
    run = guest.start(guest.sampler("{}"), 20)
    server.send()
    while server.scheduler.may_follow():
        assert server.send()
        assert len(server.results) == 2
        server.deliver()
    server.drain()
    assert len(guest.tokens(run)) == 20
    assert server.scheduler.stats()["plans_ahead"] >= 18


def test_a_run_waits_for_who_reads_it() -> None:
    server = Server(kv_pages=200)
    guest = Runner(server)
    run = guest.start(guest.sampler("{}"), 200)
    server.drain()
    assert guest.instance.queued_commands == 0  # it may be paused
    assert len(guest.tokens(run)) == LEAD
    future = calls.run_progress(*guest.at, run, 40)
    assert not guest.ready(future)
    server.drain()
    assert guest.ready(future)
    assert len(guest.tokens(run)) == 40 + LEAD
    assert calls.next_tokens(*guest.at, run, 300) is SUSPENDED
    server.drain()
    assert len(guest.tokens(run)) == 200 - 40 - 2 * LEAD


def test_commands_behind_a_run_wait_for_it(server: Server) -> None:
    guest = Runner(server)
    run = guest.start(guest.sampler("{}"), 9)
    mark = guest.sync()
    for _ in range(4):
        server.step()
        assert not guest.ready(mark)
    server.drain()
    assert guest.ready(mark)
    guest.end(run, 4)
    with refused("invalid-handle"):
        guest.tokens(run)


def test_what_a_run_writes_is_nobody_elses(server: Server) -> None:
    guest = Runner(server, 9)
    run = guest.start(guest.sampler("{}"), 30)
    server.step()
    for _ in range(8):
        server.step()
    own = addresses(guest.held)[-1]
    with refused("immutable"):
        guest.truncate([own, 1], 0)
    with refused("immutable"):
        guest.forward([], [guest.last, 1], [own + 1, 1])  # a page that the run has taken
    with refused("busy"):
        allocate.export_kvpage(*guest.at, [own, 1], "x", False)
    guest.end(run, 3)
    guest.truncate([own, 1], 0)


@pytest.mark.parametrize("kind", ["forward", "sample"])
def test_a_step_that_fails_ends_its_run_alone(kind: str) -> None:
    server = Server(kv_pages=200, max_batch_commands=50)
    guests = [Runner(server) for _ in range(2)]
    runs = [guest.start(guest.sampler('{"seed": 3}'), 9) for guest in guests]
    for _ in range(3):
        server.step()
    server.send()
    plan = server.results[-1]
    at = {"forward": 1, "sample": 2}[kind]
    plan.results[at].refused = {0: "test"}
    server.deliver()
    server.drain()
    assert len(guests[1].tokens(runs[1])) == 9
    assert len(guests[0].tokens(runs[0])) >= 3
    with refused("out-of-resources" if kind == "forward" else "invalid-argument"):
        guests[0].tokens(runs[0])
    guests[0].end(runs[0], 2)
    mark = guests[0].sync()
    assert guests[0].ready(mark)
    take(guests[0].instance, mark)


def test_a_queue_that_fails_ends_its_run(server: Server) -> None:
    guest = Runner(server)
    run = guest.start(guest.sampler("{}"), 9)
    server.send()
    forward = next(i for i, b in enumerate(server.results[0].results) if b.values is None and i)
    server.results[0].results[forward].error = "test"
    server.deliver()
    server.drain()
    with refused("failed-dependency"):
        guest.tokens(run)
    assert guest.instance.queued_commands == 0


def test_a_synchronize_behind_a_run_that_was_ended_waits_for_what_is_before_the_run(
    server: Server,
) -> None:
    guest = Runner(server)
    server.worker.fail_kinds = {"forward"}
    run = guest.start(guest.sampler(SAMPLERS[0]), 9)
    guest.end(run, 0)
    mark = guest.sync()
    server.send()
    assert not guest.ready(mark)
    server.drain()
    error = guest.instance.futures.get(mark).error
    assert error is not None
    assert error.code == "internal"


def test_wrong_calls(server: Server) -> None:
    guest = Runner(server)
    sampler = guest.sampler("{}")
    server.drain()
    with refused("invalid-argument"):
        guest.start(sampler, 0)
    with refused("invalid-argument"):
        guest.start(sampler, 5000)
    with refused("invalid-handle"):
        guest.start(sampler + 1, 3)
    guest.own, own = guest.last, guest.own
    with refused("invalid-argument"):
        guest.start(sampler, 3)
    guest.own = own
    run = guest.start(sampler, 3)
    with refused("immutable"):
        guest.start(sampler, 3)
    server.drain()
    with refused("invalid-argument"):
        guest.end(run, 4)
    with refused("invalid-argument"):
        calls.run_progress(*guest.at, run, 0)
    queue_of(*guest.at).close()
    assert not server.service.pages.immutable.any()


def test_no_run_begins_with_a_state_that_is_lost(server: Server) -> None:
    guest = Runner(server)
    sampler = guest.sampler(counting(chosen=0).to_json())
    run = guest.start(sampler, 80)
    calls.run_progress(*guest.at, run, 80)
    server.drain()
    guest.end(run, 1)
    with refused("invalid-argument"):
        guest.sample(guest.last, sampler)
    with refused("invalid-argument"):
        guest.start(sampler, 3)


def test_what_a_run_wrote_can_be_shared() -> None:
    """The prefix cache believes the server's own record of a run."""
    server = Server(kv_pages=200)
    writer = Runner(server, 0)
    # From the first question on, what is written is recorded.
    prefix.match_prefix(*writer.at, "", u32(1))
    writer.append([50, 51, 52])
    run = writer.start(writer.sampler('{"seed": 9}'), 30)
    server.drain()
    tokens = writer.tokens(run)
    writer.end(run, 20)
    assert prefix.insert_prefix(*writer.at, writer.inputs) == 2
    reader = Runner(server)
    text = [50, 51, 52, *tokens]
    found, _ = prefix.match_prefix(*reader.at, "", u32(*text))
    assert len(addresses(found)) == 2


def test_a_page_that_is_exported_before_its_run_is_ended_stays_immutable(server: Server) -> None:
    guest = Runner(server, 3)
    run = guest.start(guest.sampler(SAMPLERS[1]), 4)
    server.drain()
    assert len(guest.tokens(run)) == 4  # it is over, and not ended
    page = addresses(guest.outputs)[0]
    allocate.export_kvpage(*guest.at, [page, 1], "kept", True)
    used = allocate.kvpage_used(*guest.at, [page, 1]).tolist()
    guest.end(run, 4)
    assert allocate.kvpage_used(*guest.at, [page, 1]).tolist() == used
    with refused("immutable"):
        allocate.truncate_kvpage(*guest.at, [page, 1], u32(0))


def test_forks_run_in_the_same_plans() -> None:
    """Runs of one instance that share a prefix: as many plans as one of them takes."""
    server = Server(kv_pages=200, max_batch_commands=50, max_batch_tokens=100, samplers=8)
    first = Runner(server, 8)
    server.drain()
    forks = []
    for _ in range(4):
        fork = Runner(server, 0, beside=first)
        fork.held, fork.length = list(first.held), 8
        fork.append([5])
        forks.append(fork)
    before = server.scheduler.plans_sent
    runs = [fork.start(fork.sampler(SAMPLERS[1]), 12) for fork in forks]
    server.drain()
    assert server.scheduler.plans_sent - before <= 13
    tokens = [fork.tokens(run) for fork, run in zip(forks, runs, strict=True)]
    assert all(found == tokens[0] for found in tokens)
    forwards = [rows for kind, rows, _ in server.worker.sizes if kind == Forward.kind]
    assert forwards.count(4) >= 11
