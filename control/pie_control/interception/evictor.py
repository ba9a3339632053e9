"""Pages under pressure: who waits outside lends them, who needs them waits its turn, nobody is told.

The mechanism; who lends first is the policy's choice. One evictor serves one model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog

from pie_control.errors import ApiError
from pie_control.interception.absence import Absence, movable
from pie_control.interception.history import Durations
from pie_control.interception.policy import Policy
from pie_control.interception.waste import Choice, Load, Paused
from pie_control.wasm import SUSPENDED

if TYPE_CHECKING:
    from pie_control.instances.futures import Outside
    from pie_control.instances.instance import Instance
    from pie_control.instances.roles import Ends, Turns
    from pie_control.interception.budget import Budget
    from pie_control.interception.costs import Costs
    from pie_control.interception.served_model import ServedModel
    from pie_py.config.scheduling import InterceptionConfig
    from pie_py.wire.plan import SwapIn, SwapOut

log = structlog.get_logger("pie.interception")

SPARE_PAGES = 32  # moved beyond what a call needs, so that not every call has to look for pages


class _PagesComing(Exception):
    """There are not enough pages now, and there will be."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.count = count


@dataclass(slots=True, eq=False)
class _Waiter:
    """One who needs pages before it can go on."""

    instance: Instance
    count: int  # pages, besides its own that are away
    take: Callable[[], Any] | None  # the call that wants them; none if it only wants its own back
    until: float  # of the evictor's clock


class Evictor:
    """Moves pages of instances that do not run to the host pool, and back before they run.

    An instance is in one of these states:

    - it *runs*: it has commands queued or at the worker, or its turn comes;
    - it is *paused*: it waits, and nothing of it is queued, so what it waits for is outside. The server
      may take its pages. The wake that ends the pause brings them back first;
    - it *waits for pages*, in a call or after a pause. Pages go to those who wait in order of arrival
      (of launch). While one waits, a younger one that asks waits behind it. Its own pages may go to an
      older one;
    - it is *held*: an older one needs its pages. It gets no turn; once all its commands have been sent,
      its pages are taken, and it waits for them.

    Pages that others hold, too, stay where they are. If pages cannot come, because the host pool is full
    or nobody can lend any, the rule of Pie's section 5.2 decides, as it does without an evictor.
    """

    def __init__(
        self,
        service: ServedModel,
        turns: Turns,
        ends: Ends,
        config: InterceptionConfig,
        policy: Policy,
        costs: Costs | None,
        durations: Durations,
        budget: Budget,
        inward: Budget,
        clock: Callable[[], float],
    ) -> None:
        """Takes the model's service, what the policy wants to know, and what may move in a step.

        Without costs the policy is not asked.
        """
        self._service = service
        self._turns = turns
        self._ends = ends
        self._config = config
        self._policy = policy
        self._costs = costs
        self._durations = durations
        self._budget = budget
        self._inward = inward
        self._clock = clock
        self._low = int(config.low_water * service.pages.size)
        self._absences: dict[Instance, Absence] = {}
        self._waiters: dict[Instance, _Waiter] = {}
        self._held: dict[Instance, None] = {}
        self._woken: set[Instance] = set()  # whose turn has been refused
        self._stepping: Instance | None = None  # whose turn is about to begin
        self._calling: Instance | None = None  # whose call may wait
        self._settling = False
        self._counts = dict.fromkeys(
            ("evictions", "pages_evicted", "pages_restored", "page_waits", "held", "host_full"), 0
        )

    # Asked by the API and the executor

    def call(self, instance: Instance, count: int, take: Callable[[], Any]) -> Any:
        """Carries out a call that takes pages; or suspends the instance until it could be.

        Args:
            instance: that calls.
            count: pages that the call will take, about.
            take: the call; it ends in `make_room` if pages are short.

        Returns:
            What `take` returned, or `SUSPENDED`: the executor then answers.
        """
        if not any(waiting.number < instance.number for waiting in self._waiters):
            try:
                return self._try(instance, take)
            except _PagesComing as coming:
                count = coming.count
        self._counts["page_waits"] += 1
        self._waiters[instance] = _Waiter(instance, count, take, self._deadline())
        return SUSPENDED

    def _try(self, instance: Instance, take: Callable[[], Any]) -> Any:
        self._calling = instance
        try:
            return take()
        finally:
            self._calling = None

    def make_room(self, instance: Instance, count: int) -> bool:
        """Takes pages of those that do not run until `count` are free; tells whether they are.

        Raises:
            _PagesComing: within `call`, if waiting will help.
        """
        if self._evict_for(instance, count):
            return True
        if self._calling is instance and self._will_come(instance, count):
            raise _PagesComing(count)
        return False

    def wants_to_run(self, instance: Instance) -> None:
        """Called before the turn of an instance that this evictor blocks. It may unblock it."""
        self._woken.add(instance)
        if instance in self._held or instance in self._waiters:
            return
        self._waiters[instance] = _Waiter(instance, 0, None, self._deadline())
        if any(other.turn.scheduled and other.number < instance.number for other in self._absences):
            return  # an older one comes in this turn, too; its end serves both in order
        self._stepping = instance
        try:
            self.settle()
        finally:
            self._stepping = None

    @property
    def waits(self) -> bool:
        """Whether somebody waits for pages."""
        return bool(self._waiters)

    def after_turn(self) -> None:
        """Called at the end of every turn: serves who waits, and makes room ahead of need."""
        if self._waiters or self._held:
            self.settle()
        elif self._service.pages.free < self._low:
            self._relieve()

    def forget(self, instance: Instance) -> None:
        """Drops all notes about an instance that ends, before its space is closed."""
        self._absences.pop(instance, None)
        self._waiters.pop(instance, None)
        self._held.pop(instance, None)
        self._woken.discard(instance)
        instance.turn.blockers.discard(self)
        if self._waiters:
            self._turns.give_another()

    # Those who wait

    def settle(self) -> None:
        """Gives pages to those who wait for them, in order of arrival, as far as they suffice."""
        if self._settling:
            return
        self._settling = True
        try:
            for waiter in sorted(self._waiters.values(), key=lambda w: w.instance.number):
                if waiter.instance in self._waiters and not self._serve(waiter):
                    break
            if not self._waiters:
                for instance in list(self._held):
                    self._release(instance)
        finally:
            self._settling = False

    def _serve(self, waiter: _Waiter) -> bool:
        """Lets one go on if there are pages for it, or tells it that there won't be."""
        instance = waiter.instance
        absence = self._absences.get(instance)
        need = waiter.count + (absence.pages if absence is not None else 0)
        if not self._evict_for(instance, need):
            if self._clock() < waiter.until and self._will_come(instance, need):
                self._hold_for(instance, need)
                return False
            if not self._service.end_younger(instance, need):
                self._refuse(waiter, need)
                return True
        if absence is not None:
            # Beside others the pages come back as they went: with every step as many as hide behind it.
            beside = self._costs is not None and self._service.running > 0
            most = self._inward.left if beside else absence.pages
            if most > 0:
                moved = absence.end(partial(self._send, instance), most)
                self._inward.spend(moved)
                self._counts["pages_restored"] += moved
            if absence.pages:
                return False
            del self._absences[instance]
        if waiter.take is not None:
            try:
                value = self._try(instance, waiter.take)
            except _PagesComing as coming:  # more than had been known when it began to wait
                waiter.count = coming.count
                return False
            except ApiError as error:
                value = error
            self._turns.answer(instance, value)
        del self._waiters[instance]
        self._release(instance)
        return True

    def _refuse(self, waiter: _Waiter, need: int) -> None:
        instance = waiter.instance
        del self._waiters[instance]
        text = f"{need} pages did not become free within {self._config.wait_seconds:g} s"
        if waiter.take is not None and instance not in self._absences:
            self._turns.answer(instance, ApiError("out-of-resources", text))
            self._release(instance)
        else:
            self._ends.kill(instance, f"out-of-resources: {text}, and its own had been swapped out")

    def _will_come(self, instance: Instance, count: int) -> bool:
        """Whether pages will come to one who waits: others make way, pause or end by themselves.

        Not if the host pool is too full for that, and ending younger instances would do.
        """
        service = self._service
        if not service.host_pages.size:
            return False
        free = movable_free = younger = service.pages.free
        room = service.host_pages.free
        others_run = False
        for other, space in service.spaces.items():
            leaving = space.pages_held - space.pages.resident  # named by commands that are not sent
            free += leaving
            movable_free += leaving
            if other is instance:
                continue
            paused = self._is_paused(other)
            if paused or other.number > instance.number:
                everything, filled = movable(space)
                free += everything - max(0, filled - room)
                movable_free += everything
                room = max(0, room - filled)
            if other.number > instance.number:
                younger += space.pages_held
            if space.pages_held and not paused and not self._is_stuck(other):
                others_run = True
        if free >= count:
            return True
        # Only the host pool's size is in the way: then whoever came first is served first.
        return others_run and not (movable_free >= count and younger >= count)

    def _is_stuck(self, instance: Instance) -> bool:
        """Whether an instance waits for pages and has nothing under way."""
        return instance in self._waiters and self._has_sent(instance)

    def _hold_for(self, instance: Instance, count: int) -> None:
        """Holds younger instances that run, the youngest first, until those held can lend enough.

        If they can't, nobody is held: it is they who have to go on, and end.
        """
        free, room = self._service.pages.free, self._service.host_pages.free
        lenders = [other for other in self._service.spaces if self._is_paused(other)]
        chosen: list[Instance] = []
        for other in [*lenders, *self._younger(instance)]:
            if free >= count:
                break
            everything, filled = movable(self._service.spaces[other])
            free += everything - max(0, filled - room)
            room = max(0, room - filled)
            if other not in self._waiters and not self._is_paused(other) and everything:
                chosen.append(other)
        if free < count:
            chosen = []
        for other in [held for held in self._held if held not in chosen]:
            self._release(other)
        for other in chosen:
            if other not in self._held:
                self._held[other] = None
                other.turn.blockers.add(self)
                if (
                    other.turn.awaited is None
                ):  # its turn goes on or its place in the next one is lost
                    self._woken.add(other)
                self._counts["held"] += 1

    def _release(self, instance: Instance) -> None:
        """Lets an instance run again."""
        self._held.pop(instance, None)
        if instance in self._absences:
            return
        instance.turn.blockers.discard(self)
        if instance in self._woken:
            self._woken.discard(instance)
            if instance is not self._stepping and not instance.turn.blockers:
                self._turns.give_turn(instance)

    # Those who lend

    def _evict_for(self, instance: Instance, count: int) -> bool:
        """Moves out pages until `count` are free, or nothing if that can't be reached."""
        pool, spaces = self._service.pages, self._service.spaces
        if pool.free >= count:
            return True
        paused = [i for i in spaces if i is not instance and self._is_paused(i)]
        younger = self._waiting_younger(instance)
        most = sum(spaces[i].pages.resident for i in (*paused, *younger))
        if (
            pool.free + most < count
        ):  # the usual case where many wait: found without a look at pages
            return False
        willing, others = self._in_order(paused)
        lenders = [*willing, *others, *younger]
        free, room = pool.free, self._service.host_pages.free
        for lender in lenders:
            everything, filled = movable(spaces[lender])
            free += everything - max(0, filled - room)
            room = max(0, room - filled)
            if free >= count:
                break
        else:
            self._counts["host_full"] += not room
            return False
        for lender in lenders:
            if pool.free >= count:
                break
            self._evict(lender, count - pool.free)
        # A few more of those that the policy would swap anyway: the next call finds them free.
        spare = count + min(self._low, SPARE_PAGES)
        for lender in willing:
            if pool.free >= spare:
                break
            self._evict(lender, spare - pool.free)
        return True

    def _evict(self, instance: Instance, most: int) -> int:
        absence = self._absences.get(instance)
        if absence is None:
            absence = Absence(self._service.spaces[instance])
        moved = absence.extend(partial(self._send, instance), most)
        if moved:
            if instance not in self._absences:
                self._absences[instance] = absence
                self._counts["evictions"] += 1
            self._counts["pages_evicted"] += moved
            instance.turn.blockers.add(self)
            if instance in self._held:  # from now on it waits for what was taken
                del self._held[instance]
                self._waiters[instance] = _Waiter(instance, 0, None, self._deadline())
        return moved

    def _in_order(self, paused: list[Instance]) -> tuple[list[Instance], list[Instance]]:
        """Paused instances that the policy would swap, and the others; those first that waste most."""
        facts = [self._facts(i) for i in paused]
        choices = self._choose(facts, self._service.host_pages.free * self._page_size)
        order = sorted(range(len(paused)), key=lambda n: -facts[n].remaining * facts[n].tokens)
        willing = [paused[n] for n in order if choices[n] is Choice.SWAP]
        return willing, [paused[n] for n in order if choices[n] is not Choice.SWAP]

    def _waiting_younger(self, instance: Instance) -> list[Instance]:
        """Those that wait for pages or are held, and have sent all they had queued; youngest first."""
        return [
            other
            for other in self._younger(instance)
            if (other in self._waiters or other in self._held) and self._has_sent(other)
        ]

    def _younger(self, instance: Instance) -> list[Instance]:
        spaces = self._service.spaces
        found = [other for other in spaces if other.number > instance.number]
        found.sort(key=lambda other: -other.number)
        return [other for other in found if not self._is_paused(other)]

    def _is_paused(self, instance: Instance) -> bool:
        return (
            bool(instance.turn.awaited)
            and not instance.turn.scheduled
            and instance is not self._stepping
            and not instance.queued_commands
            and instance not in self._waiters
            and instance not in self._held
        )

    def _has_sent(self, instance: Instance) -> bool:
        """Whether all commands that it has queued are at the worker, at least."""
        return self._service.scheduler.all_sent(instance)

    # What the policy is asked

    @property
    def _page_size(self) -> int:
        return self._service.pages.page_size

    def _facts(self, instance: Instance) -> Paused:
        tokens = self._service.spaces[instance].pages.resident * self._page_size
        return Paused(instance.number, tokens, self._remaining(instance), can_discard=False)

    def _remaining(self, instance: Instance) -> float:
        """Seconds until the first of the futures that an instance waits for, as far as is known."""
        now = self._clock()
        found = (instance.futures.find(handle) for handle in instance.turn.awaited or ())
        waits = [future.outside for future in found if future is not None and future.outside]
        return min((self._left(instance, wait, now) for wait in waits), default=0.0)

    def _left(self, instance: Instance, wait: Outside, now: float) -> float:
        if wait.due is not None:
            return max(0.0, wait.due - now)
        return self._durations.remaining(instance.user, wait.kind, now - wait.since)

    def _choose(self, facts: list[Paused], budget: int) -> list[Choice]:
        """The policy's choices for those who are paused, with tokens that may be swapped."""
        if self._costs is None or not facts:
            return [Choice.PRESERVE] * len(facts)
        try:
            choices = self._policy(facts, self.load(budget), self._costs)
            if len(choices) != len(facts):
                raise ValueError(f"{len(choices)} choices for {len(facts)} who wait")
        except Exception:  # an operator's own: the server goes on without it
            log.exception("an interception policy failed")
            return [Choice.PRESERVE] * len(facts)
        return choices

    def load(self, budget: int) -> Load:
        """What goes on at the moment."""
        running = [i for i in self._service.spaces if i.queued_commands]
        tokens = sum(self._service.spaces[i].pages.resident for i in running) * self._page_size
        room = self._service.host_pages.free * self._page_size
        return Load(len(running), tokens, budget, room)

    def _relieve(self) -> None:
        """Pages are scarce: moves out as much as hides behind the step under way."""
        left = self._budget.left
        paused = [i for i in self._service.spaces if self._is_paused(i)] if left > 0 else []
        if not paused:
            return
        choices = self._choose([self._facts(i) for i in paused], left * self._page_size)
        for instance, choice in zip(paused, choices, strict=True):
            if choice is Choice.SWAP and left > 0:
                moved = self._evict(instance, left)
                self._budget.spend(moved)
                left -= moved

    # Parts

    def _send(self, instance: Instance, batch: SwapIn | SwapOut) -> None:
        self._service.scheduler.send_first(batch, partial(self._lose, instance))

    def _lose(self, instance: Instance, error: str) -> None:
        """The worker could not move pages: what was in them is lost."""
        text = f"internal: pages could not be moved to or from the host pool: {error}"
        self._ends.fail(instance, text)

    def _deadline(self) -> float:
        return self._clock() + self._config.wait_seconds

    def stats(self) -> dict[str, int]:
        """Counters since the start, and how it is now."""
        return {
            **self._counts,
            "absent": len(self._absences),
            "waiting": len(self._waiters),
        }
