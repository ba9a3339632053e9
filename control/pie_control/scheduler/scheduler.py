"""The batch scheduler of one model: commands in, plans out, results in. No I/O; the clock is given."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from pie_control.errors import ApiError
from pie_control.scheduler.batch import BatchLimits, Dispatched, cut, gather, held_back, join
from pie_control.scheduler.command import (
    KINDS,
    LIGHT_KINDS,
    ONCE_A_PLAN,
    Command,
    ForwardCommand,
    ForwardPart,
    Mark,
    NextDistCommand,
    Sync,
)
from pie_control.scheduler.division import share, step_tokens
from pie_control.scheduler.figures import Figures
from pie_control.scheduler.leftovers import Leftovers
from pie_control.scheduler.order import CallOrder
from pie_control.scheduler.policy import Policy
from pie_control.scheduler.queue import Account, CommandQueue, Owner
from pie_control.scheduler.results import deliver, fail, fail_dependant, refusal
from pie_py.wire.plan import Batch, BatchResult, ModelDescription, Plan, PlanResult

# A plan holds at most one forward batch and this many light ones before and after it, so that its
# length stays that of one step whatever a single queue asks for.
LIGHT_BATCHES = 8


class _Sent:
    """A plan at the worker."""

    __slots__ = ("answered", "batches", "follows")

    def __init__(self, batches: list[Dispatched], follows: bool) -> None:
        self.batches = batches
        self.answered = 0  # batches whose results are there
        self.follows = follows  # goes on with a queue of the plan before: no time to wait


class Scheduler:
    """Forms batches of the commands of many queues and hands their results to the futures.

    A plan's batches are formed as if the earlier ones had run. First come light batches (whose kinds
    follow the paper's rule: the kind whose oldest command has waited longest), because they are short
    and bring more queues to their forward; then one forward batch of all that is ready; then light
    ones again, such as the distributions of what the forward computed.

    The worker runs plans in order and their batches in order. So a page or embed may be given to
    somebody else as soon as the commands that touch it are in a plan: `defer` waits for that.

    A second plan may go to the worker before the first one's results are there: `may_follow`.
    """

    def __init__(
        self,
        model: ModelDescription,
        policy: Policy,
        clock: Callable[[], float],
        prompt_tokens: int | None = None,
    ) -> None:
        """Takes the model, when to send, the clock in seconds, and inputs of prompts beside steps."""
        self._model = model.name
        if not policy.whole_plans:
            prompt_tokens = None
        # Forwards of more inputs may be cut.
        self.step_tokens = sys.maxsize if prompt_tokens is None else step_tokens(prompt_tokens)
        self._page_size = model.page_size
        commands = model.max_batch_commands if policy.batches else 1
        self._limits = BatchLimits(model.max_batch_tokens, commands, prompt_tokens)
        self._policy = policy
        self._clock = clock
        self._accounts: dict[Owner, Account] = {}
        self._order = CallOrder(model.kv_pages + model.host_pages, model.embeds + model.samplers)
        self._heads: dict[str, dict[CommandQueue, None]] = {kind: {} for kind in KINDS}
        self._leftovers = Leftovers(model.page_size)
        self._told: list[Callable[[], None]] | None = None  # calls after the results at hand
        self._first: list[tuple[Batch, Dispatched]] = []  # what the next plan begins with
        self._numbers = itertools.count(1)
        self._plan_numbers = itertools.count(1)
        self._in_flight: dict[int, _Sent] = {}  # oldest first
        self._riders: dict[CommandQueue, None] = {}  # queues with commands in the newest plan
        self._lost: ApiError | None = None
        self._deferring: dict[Account, None] = {}  # accounts that wait until commands are sent
        self._figures = Figures()

    # Commands in

    def open_queue(self, owner: Owner) -> CommandQueue:
        """Opens one more queue of an owner."""
        account = self._accounts.get(owner)
        if account is None:
            account = self._accounts[owner] = Account(owner)
        account.queues += 1
        if account.queues == 2:
            account.barrier = next(self._numbers)
        return CommandQueue(account, next(self._numbers))

    def enqueue(self, queue: CommandQueue, command: Command) -> None:
        """Appends a command to its queue."""
        command.queue = queue
        command.number = next(self._numbers)
        account = queue.account
        if account.queues > 1:
            self._order.record(account, command)
        if not queue.pending:
            if self._lost is not None or queue.drops:
                self._reject(command)
                return
            self._heads[command.kind][queue] = None
            account.active[queue] = None
        command.queued_at = self._clock()
        queue.owner.queued_commands += 1
        queue.pending.append(command)
        if isinstance(command, NextDistCommand):
            command.future.on_cancel = lambda: self._withdraw(command)

    def synchronize(self, queue: CommandQueue, future: Any) -> None:
        """Makes the future ready once all commands of the queue so far have taken effect."""
        sync = Sync(future)
        if queue.pending:
            queue.pending.append(sync)
            future.on_cancel = lambda: self._forget_sync(queue, sync)
        else:
            self._pass(queue, sync)

    def after_results(self, tell: Callable[[], None]) -> None:
        """Calls once the results at hand are with those who asked for them; at once if there are none."""
        if self._told is None:
            tell()
        else:
            self._told.append(tell)

    def mark(self, queue: CommandQueue, mark: Mark) -> None:
        """Tells the mark once all commands of the queue so far have taken effect or failed."""
        if queue.pending:
            queue.pending.append(mark)
        else:
            self._pass(queue, mark)

    def defer(self, account: Account, release: Callable[[], None]) -> None:
        """Calls back once every command that the account has queued so far is in a plan."""
        if account.active:
            account.releases.append((next(self._numbers), release))
            self._deferring[account] = None
        else:
            release()

    def writes_pending(self, owner: Owner, pages: set[int]) -> bool:
        """Whether a command of the owner that has not completed writes one of the pages."""
        account = self._accounts.get(owner)
        if account is None:
            return False
        waiting = (item for queue in account.active for item in queue.pending)
        flying = (
            command
            for sent in self._in_flight.values()
            for batch in sent.batches
            if not batch.done
            for command in batch.commands
            if command.queue.owner is owner
        )
        for command in itertools.chain(waiting, flying):
            if isinstance(command, Sync):
                continue
            if not pages.isdisjoint(command.written()[0]):
                return True
        return False

    # Plans out

    def may_follow(self) -> bool:
        """Whether to send a plan now though the worker has not answered the last one.

        Not if that would split a batch: a queue of the last plan that can only go on once it has its
        results would be left behind, and from then on take every other plan. So each of them must have
        its next forward here already. One that ran ahead so far and now has nothing is at its end, as a
        rule; if not, it is one step late, once.
        """
        if not self._policy.whole_plans:
            return False
        if not self._in_flight:  # the worker is busy with another model
            return True
        comes_along = False
        for queue in self._riders:
            if _has_forward(queue):
                comes_along = True
            elif queue.pending or (not queue.ahead and queue.owner in self._accounts):
                return False
        return comes_along

    def next_plan(self, now: float) -> Plan | None:
        """The next plan, or None if the policy has nothing to send.

        Ask when the worker is idle, or `may_follow`.
        """
        batches: list[Batch] = []
        dispatched: list[Dispatched] = []
        before, self._riders = self._riders, {}
        if self._policy.whole_plans:
            self._add_light(batches, dispatched)
            commands = gather(self._heads["forward"], self._limits)
            if commands:
                chosen = share(commands, self._limits, self._page_size)
                self._send(chosen, batches, dispatched)
                self._add_light(batches, dispatched)
        else:
            self._add_ready(batches, dispatched, now)
        if not batches:
            self._riders = before
            return None
        self._release_sent()
        if first := self._take_first():
            batches = [batch for batch, _ in first] + batches
            dispatched = [record for _, record in first] + dispatched
        plan = Plan(next(self._plan_numbers), self._model, batches)
        self._figures.plan_sent(ahead=bool(self._in_flight))
        follows = not self._riders.keys().isdisjoint(before)
        self._in_flight[plan.id] = _Sent(dispatched, follows)
        return plan

    def next_deadline(self) -> float | None:
        """When to ask for a plan again if no command comes, by the clock; or None."""
        deadlines = (
            self._policy.deadline(queue.first().queued_at)
            for queues in self._heads.values()
            for queue in queues
            if not held_back(queue.first())  # it has to wait for something else first
        )
        return min((d for d in deadlines if d is not None), default=None)

    def send_first(self, batch: Batch, failed: Callable[[str], None]) -> None:
        """Sends a batch before everything that is sent from now on, with the next plan there is.

        So what it names may be given to others at once, if no command names it that is yet to be sent.
        `failed` is told if it fails.
        """
        self._first = [*self._take_first(), (batch, Dispatched([], failed))]

    def _take_first(self) -> list[tuple[Batch, Dispatched]]:
        """What goes before all batches of the next plan, in the order in which it came up."""
        first = self._first
        if first:
            self._first = []
        if leftovers := self._leftovers.take():
            first = first + [(batch, Dispatched([])) for batch in leftovers]
        return first

    def all_sent(self, owner: Owner) -> bool:
        """Whether no command of an owner is queued here that is yet to be sent."""
        account = self._accounts.get(owner)
        return account is None or not account.active

    @property
    def plans_sent(self) -> int:
        """Plans since the start."""
        return self._figures.plans

    def _add_light(self, batches: list[Batch], dispatched: list[Dispatched]) -> None:
        """Adds light batches until no queue has a light command first."""
        for _ in range(LIGHT_BATCHES):
            for kind in self._oldest_first(self._light_kinds(batches)):
                commands = gather(self._heads[kind], self._limits)
                if commands:
                    self._send(cut(commands, self._limits), batches, dispatched)
                    break
            else:
                return

    def _light_kinds(self, batches: list[Batch]) -> Sequence[str]:
        """Light kinds that a plan with these batches may have another batch of."""
        if not self._heads[ONCE_A_PLAN] or all(batch.kind != ONCE_A_PLAN for batch in batches):
            return LIGHT_KINDS
        return [kind for kind in LIGHT_KINDS if kind != ONCE_A_PLAN]

    def _add_ready(self, batches: list[Batch], dispatched: list[Dispatched], now: float) -> None:
        """Adds one batch of the kind that has waited longest among those the policy lets go."""
        for kind in self._oldest_first(KINDS):
            commands = gather(self._heads[kind], self._limits)
            if commands:
                oldest = min(commands, key=_number)
                if self._policy.ready(len(commands), oldest.queued_at, now):
                    self._send(cut(commands, self._limits), batches, dispatched)
                    return

    def _oldest_first(self, kinds: Sequence[str]) -> list[str]:
        """Those of the kinds that a queue has first, the one whose command has waited longest first."""
        waiting = [kind for kind in kinds if self._heads[kind]]
        if len(waiting) > 1:
            waiting.sort(key=lambda kind: _oldest(self._heads[kind]).number)
        return waiting

    def _send(
        self, commands: list[Command], batches: list[Batch], dispatched: list[Dispatched]
    ) -> None:
        """Takes the commands of a batch out of their queues and adds it to the plan."""
        kind = commands[0].kind
        record = Dispatched(commands)
        heads = self._heads[kind]
        queues: dict[CommandQueue, None] = {}
        if kind == "embed_sampled":
            for command in commands:
                command.queue.ahead = not command.queue.is_idle
        elif kind == "embed_text":
            for command in commands:
                command.queue.ahead = False
        rows = 0
        for command in commands:
            queue = command.queue
            if type(command) is ForwardPart:
                self._figures.parts += 1
            else:
                queue.pending.popleft()
            queue.last = record
            queues[queue] = None
            rows += command.rows
        if len(queues) == len(heads):
            heads.clear()
        else:
            for queue in queues:
                del heads[queue]
        for queue in queues:
            self._advance(queue)
        self._riders.update(queues)
        batches.append(join(commands))
        dispatched.append(record)
        self._figures.batch_sent(kind, len(commands), rows)

    def _advance(self, queue: CommandQueue) -> None:
        """Passes the marks at a queue's front, and notes which command is first now."""
        pending = queue.pending
        while pending:
            first = pending[0]
            if not isinstance(first, Sync):
                self._heads[first.kind][queue] = None
                return
            pending.popleft()
            self._pass(queue, first)
        queue.account.active.pop(queue, None)

    def _pass(self, queue: CommandQueue, sync: Sync) -> None:
        """Settles a mark whose queue has sent all before it, now or when that is done."""
        last = queue.last
        if last is None or last.done:
            queue.settle(sync)
        else:
            entry = (queue, sync)
            last.syncs.append(entry)
            if not isinstance(sync, Mark):
                sync.future.on_cancel = lambda: last.syncs.remove(entry)

    def _release_sent(self) -> None:
        for account in list(self._deferring):
            self._release(account)
            if not account.releases:
                del self._deferring[account]

    def _release(self, account: Account) -> None:
        """Calls back who waited for commands that are all sent now."""
        releases = account.releases
        if not releases:
            return
        first = min((queue.first().number for queue in account.active), default=None)
        while releases and (first is None or releases[0][0] < first):
            releases.popleft()[1]()

    # Results in

    def complete(self, result: PlanResult) -> None:
        """Takes results of a plan, all or the next of them: futures become ready, marks are settled,
        failures spread."""
        sent = self._in_flight.get(result.id)
        if sent is None:
            return
        results = result.results
        batches = sent.batches[sent.answered :]
        wrong = result.first != sent.answered or len(results) > len(batches)
        if wrong or (result.last and len(results) < len(batches)):
            text = f"the worker answered {len(batches)} batches with {len(results)} results"
            results = [BatchResult(error=text)] * len(batches)
        del batches[len(results) :]
        sent.answered += len(results)
        if sent.answered == len(sent.batches):
            del self._in_flight[result.id]
            if sent.follows:
                self._figures.plan_followed(result.idle_ns)
        failed: dict[CommandQueue, None] = {}
        self._told = told = []
        for batch, answer in zip(batches, results, strict=True):
            batch.done = True
            self._figures.worker_ns += answer.nanoseconds
            if answer.error is None:
                deliver(batch.commands, answer)
            elif batch.failed is not None:
                told.append(partial(batch.failed, answer.error))
            refused = answer.refused or {}
            for i, command in enumerate(batch.commands):
                queue = command.queue
                queue.owner.queued_commands -= command.counts
                if queue.failure is not None:
                    fail_dependant(command)
                elif answer.error is not None:
                    fail(command, ApiError("internal", f"{command.kind} failed: {answer.error}"))
                elif i in refused:
                    fail(command, refusal(command, refused[i]))
                if queue.failure is not None:
                    failed[queue] = None
            for queue, sync in batch.syncs:
                queue.settle(sync)
            batch.commands, batch.syncs = [], []  # the queue keeps the batch, not what was in it
        for queue in failed:
            if queue.drops:
                self._flush(queue)
        self._told = None
        for tell in told:
            tell()

    def fail_all(self, reason: str) -> None:
        """Fails everything queued or sent, and whatever comes later: the worker is lost."""
        self._lost = error = ApiError("worker-lost", reason)
        for sent in self._in_flight.values():
            for batch in sent.batches:
                batch.done = True
                for command in batch.commands:
                    command.queue.owner.queued_commands -= command.counts
                    fail(command, error)
                for queue, sync in batch.syncs:
                    queue.settle(sync)
        self._in_flight.clear()
        for account in self._accounts.values():
            for queue in list(account.active):
                for item in self._drain(queue):
                    if isinstance(item, Sync):
                        queue.settle(item)
                    else:
                        fail(item, error)
            self._release(account)

    def drop_owner(self, owner: Owner) -> None:
        """Forgets an owner: what it has queued is dropped, and results of what it has sent ignored."""
        account = self._accounts.pop(owner, None)
        if account is None:
            return
        for queue in list(account.active):
            for item in self._drain(queue):
                if isinstance(item, Mark):
                    item.dropped()
        self._release(account)

    def _drain(self, queue: CommandQueue) -> list[Command | Sync]:
        """Empties a queue and returns what was in it."""
        items = list(queue.pending)
        queue.pending.clear()
        queue.owner.queued_commands -= sum(not isinstance(item, Sync) for item in items)
        first = items[0]
        assert not isinstance(first, Sync)
        del self._heads[first.kind][queue]
        del queue.account.active[queue]
        return items

    def _flush(self, queue: CommandQueue) -> None:
        """Fails the dependants that a queue still holds, up to its next mark."""
        if not queue.pending:
            return
        self._heads[queue.first().kind].pop(queue)
        while queue.pending and queue.failure is not None:
            item = queue.pending.popleft()
            if isinstance(item, Sync):
                queue.settle(item)
            else:
                queue.owner.queued_commands -= 1
                self._leftovers.add(item)
                fail_dependant(item)
        self._advance(queue)
        self._release(queue.account)

    def _reject(self, command: Command) -> None:
        """Fails a command that is not even queued."""
        if self._lost is not None:
            fail(command, self._lost)
        else:
            self._leftovers.add(command)
            fail_dependant(command)

    def _withdraw(self, command: Command) -> None:
        """Takes a command whose result nobody wants out of its queue, if it is there still."""
        queue = command.queue
        if command.number < queue.next_number():
            return
        is_first = queue.pending[0] is command
        if is_first:
            del self._heads[command.kind][queue]
        queue.pending.remove(command)
        queue.owner.queued_commands -= 1
        if is_first:
            self._advance(queue)
            self._release(queue.account)

    def _forget_sync(self, queue: CommandQueue, sync: Sync) -> None:
        queue.pending.remove(sync)

    def stats(self) -> dict[str, Any]:
        """Counters since the start, and what waits now."""
        return {
            **self._figures.told(),
            "queued": sum(len(q.pending) for a in self._accounts.values() for q in a.active),
            "plans_in_flight": len(self._in_flight),
        }


def _has_forward(queue: CommandQueue) -> bool:
    """Whether a forward of the queue is there to be sent."""
    for item in queue.pending:
        if type(item) is ForwardCommand:
            return not held_back(queue.first())
    return False


def _oldest(queues: dict[CommandQueue, None]) -> Command:
    return min((queue.first() for queue in queues), key=_number)


def _number(command: Command) -> int:
    return command.number
