"""The state of one model as the evictor, the policies and programs' advice see it, with the
durations of earlier waits.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Protocol

import structlog

from pie_control.interception.waste import Choice, Load, Paused

if TYPE_CHECKING:
    from pie_control.instances.futures import Outside
    from pie_control.instances.instance import Instance
    from pie_control.interception.costs import Costs, LearnedCosts
    from pie_control.interception.policy import Policy
    from pie_control.resources.pools import Allotments, HostMemory, PagePool
    from pie_control.resources.space import Space
    from pie_control.scheduler.scheduler import Scheduler
    from pie_py.wire.plan import ModelDescription

NEWEST = 64  # newest waits of a kind
MOST_KINDS = 4096  # those not seen for longest make room


class _Waits:
    """Waits of one kind, sorted lazily: policies ask far more often than waits end."""

    def __init__(self) -> None:
        self._newest: deque[float] = deque(maxlen=NEWEST)
        self._sorted: list[float] | None = None
        self._sums: list[float] = []  # of the i longest

    def add(self, seconds: float) -> None:
        self._newest.append(seconds)
        self._sorted = None

    def mean_beyond(self, elapsed: float) -> float | None:
        """Mean of those that lasted longer; None if there are none."""
        if self._sorted is None:
            self._sorted = sorted(self._newest)
            self._sums = list(accumulate(reversed(self._sorted), initial=0.0))
        count = len(self._sorted) - bisect_right(self._sorted, elapsed)
        return self._sums[count] / count if count else None

    def median_beyond(self, elapsed: float) -> float:
        """Median of those that lasted longer, of which there is one."""
        assert self._sorted is not None, "mean_beyond comes first"
        first = bisect_right(self._sorted, elapsed)
        return self._sorted[(first + len(self._sorted)) // 2]


class Durations:
    """Durations by kind: a user's tool, host, or what else a program waits for."""

    def __init__(self) -> None:
        self._seen: OrderedDict[tuple[str, str], _Waits] = OrderedDict()

    def add(self, user: str, kind: str, seconds: float) -> None:
        """Notes a wait that has ended."""
        key = (user, kind)
        seen = self._seen.get(key)
        if seen is None:
            seen = self._seen[key] = _Waits()
            if len(self._seen) > MOST_KINDS:
                self._seen.popitem(last=False)
        self._seen.move_to_end(key)
        seen.add(seconds)

    def mean_beyond(self, user: str, kind: str, elapsed: float) -> float | None:
        """The mean of those that lasted longer; None if there were none."""
        seen = self._seen.get((user, kind))
        return None if seen is None else seen.mean_beyond(elapsed)

    def remaining(self, user: str, kind: str, elapsed: float) -> tuple[float, float]:
        """Seconds that a wait is expected to last beyond those that it has lasted, and seconds
        after which half of such waits have ended.

        The mean over earlier waits that were longer, and the median. If none was, as long again as
        so far: InferCept's estimate where nothing is known of a call.
        """
        seen = self._seen.get((user, kind))
        mean = None if seen is None else seen.mean_beyond(elapsed)
        if seen is None or mean is None:
            return elapsed, elapsed
        # Rounding may put the mean of sums below the shortest of them.
        return max(0.0, mean - elapsed), seen.median_beyond(elapsed) - elapsed

    def __len__(self) -> int:
        return len(self._seen)


log = structlog.get_logger("pie.interception")
SWAP_SHARE = 0.25  # of a step's time, for pages that are moved ahead of need
LOW_WATER = 0.1  # free share of the pool that is kept up


class PageReclaim(Protocol):
    """Who makes way when pages of a model are short."""

    def page_allotments(self) -> Allotments:
        """Users' allotments of the pages, by what their instances and exports hold."""

    def end_younger(self, instance: Instance, count: int) -> bool:
        """Ends instances that make way until `count` pages are free, if that can be enough."""


class ServedModel(Protocol):
    """One model with its pools, its instances' addresses, and its scheduler."""

    description: ModelDescription
    pages: PagePool
    host_pages: HostMemory
    spaces: dict[Instance, Space]
    scheduler: Scheduler

    @property
    def reclaim(self) -> PageReclaim:
        """Ends instances when pages are short."""

    @property
    def running(self) -> int:
        """Instances that have commands queued or at the worker."""


class TransferBudget:
    """Pages that may still be moved in one direction in this step, by any part of the server.

    Their transfer hides behind the step's computation.
    """

    def __init__(
        self, service: ServedModel, costs: LearnedCosts | None, *, inward: bool = False
    ) -> None:
        self._service = service
        self._costs = costs
        self._inward = inward
        self._plan = -1
        self._left = 0
        self._whole = 0  # at the step's beginning
        self._step = 0.0  # its seconds, about

    @property
    def left(self) -> int:
        """Pages; 0 if the costs are unknown."""
        self._look()
        return self._left

    @property
    def rate(self) -> float:
        """Pages a second that go beside steps such as this one; 0 if that hides none."""
        self._look()
        return self._whole / self._step if self._step else 0.0

    def spend(self, pages: int) -> None:
        """Counts pages that are moved."""
        self._left = max(0, self._left - pages)

    def step_seconds(self) -> float:
        """Seconds that a step takes at present, about."""
        self._look()
        return self._step

    def _look(self) -> None:
        """Begins a step if a plan has been sent."""
        plan = self._service.scheduler.plans_sent
        if self._costs is None or plan == self._plan:
            return
        self._plan = plan
        costs = self._costs.now
        self._step = costs.step_time(max(1, self._service.running))
        transfer = costs.swap_in if self._inward else costs.swap_out
        pages = 0 if transfer is None else transfer.pages_within(SWAP_SHARE * self._step)
        # Instances must come back, however slow that is.
        self._left = self._whole = max(1, pages) if self._inward else pages


class PolicyInput:
    """The input of the policies for one model, and their choices."""

    def __init__(
        self,
        model: ServedModel,
        policy: Policy,
        costs: LearnedCosts | None,
        durations: Durations,
        clock: Callable[[], float],
    ) -> None:
        """Looks at nothing yet. Without costs that the worker has measured no policy is asked."""
        self.model = model
        self.policy = policy
        self._costs = costs
        # Pages that may move in a step behind its computation: out, and in.
        self.outward = TransferBudget(model, costs)
        self.inward = TransferBudget(model, costs, inward=True)
        self.durations = durations
        self.now = clock
        self.low_water = int(LOW_WATER * model.pages.size)  # pages
        self.wanted: Callable[[], int] = lambda: 0  # pages that instances wait for
        self.offered: Callable[[], int] = lambda: 0  # that programs discard if they are advised to

    @property
    def costs(self) -> Costs | None:
        """The times of steps and transfers now, if they are known."""
        return None if self._costs is None else self._costs.now

    def load(
        self,
        swap_pages: int,
        swap_rate: float = 0.0,
        *,
        without: Instance | None = None,
        wanted: int = 0,
    ) -> Load:
        """The load of the model now, but for that of `without`: pages that may be swapped out in
        this step, and pages a second that may be in later ones, are given; and pages that are
        wanted beside those that instances wait for.
        """
        spaces, page_size = self.model.spaces, self.model.pages.page_size
        running = [i for i in spaces if i.queued_commands and i is not without]
        tokens = sum(spaces[i].pages.resident for i in running) * page_size
        room = self.model.host_pages.free * page_size
        return Load(
            sequences=len(running),
            running_tokens=tokens,
            swap_budget=swap_pages * page_size,
            host_room=room,
            swap_rate=swap_rate * page_size,
            lacking=(self.wanted() + wanted - self.model.pages.free) * page_size,
            reserve=self.low_water * page_size,
        )

    def facts(self, instance: Instance) -> Paused:
        """A paused instance whose pages the server may swap. It cannot recompute them."""
        tokens = self.model.spaces[instance].pages.resident * self.model.pages.page_size
        remaining, half = self._until_first(instance)
        return Paused(instance.number, tokens, remaining, can_discard=False, half=half)

    def worth(self, instance: Instance) -> int:
        """The highest priority that an instance has given to one of its pages."""
        _, pages = self.model.spaces[instance].pages.all_resident()
        worth = self.model.pages.retention.of(pages, self.now())
        return int(worth.max()) if len(worth) else 0

    def choose(self, paused: Sequence[Paused], swap_pages: int, wanted: int) -> list[Choice]:
        """The operator's policy for paused instances, where so many pages are wanted beside those
        that instances wait for; `PRESERVE` for all if it cannot be asked.
        """
        costs = self.costs
        if costs is None or not paused:
            return [Choice.PRESERVE] * len(paused)
        try:
            choices = self.policy(paused, self.load(swap_pages, wanted=wanted), costs)
            if len(choices) != len(paused):
                raise ValueError(f"{len(choices)} choices for {len(paused)} paused instances")
        except Exception:  # an operator's own policy: the server goes on without it
            log.exception("an interception policy failed")
            return [Choice.PRESERVE] * len(paused)
        return choices

    def _until_first(self, instance: Instance) -> tuple[float, float]:
        """Seconds until the first of the futures that an instance waits for, as far as is known: as
        expected, and of half of such waits.
        """
        now = self.now()
        found = (instance.futures.find(handle) for handle in instance.turn.awaited or ())
        waits = [future.outside for future in found if future is not None and future.outside]
        return min((self._left(instance, wait, now) for wait in waits), default=(0.0, 0.0))

    def _left(self, instance: Instance, wait: Outside, now: float) -> tuple[float, float]:
        if wait.due is not None:
            return (max(0.0, wait.due - now),) * 2
        return self.durations.remaining(instance.user, wait.kind, now - wait.since)
