"""Times of swapping and recomputing tokens, as the worker measures them at load and later."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pie_control.scheduler.commands.forward import ForwardCommand
from pie_control.scheduler.in_flight import PlanBatch
from pie_py.wire.plan import BatchResult, Forward, SwapIn, SwapOut

SATURATED = 0.75  # share of the best measured rate at which a batch counts as saturating the device


@dataclass(frozen=True, slots=True)
class Transfer:
    """Pages between pool and host: a fixed part and a rate."""

    seconds: float
    pages_per_second: float

    def time(self, pages: float) -> float:
        """Seconds that a transfer of pages takes."""
        return self.seconds + pages / self.pages_per_second if pages else 0.0

    def pages_within(self, seconds: float) -> int:
        """Most pages whose transfer takes no longer than this."""
        return max(0, math.floor((seconds - self.seconds) * self.pages_per_second))


@dataclass(frozen=True, slots=True)
class Costs:
    """The cost model of one model on one machine (InferCept, section 4; see
    `docs/interception.md`).

    A forward of `n` inputs takes `fixed + linear·n + quadratic·n²` seconds if they are one
    sequence.
    """

    page_size: int
    fixed: float
    linear: float
    quadratic: float
    saturation: int  # S: inputs from which on a batch gives hardly more tokens per second
    decodes: tuple[tuple[int, float], ...]  # sequences, seconds of a step, ascending
    swap_out: Transfer | None  # None without host memory
    swap_in: Transfer | None

    @classmethod
    def measured(cls, facts: dict[str, Any]) -> Costs:
        """From the worker's `kv-costs`."""
        fixed, linear, quadratic = facts["prefill"]["fit"]
        tokens, seconds = facts["prefill"]["tokens"], facts["prefill"]["seconds"]
        rates = [n / t for n, t in zip(tokens, seconds, strict=True)]
        enough = SATURATED * max(rates)
        decode = facts["decode"]
        return cls(
            page_size=facts["page_size"],
            fixed=fixed,
            linear=linear,
            quadratic=quadratic,
            saturation=next(n for n, rate in zip(tokens, rates, strict=True) if rate >= enough),
            decodes=tuple(zip(decode["sequences"], decode["seconds"], strict=True)),
            swap_out=_transfer(facts["swap_out"], facts["page_bytes"]),
            swap_in=_transfer(facts["swap_in"], facts["page_bytes"]),
        )

    def step_time(self, sequences: int, inputs: int = 0) -> float:
        """Seconds of a step that decodes some sequences and computes further inputs beside them.

        Interpolated between what was measured; beyond it, in proportion to the last piece.
        """
        beside = self.linear * inputs
        if not sequences or not self.decodes:
            computed = sequences + inputs
            return self.fixed + self.linear * computed if computed else 0.0
        (low, start), *rest = self.decodes
        if sequences <= low or not rest:
            return start + beside
        for high, end in rest:
            if sequences <= high:
                break
            if (high, end) != rest[-1]:
                low, start = high, end
        more = (end - start) * (sequences - low) / (high - low)
        return max(start, start + more) + beside

    def recompute_time(self, tokens: float) -> float:
        """Seconds by which a context's computation, alone or in chunks, lengthens other steps."""
        return self.linear * tokens + self.quadratic * tokens * tokens

    def forward_time(self, tokens: float) -> float:
        """Seconds of a forward that computes a context, alone."""
        return self.fixed + self.recompute_time(tokens)

    def chunk(self, sequences: int) -> int:
        """Tokens to recompute beside a running batch: what it leaves of the device."""
        return max(self.saturation - sequences, 1)

    def pages(self, tokens: float) -> int:
        """Pages that hold as many tokens."""
        return math.ceil(tokens / self.page_size)

    def swap_time(self, tokens: float) -> float:
        """Seconds out and back in; infinite without host memory."""
        if self.swap_out is None or self.swap_in is None:
            return math.inf
        pages = self.pages(tokens)
        return self.swap_out.time(pages) + self.swap_in.time(pages)


def _transfer(facts: dict[str, float] | None, page_bytes: int) -> Transfer | None:
    if facts is None:
        return None
    return Transfer(facts["seconds"], facts["bytes_per_second"] / page_bytes)


NEWEST = 11  # measurements of which the median counts
PRIOR = 2  # of these, at first, that the prior stands for
INTERVAL = 0.25  # seconds whose work is one measurement
AGAIN = 30.0  # seconds without one after which a transfer's cost halves
BOUND = 64.0  # a cost is no more than so many times its prior, and no less than that part
LEAST_BOUND = 0.01  # seconds that a transfer's fixed part may have, however small its prior is
MANY = 8  # pages of a transfer that tells the rate
LEAST_SHARE = 0.25  # of a time, that is not put down to something else


class Measured:
    """One cost, as the median of what was measured lately."""

    def __init__(self, prior: float, clock: Callable[[], float], most: float = 0.0) -> None:
        """Takes the prior, trio's clock, and a bound, if that is higher than the prior's."""
        self._clock = clock
        self._least, self._most = prior / BOUND, max(prior * BOUND, most)
        self._newest = deque([prior] * PRIOR, maxlen=NEWEST)
        self._median = prior
        self._amount = self._taken = 0.0
        self.since = clock()  # when the newest was added

    def took(self, seconds: float, amount: float) -> None:
        """Learns that an amount has taken so long."""
        self._taken += seconds
        self._amount += amount
        now = self._clock()
        if now - self.since < INTERVAL and len(self._newest) > PRIOR:
            return
        cost = self._taken / self._amount
        self._newest.append(min(max(cost, self._least), self._most))
        self._median = statistics.median(self._newest)
        self._taken = self._amount = 0.0
        self.since = now

    @property
    def value(self) -> float:
        """Seconds for one."""
        return self._median

    def untried(self, since: float) -> float:
        """The same, lower the longer ago the last measurement is."""
        halvings = int((self._clock() - since) / AGAIN)
        return max(self._least, self._median / 2.0 ** min(halvings, 30))


class _Way:
    """Transfers in one direction: a fixed part, and a part for each page."""

    def __init__(self, prior: Transfer, clock: Callable[[], float]) -> None:
        self._fixed = Measured(prior.seconds, clock, LEAST_BOUND)
        self._page = Measured(1 / prior.pages_per_second, clock)

    def took(self, pages: int, seconds: float) -> None:
        """Learns from a transfer: one part of its time, whichever is the larger."""
        moving, fixed = pages * self._page.value, self._fixed.value
        if pages >= MANY and moving >= fixed:
            self._page.took(max(seconds - fixed, LEAST_SHARE * seconds), pages)
        else:
            self._fixed.took(max(seconds - moving, 0.0), 1)

    @property
    def now(self) -> Transfer:
        """The time of a transfer now."""
        since = max(self._fixed.since, self._page.since)
        return Transfer(self._fixed.untried(since), 1 / self._page.untried(since))


class LearnedCosts:
    """The costs of one model now, as they are measured while the server serves; what it measured at
    its start is the prior.

    A measurement at a start in a busy second must not decide for the server's life, and a busy
    second later must not either. So each cost is the median of its newest measurements, of which
    every quarter of a second of work gives one, and the prior counts as two. Where a cost keeps
    what it is about from being done, nothing would ever correct it: while none of its transfers is
    measured it halves again and again, until one is tried.

    What batches take is the same for all users whose commands are in them: no user steers another's
    costs by them. All costs stay within bounds around the prior.
    """

    def __init__(self, facts: dict[str, Any], clock: Callable[[], float]) -> None:
        """Begins with what the worker measured at its start, `kv-costs`; takes trio's clock."""
        self._prior = prior = Costs.measured(facts)
        self._steps = Measured(1.0, clock)  # times the prior
        self._prompts = Measured(1.0, clock)
        self._ways: dict[str, _Way] = {}
        if prior.swap_out is not None and prior.swap_in is not None:
            self._ways = {SwapIn.kind: _Way(prior.swap_in, clock)}
            # Copies out run beside a GPU's kernels: what their batch takes is not their time, and
            # they are taken to be as fast as those in.
            if not facts.get("out_beside_kernels"):
                self._ways[SwapOut.kind] = _Way(prior.swap_out, clock)

    @property
    def now(self) -> Costs:
        """The costs by what was measured last."""
        prior, steps, prompts = self._prior, self._steps.value, self._prompts.value
        ways = {kind: way.now for kind, way in self._ways.items()}
        return replace(
            prior,
            fixed=prior.fixed * prompts,
            linear=prior.linear * prompts,
            quadratic=prior.quadratic * prompts,
            decodes=tuple((n, seconds * steps) for n, seconds in prior.decodes),
            swap_out=ways.get(SwapOut.kind, ways.get(SwapIn.kind)),
            swap_in=ways.get(SwapIn.kind),
        )

    def seconds_of_pages(self, first: int, end: int) -> float:
        """Seconds that it takes to compute a text's pages from one on up to another."""
        costs = self.now
        size = costs.page_size
        return costs.recompute_time(end * size) - costs.recompute_time(first * size)

    def move_pays(self, pages: int) -> bool:
        """True if to swap so many pages out and in takes less long than to compute them."""
        costs, tokens = self.now, pages * self._prior.page_size
        return costs.swap_time(tokens) < costs.recompute_time(tokens)

    def took(self, batches: Sequence[PlanBatch], results: Sequence[BatchResult]) -> None:
        """Learns from batches that the worker has run one after the other."""
        taken = 0.0
        forwards: list[PlanBatch] = []
        for batch, result in zip(batches, results, strict=True):
            if result.error is not None:
                return
            seconds = result.nanoseconds / 1e9
            if batch.kind not in (SwapIn.kind, SwapOut.kind):
                taken += seconds
            elif seconds and batch.pages_moved and (way := self._ways.get(batch.kind)):
                way.took(batch.pages_moved, seconds)
            if batch.kind == Forward.kind:
                forwards.append(batch)
        if not (forwards and taken):
            return
        prior = self._prior
        decoding = computing = 0.0  # seconds by the prior
        for batch in forwards:
            prompts = [
                (int(each.page_used.sum()), len(each.inputs))
                for each in batch.commands
                if isinstance(each, ForwardCommand) and len(each.inputs) > 1
            ]
            sequences = len(batch.commands) - len(prompts)
            sequences += 0 if batch.steps is None else batch.steps.count
            decoding += prior.step_time(sequences)
            if prompts and not sequences:
                computing += prior.fixed
            for before, more in prompts:
                computing += prior.linear * more
                computing += prior.quadratic * ((before + more) ** 2 - before**2)
        if decoding and not computing:
            self._steps.took(taken, decoding)
        elif computing > LEAST_SHARE * decoding:  # fewer tokens tell of the step's noise alone
            beside = decoding * self._steps.value
            self._prompts.took(max(taken - beside, LEAST_SHARE * taken), computing)
