"""The unsent commands: the queues of all instances, and what waits until commands are sent."""

from __future__ import annotations

from collections.abc import Callable

from pie_control.scheduler.call_order import CallOrder
from pie_control.scheduler.commands.command import (
    Account,
    Command,
    CommandQueue,
    Mark,
    QueueOwner,
    Release,
    Scrub,
    Touched,
)
from pie_control.scheduler.commands.embeds import (
    CopyEmbedCommand,
    EmbedImageCommand,
    EmbedTextCommand,
)
from pie_control.scheduler.commands.encode import EncodeCommand
from pie_control.scheduler.commands.forward import ForwardCommand
from pie_control.scheduler.commands.pages import (
    CopyKvCommand,
    MaskKvCommand,
    ShiftKvCommand,
    SwapInCommand,
    SwapOutCommand,
)
from pie_control.scheduler.commands.run import RunCommand
from pie_control.scheduler.commands.sample import (
    EmbedSampledCommand,
    KeepLogitsCommand,
    NextDistCommand,
    ReadHiddenCommand,
    SampleCommand,
)
from pie_control.scheduler.commands.sampler import (
    FeedSamplerCommand,
    ReadStateCommand,
    SetSamplerCommand,
    WriteStateCommand,
)

# `RunCommand` is no kind: what a run does are batches of these.
KINDS: tuple[type[Command], ...] = (
    EmbedTextCommand,
    EmbedImageCommand,
    CopyEmbedCommand,
    ForwardCommand,
    CopyKvCommand,
    MaskKvCommand,
    ShiftKvCommand,
    NextDistCommand,
    ReadHiddenCommand,
    ReadStateCommand,
    SetSamplerCommand,
    WriteStateCommand,
    FeedSamplerCommand,
    KeepLogitsCommand,
    SampleCommand,
    EmbedSampledCommand,
    EncodeCommand,
    SwapOutCommand,
    SwapInCommand,
)


class CommandBacklog:
    """The queues with commands, by the kind of their first one."""

    def __init__(self, order: CallOrder, scrub: Scrub) -> None:
        kinds: tuple[type[Command], ...] = (*KINDS, RunCommand)
        self.heads: dict[type[Command], dict[CommandQueue, None]] = {kind: {} for kind in kinds}
        self.over: list[RunCommand] = []  # runs that are over, and may still be in their queues
        self.accounts: dict[QueueOwner, Account] = {}
        self._order = order
        self._scrub = scrub
        self._deferring: dict[Account, None] = {}  # accounts that wait until commands are sent
        self._number = 0
        self.is_closed = False  # the worker is lost

    def open_queue(self, owner: QueueOwner) -> CommandQueue:
        """Opens one more queue of an owner."""
        account = self.accounts.get(owner)
        if account is None:
            account = self.accounts[owner] = Account(owner, self._next_number())
        account.queues += 1
        if account.queues == 2:
            for queue in account.active:  # until now their order was that of the one queue
                for command in queue.pending:
                    self._order.note(command)
        return CommandQueue(account, self._next_number())

    def add(self, queue: CommandQueue, command: Command) -> bool:
        """Numbers a command, finds out which other queues go before it, and appends it to its
        queue; False if it was not appended, because it can't run any more.
        """
        command.queue = queue
        command.number = self._number = self._number + 1
        account = queue.account
        if account.queues > 1:
            self._order.record(command)
        if not queue.pending:
            if self.is_closed or queue.drops:
                return False
            self.heads[type(command)][queue] = None
            account.active[queue] = None
        queue.owner.queued_commands += 1
        queue.pending.append(command)
        if command.is_withdrawn_if_cancelled:
            command.offer_withdrawal(self.withdraw)
        return True

    def users(self) -> set[str]:
        """Those whose instances have queues."""
        return {owner.user for owner in self.accounts}

    def place(self, queue: CommandQueue, mark: Mark) -> None:
        """Sets a mark behind all commands of the queue so far, or notifies it if all are over."""
        if queue.pending:
            last = queue.pending[-1]
            if last.marks is None:
                last.marks = []
            last.marks.append(mark)
        else:
            _leave(queue, mark)

    def advance(self, queue: CommandQueue) -> None:
        """Notes which command of a queue is first now, after the one before has been taken out."""
        if queue.pending:
            self.heads[type(queue.pending[0])][queue] = None
        else:
            queue.account.active.pop(queue, None)

    def withdraw(self, command: Command) -> None:
        """Removes a command that is still queued; its marks move to the one before."""
        queue = command.queue
        pending = queue.pending
        if not pending or command.number < pending[0].number:
            return
        at = pending.index(command)
        before = pending[at - 1] if at else None
        del pending[at]
        queue.owner.queued_commands -= 1
        marks = command.marks or []
        if before is None:
            self.heads[type(command)].pop(queue, None)
            for mark in marks:
                _leave(queue, mark)
            self.advance(queue)
            self.release(queue.account)
        elif marks:
            before.marks = [*(before.marks or ()), *marks]

    def flush(self, queue: CommandQueue) -> None:
        """Drops the queued dependants of a failed command, up to the next `Sync`."""
        if not queue.pending:
            return
        self.heads[type(queue.pending[0])].pop(queue, None)  # a run that is under way is not there
        while queue.pending and queue.failure is not None:
            command = queue.pending.popleft()
            queue.owner.queued_commands -= 1
            self.drop(command)
            for mark in command.marks or ():
                mark.passed()
        self.advance(queue)
        self.release(queue.account)

    def drop(self, command: Command) -> None:
        """Fails a command of a failed queue that is not sent."""
        command.scrub(self._scrub)
        command.fail_as_dependant()

    def run_is_over(self, run: RunCommand) -> None:
        """A run is over: it leaves its queue with the next `retire`."""
        self.over.append(run)

    def retire(self) -> None:
        """Takes runs that are over out of their queues, where they are first."""
        over, self.over = self.over, []
        for run in over:
            queue = run.queue
            if not queue.pending or queue.pending[0] is not run:
                continue
            self.heads[RunCommand].pop(queue, None)
            queue.pending.popleft()
            queue.owner.queued_commands -= 1
            self.advance(queue)
            for mark in run.marks or ():
                _leave(queue, mark)
            self.release(queue.account)

    def drain(self, queue: CommandQueue) -> list[Command]:
        """Empties a queue, and returns what was in it."""
        commands = list(queue.pending)
        queue.pending.clear()
        queue.owner.queued_commands -= len(commands)
        self.heads[type(commands[0])].pop(queue, None)
        del queue.account.active[queue]
        return commands

    def defer(self, account: Account, names: Touched, release: Callable[[], None]) -> None:
        """Calls back once every command that the account has queued so far is in a plan, but for
        runs that touch none of the names.
        """
        account.releases.append(Release(self._next_number(), names, release))
        self.release(account)
        if account.releases:
            self._deferring[account] = None

    def release_sent(self) -> None:
        """Calls back what waited for commands that are in plans now."""
        for account in list(self._deferring):
            self.release(account)
            if not account.releases:
                del self._deferring[account]

    def release(self, account: Account) -> None:
        """Calls back what waited for commands of an account that are in plans, or gone."""
        releases = account.releases
        if not releases:
            return
        firsts = [queue.pending[0] for queue in account.active]
        lasting = [first for first in firsts if first.lasts]
        firsts = [first for first in firsts if not first.lasts]
        firsts += [run.queue.pending[1] for run in lasting if len(run.queue.pending) > 1]
        first = min([command.number for command in firsts], default=None)
        waiting = []
        while releases and (first is None or releases[0].number < first):
            release = releases.popleft()
            if any(run.number < release.number and run.touches(release.names) for run in lasting):
                waiting.append(release)
            else:
                release.call()
        releases.extendleft(reversed(waiting))

    def _next_number(self) -> int:
        self._number += 1
        return self._number


def _leave(queue: CommandQueue, mark: Mark) -> None:
    """Attaches a mark to the last sent batch of the queue, or notifies it if that is done."""
    last = queue.last
    if last is None or last.done:
        mark.passed()
    else:
        last.marks.append(mark)
