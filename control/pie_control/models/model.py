"""One served model, as the rest of the control layer sees it: pools, exports, spaces, scheduler."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from pie_control.errors import unsupported
from pie_control.instances.instance import Handles
from pie_control.instances.log import Released
from pie_control.interception.advice import SwapAdvice
from pie_control.interception.costs import LearnedCosts
from pie_control.interception.evictor import Evictor
from pie_control.interception.policy import load_policy
from pie_control.interception.policy_input import Durations, PolicyInput
from pie_control.models.adapters import MAX_ADAPTERS, Adapters
from pie_control.models.sharing import ModelShares, Reclaim
from pie_control.prefix import PrefixCache
from pie_control.prefix.room import Room
from pie_control.prefix.tree import Away
from pie_control.resources.exports import Exports
from pie_control.resources.pools import EmbedPool, FreeList, HostMemory, HostPages, PagePool
from pie_control.resources.samplers import SamplerPool, Samplers
from pie_control.resources.space import Space
from pie_control.scheduler.commands.command import CommandQueue
from pie_control.scheduler.commands.run import RunCommand
from pie_control.scheduler.scheduler import Scheduler
from pie_py.config.server import ServerConfig
from pie_py.wire.plan import Int32, ModelDescription

if TYPE_CHECKING:
    from pie_control.instances.instance import Ends, Instance, Turns
    from pie_control.shares import Shares
    from pie_control.timers import Timers


@dataclass(frozen=True, slots=True, eq=False)
class OpenQueue:
    """A queue with what its commands concern: the model, and the instance's addresses there."""

    queue: CommandQueue
    model: ModelService
    space: Space
    scheduler: Scheduler
    created_ns: int = 0  # Unix epoch
    runs: Handles[RunCommand] = field(default_factory=Handles)

    def tokens(self) -> array[int]:
        """Its tokens as far as the server has seen them, and those that a run of it has chosen."""
        branch = self.queue.branch
        found = array("i") if branch is None else branch.tokens
        for run in self.runs.values():
            if branch is not None and run.trail is branch.record and run.position == len(found):
                found += run.tokens
        return found

    def released(self, instance: Instance, handle: int, now_ns: int) -> None:
        """The context is no more: its text is kept for people."""
        branch = self.queue.branch
        if branch is not None:
            instance.released.add(
                Released(
                    handle=handle,
                    queue=self.queue.id,
                    model=self.model.description.name,
                    parent=branch.parent,
                    begins=branch.begins,
                    created_ns=self.created_ns,
                    released_ns=now_ns,
                    tokens=self.tokens(),
                )
            )

    def defer(self, pages: list[int], embeds: list[int], release: Callable[[], None]) -> None:
        """Calls back once no command that the instance has queued so far names them."""
        self.scheduler.defer(self.queue.account, (pages, embeds), release)

    def end_run(self, run: RunCommand, count: int) -> list[int]:
        """Ends a run, whose first `count` tokens stand; spans of its pages that hold tokens."""
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
class ModelDependencies:
    """The parts of a server that its models share."""

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
        self, description: ModelDescription, deps: ModelDependencies, logit_rows: FreeList
    ) -> None:
        """Has no instance yet; `logit_rows` are the worker's, of all models."""
        config, shares, clock = deps.config, deps.shares, deps.clock
        self.description = description
        self.traits = frozenset(description.traits)
        self.pages = PagePool(description.kv_pages, description.page_size)
        self.embeds = EmbedPool(description.embeds)
        self.samplers = SamplerPool(
            description.samplers, description.count_rows, first_name=description.embeds
        )
        self.logit_rows = logit_rows
        self.host_pages = HostMemory(description.host_pages, first_name=description.kv_pages)
        self.exports = Exports(self.pages, shares, description.name, clock, deps.timers)
        self.adapters = Adapters(description.name, description.adapters)
        self.adapter_share = shares.add(
            f"{description.name}: adapters", MAX_ADAPTERS, self.adapters.count_of
        )
        self.weights = ""  # their version; empty: as they were loaded
        self.clock = clock
        self.used_at = clock()  # by a queue that was opened, or an instance that ended
        self.spaces: dict[Instance, Space] = {}
        self.shares = ModelShares(
            description.name, shares, self.spaces, self.embeds, self.samplers, self.host_pages
        )
        self.reclaim = Reclaim(self.pages, self.embeds, self.exports, self.spaces, deps.ends)
        facts = description.kv_costs
        costs = None if facts is None else LearnedCosts(facts, clock)
        interception = config.interception
        policy = load_policy(interception.policy)
        policy_input = PolicyInput(self, policy, costs, deps.durations, clock)
        self.scheduler = Scheduler(
            description,
            config.scheduler,
            deps.clock_ns,
            shares.quotas.weight,
            None if costs is None else (policy_input.inward, costs.took),
        )
        send, pays = self.scheduler.send_first, (costs.move_pays if costs else lambda pages: False)
        self.prefixes = PrefixCache(
            *(self.pages, config.prefix_cache, self.scheduler.after_results, clock, deps.durations),
            partial(Away, self.pages, self.host_pages, send, pays),
            partial(self._fail_users, deps.ends),
        )
        seconds = costs.seconds_of_pages if costs else lambda first, end: 0.0
        self.room = Room(self.pages, self.prefixes.pauses, seconds, deps.timers, clock)
        self.swap_advice = SwapAdvice(policy_input)
        self.evictor: Evictor | None = None
        if interception.policy != "preserve":
            self.evictor = Evictor(policy_input, deps.turns, deps.ends, interception)

    def check_trait(self, trait: str) -> None:
        """Refuses functions of a trait that the model lacks. Raises ApiError `unsupported`."""
        if trait not in self.traits:
            name = self.description.name
            raise unsupported(f"model {name!r} does not have the trait `{trait}`")

    def space(self, instance: Instance) -> Space:
        """The instance's addresses of this model, made on first use."""
        space = self.spaces.get(instance)
        if space is None:
            limits = instance.limits
            samplers = Samplers(self.samplers, limits.samplers)
            host = HostPages(self.host_pages, limits.host_pages)
            space = Space(
                self.pages, self.embeds, limits.kv_pages, limits.embeds, samplers, host, self.clock
            )
            self.spaces[instance] = space
        return space

    def open_queue(self, instance: Instance, now_ns: int = 0) -> OpenQueue:
        """Opens a queue of this model for an instance, at a time since the Unix epoch."""
        self.used_at = self.clock()
        queue = self.scheduler.open_queue(instance)
        return OpenQueue(queue, self, self.space(instance), self.scheduler, now_ns)

    @property
    def is_held(self) -> bool:
        """True if a program has a queue, or anything of a pool, or an export is there."""
        pools = self.pages, self.embeds, self.samplers.slots, self.host_pages
        if any(pool.free < pool.size for pool in pools):
            return True
        return any(True for _ in self._queues())

    def _queues(self) -> Iterator[OpenQueue]:
        queues = (queue for each in self.spaces for queue in each.queues.values())
        return (queue for queue in queues if queue.model is self)

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
        (`Reclaim.end_younger`) if pages are short; `answer` gets what it returns, or its error, if
        that is later: by default the guest.
        """
        if self.evictor is None:
            return take()
        if self.pages.free < count:
            self.reclaim.free_ended(count, self.pages)
        return self.evictor.call(instance, count, take, answer)

    def _fail_users(self, ends: Ends, pages: Int32, reason: str) -> None:
        """Ends the instances that use some of the pages `[n]` of the pool."""
        for instance, space in [*self.spaces.items()]:
            if np.isin(space.pages.all_resident()[1], pages).any():
                ends.fail(instance, reason)

    def renew(self, version: str) -> None:
        """The worker computes with other weights from now on. Instances that live keep their pages,
        also those that the former ones have filled; no other one gets these.
        """
        self.weights = version
        self.prefixes.clear()
        self.exports.clear()
        for queue in self._queues():
            for run in queue.runs.values():
                run.note_version(version)

    def has_spare_page(self) -> bool:
        """True if a page is free that no instance waits for."""
        return self.pages.free > 0 and (self.evictor is None or not self.evictor.waiting)

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
        for handle in [h for h, queue in instance.queues.items() if queue.model is self]:
            queue = instance.queues.pop(handle)
            if instance.ended is not None:
                queue.released(instance, handle, instance.ended.time_ns)
        space = self.spaces.pop(instance, None)
        if space is not None:
            self.used_at = self.clock()
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
            "adapters": self.adapters.names(),
            "exports": len(self.exports),
            "exported_pages": self.exports.pages,
            "queues": sum(1 for _ in self._queues()),
            "interception": {} if self.evictor is None else self.evictor.stats(),
            **self.prefixes.stats(),
            "prefix_room_waits": self.room.waits,
            **self.scheduler.stats(),
        }
