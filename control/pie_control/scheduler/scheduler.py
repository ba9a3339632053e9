"""The batch scheduler of one model: commands in, plans out, results in.

No I/O, and no time but the date that instances' time lines show.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any, cast

from pie_control.errors import ApiError
from pie_control.instances.futures import Future
from pie_control.scheduler.backlog import CallOrder, CommandBacklog
from pie_control.scheduler.commands.command import (
    BatchLimits,
    Command,
    CommandQueue,
    QueueOwner,
    Scrub,
    Sync,
)
from pie_control.scheduler.commands.forward import ForwardCommand
from pie_control.scheduler.commands.pages import SwapInCommand
from pie_control.scheduler.commands.run import RunCommand
from pie_control.scheduler.forming import PlanForming, TransferPace
from pie_control.scheduler.in_flight import InFlight, PlanBatch, SchedulerStats, Took
from pie_control.scheduler.policy import load_policy
from pie_control.scheduler.runs import Runs
from pie_control.scheduler.speculation import Drafted, Jacobi, Lookup, Tokens
from pie_py.config.scheduling import SchedulerConfig
from pie_py.wire.plan import Batch, Cut, ModelDescription, Plan


class Scheduler:
    """Work-conserving: whenever it is asked for a plan, there is one if anything can be sent.

    `CommandBacklog` is what is queued, `PlanForming` decides what a plan holds, and `InFlight`
    hands out results.

    The worker runs plans in order and their batches in order. So a page or embed may be given to
    another instance as soon as the commands that touch it are in a plan: `defer` waits for that.

    A second plan may go to the worker before the first one's results are there: `may_follow`.
    """

    def __init__(
        self,
        model: ModelDescription,
        config: SchedulerConfig,
        clock_ns: Callable[[], int],
        weight_of: Callable[[str], float],
        costs: tuple[TransferPace, Took] | None,
    ) -> None:
        pace, took = costs or (None, None)
        self._model = model.name
        self._most_steps = model.most_steps
        self.step_tokens = config.step_tokens  # forwards of more inputs may be cut
        self.most_at_once = config.most_at_once
        self._scrub = Scrub(model.page_size)
        order = CallOrder(model.kv_pages + model.host_pages, model.embeds + model.samplers)
        self._backlog = CommandBacklog(order, self._scrub)
        self._stats = SchedulerStats()
        limits = BatchLimits(model.max_batch_tokens, model.max_batch_commands)
        drafts = range(model.embeds, model.embeds + model.draft_embeds)
        self.policy = load_policy(config.policy)(config, model.page_size, weight_of)
        self._runs = Runs(
            *(model.page_size, self._backlog.run_is_over, self.policy.order),
            *(drafts, model.vocab_size),
        )
        self._forming = PlanForming(
            self._backlog, self._runs, limits, self._stats, self.policy, self.step_tokens, pace
        )
        self.in_flight = InFlight(self._backlog, self._stats, self.policy.took, clock_ns, took)
        self.open_queue, self.defer = self._backlog.open_queue, self._backlog.defer
        self.complete, self.after_results = self.in_flight.complete, self.in_flight.after_results
        self._first: list[PlanBatch] = []  # what the next plan begins with
        self._plan_numbers = itertools.count(1)
        self._lost: ApiError | None = None
        self.holds: set[str] = set()  # why no plan is sent at present

    @property
    def queued_inputs(self) -> int:
        """Inputs of the forwards that are next in their queues."""
        firsts = [queue.pending[0] for queue in self._backlog.heads[ForwardCommand]]
        return ForwardCommand.count_rows(cast(list[ForwardCommand], firsts))

    # Commands in

    def enqueue(self, queue: CommandQueue, command: Command) -> None:
        """Appends a command to its queue; the only way in, so provenance misses none."""
        if not self._backlog.add(queue, command):
            if self._lost is not None:
                command.fail(self._lost)
            else:
                self._backlog.drop(command)
        provenance = queue.account.provenance
        if provenance is not None:
            mark = command.trace(provenance)
            if mark is not None:
                self._backlog.place(queue, mark)

    def start(self, queue: CommandQueue, first: Command, run: RunCommand) -> None:
        """Appends a run to its queue, behind the choice of its first token."""
        run.queue = queue
        run.table = self._runs
        self.enqueue(queue, first)
        self.enqueue(queue, run)

    def end_run(self, run: RunCommand) -> None:
        """Ends a run if it is not over, and takes it out of its queue."""
        run.end(None)
        self._backlog.retire()

    def speculate(self, run: RunCommand, text: Tokens, most: int) -> None:
        """Has a run guess its next tokens, up to `most` at a time: from a text before its own; from
        its steps' choices if there is none.
        """
        self._runs.speculate(run, Lookup(text, most) if len(text) else Jacobi(most))

    def speculate_with(self, run: RunCommand, drafts: RunCommand, most: int) -> None:
        """Has a run guess what another one chooses, which has not begun, up to `most` at a time."""
        self._runs.speculate(run, Drafted(drafts, most, run))

    def look_at_changes(self) -> None:
        """Looks at the runs that have changed: what they ask of runs of other models is known."""
        self._forming.enter_runs()
        self._runs.look_at_changes()

    def park(self, owner: QueueOwner) -> None:
        """The pages of an owner may be moved from now on: its runs wait."""
        account = self._backlog.accounts.get(owner)
        if account is not None:
            self._runs.park(account)

    def resume(self, owner: QueueOwner) -> None:
        """The pages of an owner are where its commands may use them: its runs go on."""
        account = self._backlog.accounts.get(owner)
        if account is not None:
            self._runs.resume(account)

    def synchronize(self, queue: CommandQueue, future: Future) -> None:
        """Makes the future ready once all commands of the queue so far have taken effect."""
        sync = Sync(queue, future)
        future.on_cancel = partial(self._forget, queue, sync)
        self._backlog.place(queue, sync)

    def writes_pending(self, owner: QueueOwner, pages: set[int]) -> bool:
        """True if a command of the owner that has not completed writes one of the pages."""
        account = self._backlog.accounts.get(owner)
        if account is None:
            return False
        waiting = (command for queue in account.active for command in queue.pending)
        flying = (
            command
            for batch in self.in_flight.batches()
            for command in batch.commands
            if command.queue.owner is owner
        )
        return any(
            not pages.isdisjoint(command.written()[0])
            for command in itertools.chain(waiting, flying)
        )

    def all_sent(self, owner: QueueOwner) -> bool:
        """True if no command of an owner is queued here that is yet to be sent."""
        account = self._backlog.accounts.get(owner)
        if account is None:
            return True
        firsts = [queue.pending[0] for queue in account.active]
        return all(
            isinstance(first, RunCommand) and first.row is not None and account.parked
            for first in firsts
        )

    def _forget(self, queue: CommandQueue, sync: Sync) -> None:
        """Takes a mark back whose future has been cancelled."""
        places = [command.marks for command in queue.pending if command.marks]
        places += [batch.marks for batch in self.in_flight.batches()]
        for marks in places:
            if sync in marks:
                marks.remove(sync)
                return

    # Plans out

    def may_follow(self) -> bool:
        """True if to send a plan now though the worker has not answered the last one.

        Not if that would split a batch: a queue of the last plan that can only go on once it has
        its results would be left behind, and from then on take every other plan. So each of them
        must have its next forward here already. One that ran ahead so far and now has nothing is at
        its end, as a rule; if not, it is one step late, once. Nor where a run that guesses waits
        for its tokens: it would be left behind, too.
        """
        if not (plans := self.in_flight.plans):  # the worker is busy with another model
            return True
        if any(plan.is_cut for plan in plans.values()) or self._runs.guesses:
            return False
        comes_along = self._runs.waits
        for queue in self._forming.queues_in_plan:
            if queue.pending and isinstance(queue.pending[0], SwapInCommand):
                continue  # its pages come back part by part, with any plan
            if _has_forward(queue):
                comes_along = True
            elif queue.pending or (not queue.ahead and queue.owner in self._backlog.accounts):
                return False
        return comes_along

    @property
    def goes_on(self) -> bool:
        """True if a next step is there of what the last plan was of."""
        if self.holds:
            return False
        return self._runs.waits or any(queue.pending for queue in self._forming.queues_in_plan)

    def ready(self) -> int:
        """Queues and runs with something to send."""
        return sum(map(len, self._backlog.heads.values())) + self._runs.due

    def next_plan(self, steps: int = 1) -> Plan | None:
        """The next plan, of so many steps if there are only runs, or None. Call it when the worker
        is idle, or `may_follow`.
        """
        before = self._forming.queues_in_plan
        formed = self._forming.form()
        if not formed:
            return None
        parts = self._take_first() + formed
        batches = [part.join() for part in parts]
        self._backlog.release_sent()  # what this plan needs, the worker keeps until the next
        further: list[int] = []
        most = min(steps, self._most_steps) - 1
        if most > 0 and not self._first:
            for step, again in self._forming.further_steps(most):
                further.append(len(parts))
                parts += step
                batches.append(again)
        plan = Plan(next(self._plan_numbers), self._model, batches)
        self._stats.plans += 1
        self._stats.plans_ahead += bool(self.in_flight.plans)
        follows = not self._forming.queues_in_plan.keys().isdisjoint(before)
        follows = follows or self._forming.newest is not None
        self.in_flight.add(plan.id, parts, further, follows)
        return plan

    @property
    def waits(self) -> bool:
        """True if there is something to send that no step of a run is."""
        heads = self._backlog.heads.values()
        return bool(self._first) or any(
            not queue.pending[0].is_held_back() for queues in heads for queue in queues
        )

    @property
    def is_idle(self) -> bool:
        """True if there is nothing to send."""
        return not (self.waits or self._runs.waits)

    @property
    def makes_way(self) -> bool:
        """True if something waits for more than the steps of runs that are at the worker."""
        if self.holds:
            return False
        sent = self.in_flight
        return self.waits or sent.is_mostly_over or not (sent.steps or self.is_idle)

    def cut(self) -> Cut | None:
        """A message that has the worker begin no further step of the newest plan; None if that
        changes nothing.

        After it, no plan follows until that one is answered.
        """
        plan = self.in_flight.cut()
        return None if plan is None else Cut(self._model, plan)

    def send_first(self, batch: Batch, failed: Callable[[str], None]) -> None:
        """Sends a batch before everything that is sent from now on, with the next plan there is.

        So what it names may be given to others at once, if no command names it that is yet to be
        sent. `failed` is called if it fails.
        """
        self._first = [*self._take_first(), PlanBatch(batch.kind, ready=batch, failed=failed)]

    def _take_first(self) -> list[PlanBatch]:
        """Takes the batches that go before all others of the next plan, in order."""
        first, self._first = self._first, []
        return first + [PlanBatch(batch.kind, ready=batch) for batch in self._scrub.take()]

    @property
    def plans_sent(self) -> int:
        """Plans since the start."""
        return self._stats.plans

    # The end

    def fail_all(self, reason: str) -> None:
        """Fails everything queued or sent, and whatever comes later: the worker is lost."""
        self._lost = error = ApiError("worker-lost", reason)
        self.in_flight.fail_all(error)
        backlog = self._backlog
        backlog.is_closed = True
        for account in backlog.accounts.values():
            for queue in list(account.active):
                for command in backlog.drain(queue):
                    command.fail(error)
                    for mark in command.marks or ():
                        mark.passed()
            backlog.release(account)

    def drop_owner(self, owner: QueueOwner) -> None:
        """Forgets an owner: drops its queued commands and ignores results of sent ones."""
        account = self._backlog.accounts.pop(owner, None)
        if account is None:
            return
        for queue in list(account.active):
            for command in self._backlog.drain(queue):
                if isinstance(command, RunCommand):
                    self._runs.drop(command)
                for mark in command.marks or ():
                    mark.dropped()
        self._backlog.release(account)

    def stats(self) -> dict[str, Any]:
        """Counters since the start, and what waits now."""
        accounts = self._backlog.accounts.values()
        return {
            **self._stats.values(),
            "queued": sum(len(queue.pending) for a in accounts for queue in a.active),
            "plans_in_flight": len(self.in_flight.plans),
        }


def _has_forward(queue: CommandQueue) -> bool:
    """True if a forward of the queue is there to be sent."""
    for command in queue.pending:
        if not command.is_light:
            return not queue.pending[0].is_held_back()
    return False
