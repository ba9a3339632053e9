"""One served model, as the rest of the control layer sees it: pools, exports, spaces, scheduler."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from pie_control.errors import ApiError
from pie_control.instances.instance import Handles
from pie_control.interception.advice import SwapAdvice
from pie_control.interception.evictor import Evictor
from pie_control.interception.history import Durations
from pie_control.interception.learned_costs import LearnedCosts
from pie_control.interception.policy import load_policy
from pie_control.interception.policy_input import PolicyInput, TransferBudget
from pie_control.models.adapters import Adapters
from pie_control.prefix import PrefixCache
from pie_control.resources.exports import Exports
from pie_control.resources.host_memory import HostMemory, HostPages
from pie_control.resources.parts import Parts
from pie_control.resources.pools import EmbedPool, FreeList, PagePool
from pie_control.resources.samplers import PROGRAM_BYTES, SamplerPool, Samplers
from pie_control.resources.space import Space
from pie_control.scheduler.commands.command import CommandQueue
from pie_control.scheduler.commands.run import RunCommand
from pie_control.scheduler.scheduler import Scheduler
from pie_py.config.server import ServerConfig
from pie_py.wire.plan import ModelDescription

if TYPE_CHECKING:
    from pie_control.instances.instance import Ends, Instance, Turns
    from pie_control.shares import Share, Shares
    from pie_control.timers import Timers


@dataclass(frozen=True, slots=True, eq=False)
class OpenQueue:
    """A queue with what its commands concern: the model, and the instance's addresses there."""

    queue: CommandQueue
    model: ModelService
    space: Space
    scheduler: Scheduler
    runs: Handles[RunCommand] = field(default_factory=Handles)

    def defer(self, pages: list[int], embeds: list[int], release: Callable[[], None]) -> None:
        """Calls back once no command that the instance has queued so far names them."""
        self.scheduler.defer(self.queue.account, (pages, embeds), release)

    def end_run(self, run: RunCommand, count: int) -> list[int]:
        """Ends a run, of which the first `count` tokens stand. Returns spans of the pages that it
        has taken and that hold tokens.
        """
        self.scheduler.end_run(run)
        run.sampler.go_back(run.step + count, run.step + len(run.received))
        stay = max(0, count - 1)
        provenance = self.queue.account.provenance
        if provenance is not None:
            run.record(provenance, stay)
        return run.pages.end(stay, self.defer)

    def close(self) -> None:
        """Ends its runs, whose handles end with it."""
        for run in self.runs.values():
            self.end_run(run, 0)
        self.runs.clear()


@dataclass(frozen=True, slots=True)
class ModelParts:
    """The parts of the server that its models share."""

    config: ServerConfig
    shares: Shares  # of the users
    turns: Turns  # gives instances their turns when their pages are back
    ends: Ends  # ends younger instances for want of resources
    durations: Durations  # of earlier waits, by kind
    clock: Callable[[], float]  # trio's, in seconds
    timers: Timers  # by the clock
    clock_ns: Callable[[], int]  # the executor's, of time lines


class ModelService:
    """The control layer's side of one model, as long as its worker lives."""

    def __init__(
        self, description: ModelDescription, parts: ModelParts, logit_rows: FreeList
    ) -> None:
        """Has no instance yet; `logit_rows` are the worker's, of all models."""
        config, shares, clock = parts.config, parts.shares, parts.clock
        self.description = description
        self.traits = frozenset(description.traits)
        self.info: str | None = None  # what `model-info` answers, once an instance has asked
        self.pages = PagePool(description.kv_pages, description.page_size)
        self.embeds = EmbedPool(description.embeds)
        self.samplers = SamplerPool(
            description.samplers, description.count_rows, first_name=description.embeds
        )
        self.logit_rows = logit_rows
        self.host_pages = HostMemory(description.host_pages, first_name=description.kv_pages)
        self.exports = Exports(self.pages, shares, description.name, clock, parts.timers)
        self.adapters = Adapters(description.name, description.adapters)
        self.clock = clock
        self._ends = parts.ends
        weight_of = shares.quotas.weight
        facts, share = description.kv_costs, config.interception.swap_share
        costs = None if facts is None else LearnedCosts(facts, clock)
        budgets = TransferBudget(self, costs, share), TransferBudget(self, costs, share, True)
        self.scheduler = Scheduler(
            description,
            config.scheduler,
            parts.clock_ns,
            weight_of,
            None if costs is None else (budgets[1], costs.took),
        )
        self.prefixes = PrefixCache(
            self.pages, config.prefix_cache, self.scheduler.after_results, clock
        )
        self._queues = 0
        self.spaces: dict[Instance, Space] = {}
        self._declare_shares(shares)
        interception = config.interception
        policy = load_policy(interception.policy)
        policy_input = PolicyInput(self, policy, costs, parts.durations, clock)
        self.swap_advice = SwapAdvice(self, policy_input, budgets)
        self.evictor: Evictor | None = None
        if interception.policy != "preserve":
            self.evictor = Evictor(
                self, parts.turns, parts.ends, interception, policy_input, budgets, clock
            )

    def check_trait(self, trait: str) -> None:
        """Refuses functions of a trait that the model lacks. Raises ApiError `unsupported`."""
        if trait not in self.traits:
            name = self.description.name
            raise ApiError("unsupported", f"model {name!r} does not have the trait `{trait}`")

    def space(self, instance: Instance) -> Space:
        """The instance's addresses of this model, made on first use."""
        space = self.spaces.get(instance)
        if space is None:
            limits = instance.limits
            samplers = Samplers(self.samplers, limits.samplers)
            host = HostPages(self.host_pages, limits.host_pages)
            space = Space(self.pages, self.embeds, limits.kv_pages, limits.embeds, samplers, host)
            self.spaces[instance] = space
        return space

    def open_queue(self, instance: Instance) -> OpenQueue:
        """Opens a queue of this model for an instance."""
        self._queues += 1
        queue = self.scheduler.open_queue(instance)
        return OpenQueue(queue, self, self.space(instance), self.scheduler)

    def forget_queue(self) -> None:
        """Counts a queue that its instance has closed."""
        self._queues -= 1

    @property
    def running(self) -> int:
        """Instances that have commands queued or at the worker."""
        return sum(bool(instance.queued_commands) for instance in self.spaces)

    def take_pages(
        self,
        instance: Instance,
        count: int,
        take: Callable[[], Any],
        answer: Callable[[Any], None] | None = None,
    ) -> Any:
        """Carries out a call that takes pages, now or, with `SUSPENDED`, when there are enough.

        The pages were checked against the instance's limits. `take` may end younger instances
        (`end_younger`) if pages are short; `answer` gets what it returns, or its error, if that is
        later: by default the guest.
        """
        if self.evictor is None:
            return take()
        if self.pages.free < count:
            self._free_ended(count, self.pages, lambda space: space.pages_held)
        return self.evictor.call(instance, count, take, answer)

    def has_spare_page(self) -> bool:
        """Whether a page is free that no instance waits for."""
        return self.pages.free > 0 and (self.evictor is None or not self.evictor.waits)

    def end_younger(self, instance: Instance, count: int) -> bool:
        """Ends instances that hold pages and make way, until `count` are free.

        Ends no instance if that could not be enough.
        """
        return self._reclaim(instance, count, self.pages, lambda space: space.pages_held)

    def reclaim_embeds(self, instance: Instance, count: int) -> bool:
        """Ends instances until `count` embeds are free. As `end_younger`."""
        return self._reclaim(instance, count, self.embeds, lambda space: space.embeds_held)

    def _reclaim(
        self,
        instance: Instance,
        count: int,
        pool: PagePool | EmbedPool,
        held: Callable[[Space], int],
    ) -> bool:
        if self._free_ended(count, pool, held):
            return True
        victims = self._victims(instance, count, pool, held)
        if pool.free + sum(held(self.spaces[i]) for i in victims) < count:
            return False
        return self._ends.reclaim(victims, lambda: pool.free >= count)

    def _free_ended(
        self, count: int, pool: PagePool | EmbedPool, held: Callable[[Space], int]
    ) -> bool:
        """Frees what ended instances hold, until enough is free; returns whether it is."""
        ended = [i for i, space in self.spaces.items() if i.ended is not None and held(space)]
        return self._ends.reclaim(ended, lambda: pool.free >= count)

    def _victims(
        self,
        instance: Instance,
        count: int,
        pool: PagePool | EmbedPool,
        held: Callable[[Space], int],
    ) -> list[Instance]:
        """The instances that may be ended for another one, the first to end first.

        `Parts.makes_way` has the rule; those of other users come before the user's own.
        """
        parts = self._parts(pool, held)
        found = [
            other
            for other, space in self.spaces.items()
            if held(space) and parts.makes_way(other, instance, count)
        ]
        return sorted(found, key=lambda i: (i.user == instance.user, -i.number))

    def page_parts(self) -> Parts:
        """Users' parts of the pages, by what their instances and exports hold."""
        return self._parts(self.pages, lambda space: space.pages_held)

    def _parts(self, pool: PagePool | EmbedPool, held: Callable[[Space], int]) -> Parts:
        of_user: Counter[str] = Counter()
        if pool is self.pages:
            of_user.update(self.exports.listed)
        for instance, space in self.spaces.items():
            of_user[instance.user] += held(space)
        exactly = self._pages_of if pool is self.pages else of_user.__getitem__
        return Parts(pool.size, of_user, exactly)

    def _pages_of(self, user: str) -> int:
        """Pages that a user's instances and exports hold, shared ones once."""
        spaces = [space for instance, space in self.spaces.items() if instance.user == user]
        holds = np.zeros(self.pages.size, np.bool_)
        for pages in self.exports.of_user(user):
            holds[pages] = True
        for space in spaces:
            holds[space.pages.all_resident()[1]] = True
        return int(np.count_nonzero(holds)) + sum(
            space.pages_held - space.pages.resident for space in spaces
        )

    def _declare_shares(self, shares: Shares) -> None:
        def of_user(held: Callable[[Space], int]) -> Callable[[str], int]:
            return lambda user: sum(held(s) for i, s in self.spaces.items() if i.user == user)

        name = self.description.name
        shares.add_lent(f"{name}: KV pages", of_user(lambda space: space.pages.resident))

        def add(what: str, size: int, held: Callable[[Space], int]) -> Share:
            return shares.add(f"{name}: {what}", size, of_user(held))

        rows = self.samplers.rows.size
        self.embed_share = add("embeds", self.embeds.size, lambda space: space.embeds_held)
        self.sampler_share = add("samplers", self.samplers.size, lambda space: len(space.samplers))
        self.remembering_share = add(
            "samplers that remember tokens", rows, lambda space: space.samplers.remembering
        )
        self.program_share = add(
            "bytes of device programs", PROGRAM_BYTES, lambda space: space.samplers.program_bytes
        )
        self.host_page_share = add(
            "host pages", self.host_pages.size, lambda space: space.host.held
        )

    def drop_instance(self, instance: Instance) -> None:
        """Frees all that an instance holds of this model. Idempotent.

        Commands of it that are at the worker run before any that is queued from now on, so what
        they touch may be given to others at once.
        """
        self.scheduler.drop_owner(instance)
        self.swap_advice.drop_instance(instance)
        if self.evictor is not None:
            self.evictor.forget(instance)
        self.adapters.drop_instance(instance)
        self._queues -= sum(queue.model is self for queue in instance.queues.values())
        for handle in [h for h, queue in instance.queues.items() if queue.model is self]:
            del instance.queues[handle]
        space = self.spaces.pop(instance, None)
        if space is not None:
            space.close()

    def stats(self) -> dict[str, Any]:
        """State of pools, exports, queues and scheduler, for people and metrics."""
        return {
            "model": self.description.name,
            "kv_pages": self.pages.size,
            "kv_pages_free": self.pages.free,
            "host_pages": self.host_pages.size,
            "host_pages_free": self.host_pages.free,
            "embeds": self.embeds.size,
            "embeds_free": self.embeds.free,
            "samplers": self.samplers.size,
            "samplers_free": self.samplers.slots.free,
            "adapters": self.adapters.names,
            "exports": len(self.exports),
            "exported_pages": self.exports.pages,
            "queues": self._queues,
            "interception": {} if self.evictor is None else self.evictor.stats(),
            **self.prefixes.stats(),
            **self.scheduler.stats(),
        }
