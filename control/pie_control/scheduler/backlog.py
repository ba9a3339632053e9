"""The unsent commands: the queues of all instances, and what waits until commands are sent."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from pie_control.scheduler.commands.command import (
    Account,
    Command,
    CommandQueue,
    Mark,
    Numbers,
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


class CallOrder:
    """Finds out which commands must wait for other queues of their instance.

    Queues run independently where they touch different pages and embeds. Where they touch the same,
    and one of them writes, the order of the calls counts. So no instance can read what the last
    owner of a page left there by reading it before its own write has been sent.

    A queue is in order by itself. What it did to a page or embed is therefore no reason for one of
    its own commands to wait: only what *other* queues did is. If a queue's own commands counted,
    every forward would wait for all queues of the instance that have an older command, because the
    embed that it reads has just been written by its own queue; contexts would run one after the
    other.

    What other *instances* did is no reason either. A page that another one has written was given to
    this one once all that touched it was sent; and one that several hold cannot be written. If
    theirs counted, a context would wait for all older commands of its own instance, a long run
    among them, because a stranger had its page before.

    Kept for instances with several queues only: `note` tells of what is queued when an instance
    opens its second one.
    """

    def __init__(self, pages: int, embeds: int) -> None:
        self._page_writes = _LastTouch(pages)
        self._page_uses = _LastTouch(pages)  # reads and writes
        self._embed_writes = _LastTouch(embeds)
        self._embed_uses = _LastTouch(embeds)

    def record(self, command: Command) -> None:
        """Notes what a command touches, and up to which number those of other queues go first."""
        own = command.queue.account.id, command.queue.id
        read, written = command.read(), command.written()
        if any(other is not command.queue for other in command.queue.account.active):
            command.after = max(
                self._page_writes.by_others(read[0], own),
                self._embed_writes.by_others(read[1], own),
                self._page_uses.by_others(written[0], own),
                self._embed_uses.by_others(written[1], own),
            )
        self._touch(command.number, own, read, written)

    def note(self, command: Command) -> None:
        """Notes what a command touches that is before all that are recorded."""
        own = command.queue.account.id, command.queue.id
        self._touch(command.number, own, command.read(), command.written())

    def _touch(self, number: int, own: tuple[int, int], read: Touched, written: Touched) -> None:
        self._page_uses.note(read[0], own, number)
        self._embed_uses.note(read[1], own, number)
        self._page_uses.note(written[0], own, number)
        self._embed_uses.note(written[1], own, number)
        self._page_writes.note(written[0], own, number)
        self._embed_writes.note(written[1], own, number)


class _LastTouch:
    """For each name, the newest command that touched it, and the newest one of any other queue of
    the same instance.

    The second is needed because the newest one hides older ones of other queues: B reads a page
    with command 5, A reads it with 6, A writes it with 7. The newest that A's write finds is its
    own 6, which it need not wait for; it must wait for 5.
    """

    __slots__ = ("_instance", "_newest", "_of_another", "_queue")

    def __init__(self, names: int) -> None:
        self._newest: NDArray[np.int64] = np.zeros(names, np.int64)  # number of that command
        self._instance: NDArray[np.int64] = np.zeros(names, np.int64)  # its instance's account
        self._queue: NDArray[np.int64] = np.zeros(names, np.int64)  # the queue it is in
        self._of_another: NDArray[np.int64] = np.zeros(names, np.int64)  # newest of other queues

    def by_others(self, names: Numbers, own: tuple[int, int]) -> int:
        """The newest command of another queue of the instance that touched a name; 0 for none."""
        if not names:
            return 0
        instance, queue = own
        if len(names) == 1:  # a step's embeds: scalars cost a tenth of arrays
            name = names[0]
            if self._instance.item(name) != instance:
                return 0
            is_own = self._queue.item(name) == queue
            return (self._of_another if is_own else self._newest).item(name)
        is_own = self._queue[names] == queue
        newest = np.where(is_own, self._of_another[names], self._newest[names])
        return int((newest * (self._instance[names] == instance)).max())

    def note(self, names: Numbers, own: tuple[int, int], number: int) -> None:
        """Notes that a command of a queue, newer than all so far, touches the names."""
        if not names:
            return
        instance, queue = own
        if len(names) == 1:
            name = names[0]
            if self._queue.item(name) != queue:
                is_own = self._instance.item(name) == instance
                self._of_another[name] = self._newest.item(name) if is_own else 0
                self._queue[name], self._instance[name] = queue, instance
            self._newest[name] = number
            return
        touched = np.array(names)
        changed = touched[self._queue[touched] != queue]
        if len(changed):
            is_own = self._instance[changed] == instance
            self._of_another[changed] = self._newest[changed] * is_own
            self._queue[changed], self._instance[changed] = queue, instance
        self._newest[touched] = number


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
