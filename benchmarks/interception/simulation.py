"""A serving system step by step, in the time that a cost model says, with the server's own
policies.

For ranges of load that a machine at hand cannot show. It knows of memory, steps and transfers what
InferCept's evaluation needs: continuous batching, recomputation in chunks or at once, preemption of
the latest when memory runs out, transfers that hide behind steps up to a budget. One token of
context is one unit of memory; pages are left out.
"""

from __future__ import annotations

import math
from bisect import insort
from dataclasses import dataclass, field
from typing import Any

from benchmarks.interception.traces import Request
from pie_control.interception.costs import Costs
from pie_control.interception.history import Durations
from pie_control.interception.policy import SOONEST_SECONDS, Policy
from pie_control.interception.waste import Choice, Load, Paused

WHOLE_BATCH = 2048  # tokens that are computed at once where contexts are not chunked, as vLLM did


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine of a run."""

    costs: Costs
    memory: int  # tokens that fit on the device
    host: int  # tokens that fit beside it
    swap_share: float = 1.0  # of a step, behind which transfers hide
    tail: bool = False  # whether one that comes back queues behind all others, as a new request
    chunked: bool = True  # contexts are computed in chunks beside decoding; else at once, instead
    within_budget: bool = True  # whether swaps keep to what hides behind steps


@dataclass(slots=True, eq=False)
class _Job:
    request: Request
    number: int  # order of arrival
    rank: float  # order of service, lowest first
    context: int = 0  # tokens that have to be in memory before it can go on
    held: int = 0  # tokens in memory
    away: int = 0  # tokens on the host
    at: int = 0  # segment
    made: int = 0  # tokens of the segment
    paused_since: float = 0.0
    until: float = 0.0  # the call's end
    recompute: int = 0  # tokens below this were there before
    paused: bool = False
    dropped: bool = False

    def __lt__(self, other: _Job) -> bool:
        return (self.rank, self.number) < (other.rank, other.number)


@dataclass(slots=True)
class Outcome:
    """The figures of a run."""

    seconds: float = 0.0
    steps: int = 0
    finished: list[dict[str, Any]] = field(default_factory=list)  # kind, latency per token, end
    preserved: float = 0.0  # token-seconds held by paused requests
    recomputed: float = 0.0  # token-seconds held, or held up, by recomputing
    stalled: float = 0.0  # token-seconds held while steps waited for transfers
    swapped: int = 0  # tokens that went out
    over_budget: int = 0  # of these, beyond what hides


class Simulation:
    """A run under way: requests that come, compute, and pause. `run` goes through all of it."""

    def __init__(self, requests: list[Request], machine: Machine, policy: Policy) -> None:
        self._coming = sorted(requests, key=lambda r: r.arrival)[::-1]
        self._machine = machine
        self._policy = policy
        self._now = 0.0
        self.ready: list[_Job] = []  # those that want to compute, in order of rank
        self.paused: list[_Job] = []
        self._durations = Durations()
        self._numbers = 0
        self._leaving = 0  # tokens that go out during the next step
        self.out = Outcome()

    @property
    def done(self) -> bool:
        """True once every request has been served."""
        return not (self._coming or self.ready or self.paused)

    def run(self) -> Outcome:
        """Serves the requests to their end.

        Raises:
            RuntimeError: if one needs more memory than there is.
        """
        while not self.done:
            self.arrive()
            if not self.step():
                self.skip()
        return self.out

    # What comes from outside

    def arrive(self) -> None:
        """Takes in the requests that come, and those that a pause has ended for."""
        while self._coming and self._coming[-1].arrival <= self._now:
            request = self._coming.pop()
            self._numbers += 1
            job = _Job(request, self._numbers, request.arrival, context=request.prompt)
            insort(self.ready, job)
        for job in [job for job in self.paused if job.until <= self._now]:
            self.paused.remove(job)
            job.recompute = job.context if job.dropped else 0
            job.paused = job.dropped = False
            segment = job.request.segments[job.at]
            self._durations.add("", job.request.kind, job.until - job.paused_since)
            job.context += segment.answer
            job.at, job.made = job.at + 1, 0
            if self._machine.tail:
                job.rank = self._now
            insort(self.ready, job)

    def skip(self) -> None:
        """Nothing can run: to the next thing that happens, or until policies are asked again."""
        self._intercept([])
        if self._leaving:
            return
        times = [job.until for job in self.paused]
        if self._coming:
            times.append(self._coming[-1].arrival)
        if not times:
            raise RuntimeError("a request needs more memory than there is")
        waits = [self._facts(job).remaining / 4 for job in self.paused if job.held]
        asked = max(SOONEST_SECONDS, min(waits, default=math.inf))
        self._pass(max(min(min(times) - self._now, asked), 1e-9), 0)

    # One step

    def step(self) -> bool:
        """Computes and moves what it can; False if there was nothing to do."""
        decoding, computing, coming = self._choose_batch()
        running = sum(job.held for job in decoding)
        if computing and not self._machine.chunked:
            decoding = []
        inputs = sum(tokens for _, tokens in computing)
        moved, self._leaving = coming + self._leaving, 0
        if not decoding and not inputs and not moved:
            return False
        costs, machine = self._machine.costs, self._machine
        step = costs.step_time(len(decoding), inputs)
        step += sum(costs.quadratic * ((j.held + n) ** 2 - j.held**2) for j, n in computing)
        stall = 0.0
        if moved and costs.swap_out is not None:
            hidden = machine.swap_share * step
            stall = max(0.0, costs.swap_out.time(costs.pages(moved)) - hidden)
        again = sum(min(n, max(0, j.recompute - j.held)) for j, n in computing)
        self.out.stalled += stall * running
        if again:
            slowed = costs.linear * again if machine.chunked else step
            self.out.recomputed += slowed * running
            held = sum(j.held for j, _ in computing if j.held < j.recompute)
            self.out.recomputed += step * held
        self._pass(step + stall, 1)
        for job, tokens in computing:
            job.held += tokens
        for job in decoding:
            self._generate(job)
        self._intercept([job for job in decoding if job.held and not job.paused])
        return True

    def _pass(self, seconds: float, steps: int) -> None:
        self._now += seconds
        self.out.seconds = self._now
        self.out.steps += steps
        self.out.preserved += seconds * sum(job.held for job in self.paused)

    def _choose_batch(self) -> tuple[list[_Job], list[tuple[_Job, int]], int]:
        """Plans a step: which requests decode, compute context, and are swapped in."""
        machine, costs = self._machine, self._machine.costs
        free = machine.memory - sum(job.held for job in (*self.ready, *self.paused))
        decoding = [j for j in self.ready if j.held == j.context and not j.away]
        while len(decoding) > free:  # each needs room for a token
            last = max((j for j in self.ready if j.held), default=None)
            if last is None:
                break
            free += self._preempt(last)
            if last in decoding:
                decoding.remove(last)
        free -= len(decoding)
        left = costs.chunk(len(decoding)) if machine.chunked else WHOLE_BATCH
        back = self._budget_back(len(decoding))
        computing: list[tuple[_Job, int]] = []
        moved = 0
        for job in self.ready:
            if job in decoding:
                continue
            if job.away:
                if job.away > free:
                    free += self._make_room(job, job.away - free)
                if job.away > free:
                    break
                free -= job.away
                tokens = min(job.away, back - moved)
                moved += tokens
                job.held, job.away = job.held + tokens, job.away - tokens
                continue
            need = job.context - job.held
            tokens = min(need, left)
            if tokens <= 0:
                break
            if need + 1 > free:
                free += self._make_room(job, need + 1 - free)
            if need + 1 > free:  # FIFO: no request overtakes
                break
            # What it will need is kept for it: two that have half of it each would block each
            # other.
            free -= need + 1
            computing.append((job, tokens))
            left -= tokens
        return decoding, computing, moved

    def _budget_back(self, decoding: int) -> int:
        """Tokens that may come back in a step: what hides behind it beside those that go out, but
        at least a page; all if nothing runs, or this system knows no budget.
        """
        machine, costs = self._machine, self._machine.costs
        if not decoding or not machine.within_budget:
            return machine.memory
        hidden = costs.swap_budget(costs.step_time(decoding), machine.swap_share)
        return max(costs.page_size, hidden - self._leaving)

    def _make_room(self, job: _Job, count: int) -> int:
        """Preempts later jobs that hold memory, if that is enough; returns what became free."""
        later = [other for other in self.ready if job < other and other.held]
        if sum(other.held for other in later) < count:
            if not any(j.held for j in self.ready):  # only paused requests hold memory
                return self._drop_paused(count)
            return 0
        freed = 0
        for other in reversed(later):
            if freed < count and other.held < other.context:  # one that decodes makes progress
                freed += self._preempt(other)
        return freed

    def _drop_paused(self, count: int) -> int:
        freed = 0
        for other in sorted(self.paused, reverse=True):
            if freed < count:
                freed += other.held
                other.dropped, other.held = True, 0
        return freed

    def _preempt(self, job: _Job) -> int:
        freed, job.held = job.held, 0
        job.recompute = max(job.recompute, freed)
        return freed

    def _generate(self, job: _Job) -> None:
        job.context, job.held, job.made = job.context + 1, job.held + 1, job.made + 1
        segment = job.request.segments[job.at]
        if job.made < segment.tokens:
            return
        self.ready.remove(job)
        if job.at == len(job.request.segments) - 1:
            since = job.request.arrival + job.request.outside
            latency = (self._now - since) / job.request.generated
            ended = {"kind": job.request.kind, "latency": latency, "end": self._now}
            self.out.finished.append(ended)
            job.held = 0
            return
        job.paused, job.paused_since = True, self._now
        job.until = self._now + segment.seconds
        self.paused.append(job)

    # The policy

    def _intercept(self, decoding: list[_Job]) -> None:
        """Carries out the policy's choices for paused requests, when a step has ended.

        What is given up is gone at once; what goes out is under way during the next step.
        """
        jobs = [job for job in self.paused if job.held and job.until > self._now]
        if not jobs:
            return
        machine, costs = self._machine, self._machine.costs
        seconds = costs.step_time(max(1, len(decoding)))
        budget = costs.swap_budget(seconds, machine.swap_share)
        room = machine.host - sum(j.away for j in (*self.ready, *self.paused))
        running = sum(job.held for job in decoding)
        load = Load(len(decoding), running, budget, room, budget / seconds)
        facts = [self._facts(job) for job in jobs]
        moved = 0
        for job, choice in zip(jobs, self._policy(facts, load, costs), strict=True):
            if choice is Choice.DISCARD:
                job.held, job.dropped = 0, True
            elif choice is Choice.SWAP:
                most = min(room, budget) if machine.within_budget else room
                tokens = max(0, min(job.held, most - moved))
                job.held -= tokens
                job.away += tokens
                moved += tokens
        self.out.swapped += moved
        self.out.over_budget += max(0, moved - budget)
        self._leaving += moved

    def _facts(self, job: _Job) -> Paused:
        elapsed = self._now - job.paused_since
        left, half = self._durations.remaining("", job.request.kind, elapsed)
        return Paused(job.number, job.held, left, can_discard=not job.away, half=half)
