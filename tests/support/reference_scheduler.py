"""The scheduler as programs may think of it: a command has its effect the moment it is queued.

`Scheduler` batches the commands of many queues, cuts prompts, sends plans ahead of results and
orders queues by what they touch. Whatever it does, a program sees what it would see with this one;
random programs are run on both (`test_against_sequential.py`), and tests take from it what is
expected. A run is no command here: its tokens are those of the same steps, one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from pie_control.errors import ApiError
from pie_control.instances.futures import Future
from pie_control.scheduler.commands.command import Account, Command, CommandQueue, Scrub, Sync
from pie_control.scheduler.in_flight import SchedulerStats
from pie_control.scheduler.scheduler import Scheduler
from pie_py.wire.plan import Batch, ModelDescription, Plan, PlanResult


class ReferenceScheduler:
    """One command after the other, in the order of the calls."""

    def __init__(
        self, real: Scheduler, model: ModelDescription, run: Callable[[Plan], PlanResult]
    ) -> None:
        """Takes the scheduler in whose place it is, and what runs a plan."""
        self.step_tokens, self.most_at_once = real.step_tokens, real.most_at_once
        self._model, self._run = model.name, run
        self._scrub = Scrub(model.page_size)
        self._accounts: dict[Any, Account] = {}
        self._lost: ApiError | None = None
        self.plans_sent = 0

    def open_queue(self, owner: Any) -> CommandQueue:
        account = self._accounts.setdefault(owner, Account(owner, len(self._accounts)))
        account.queues += 1
        return CommandQueue(account, account.queues)

    def enqueue(self, queue: CommandQueue, command: Command) -> None:
        """Has a command carried out, if none before it in its queue has failed."""
        command.queue = queue
        provenance = queue.account.provenance
        mark = command.trace(provenance) if provenance is not None else None
        if self._lost is not None:
            command.fail(self._lost)
        elif queue.failure is not None:
            command.scrub(self._scrub)
            command.fail_as_dependant()
        else:
            self._carry_out(command)
        if mark is not None:
            mark.passed()

    def _carry_out(self, command: Command) -> None:
        kind = type(command)
        assert not command.is_held_back(), "it waits for nothing that comes later"
        if kind.is_notified_when_sent:
            command.was_sent()
        answer = self._send([*self._scrub.take(), kind.join([command])]).results[-1]
        if answer.error is not None:
            command.fail(ApiError("internal", f"{command.kind} failed: {answer.error}"))
            return
        if answer.values is not None:
            kind.deliver([command], answer.values)
        if answer.refused:
            command.fail(command.refusal(answer.refused[0]))

    def _send(self, batches: list[Batch]) -> PlanResult:
        self.plans_sent += 1
        return self._run(Plan(self.plans_sent, self._model, batches))

    def synchronize(self, queue: CommandQueue, future: Future) -> None:
        """The queue's commands have taken effect: it accepts others, if one had failed."""
        Sync(queue, future).passed()

    def drop_owner(self, owner: Any) -> None:
        self._accounts.pop(owner, None)

    def fail_all(self, reason: str) -> None:
        self._lost = ApiError("worker-lost", reason)

    # Nothing is ever queued or at the worker

    def next_plan(self, steps: int = 1) -> None:
        return None

    def defer(self, account: Account, names: Any, release: Callable[[], None]) -> None:
        release()

    def writes_pending(self, owner: Any, pages: set[int]) -> bool:
        return False

    def stats(self) -> dict[str, Any]:
        return {**asdict(SchedulerStats()), "plans_in_flight": 0, "queued": 0}
