"""Which of the commands that wait go into one batch, and in which order one user's go."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import TypeAlias, TypeVar

from pie_control.scheduler.commands.command import (
    BatchLimits,
    Command,
    CommandQueue,
    QueueOwner,
    Touched,
)
from pie_py.device_programs.step_cost import fitting, whole_cost
from pie_py.wire.plan import Int32

C = TypeVar("C", bound=Command)


def gather(queues: Iterable[CommandQueue], limits: BatchLimits) -> list[Command]:
    """Horizontal batching: what the queues' first commands offer, each queue's in order."""
    commands: list[Command] = []
    for queue in queues:
        pending = queue.pending
        first = pending[0]
        if len(pending) > 1 and type(pending[1]) is type(first):
            commands += leading_run(queue, limits.commands)
        elif not first.is_held_back():
            commands.append(first)
    return commands


def leading_run(queue: CommandQueue, most: int) -> list[Command]:
    """Vertical batching: a queue's first commands, of one kind, none depending on one before it."""
    pending = queue.pending
    first = pending[0]
    if first.is_held_back():
        return []
    run = [first]
    written = _names(first.written())
    # A batch of forwards stores all keys before any of them attends, so that none may write a page
    # that an earlier one reads. Other kinds read all before they write.
    read: set[int] | None = None if first.is_light else set(first.read()[0])
    for command in islice(pending, 1, most):
        if type(command) is not type(first) or run[-1].marks:
            break
        writes = _names(command.written())
        reads = command.read()
        if not written.isdisjoint(writes) or not written.isdisjoint(_names(reads)):
            break
        if read is not None:
            if not read.isdisjoint(writes):
                break
            read.update(reads[0])
        if command.is_held_back():
            break
        written |= writes
        run.append(command)
    return run


def cut(
    commands: list[C],
    limits: BatchLimits,
    first: Callable[[C], tuple[int, int]] | None = None,
) -> list[C]:
    """Those that fit into one batch: higher priority first, then the oldest, or as `first` says. At
    least one, unless the device programs of a plan have had their time.
    """
    if commands and (costs := type(commands[0]).program_costs(commands)) is not None:
        commands = _affordable(commands, costs, limits.programs)
    if len(commands) > 1:
        kind = type(commands[0])
        if kind.fitting(commands[: limits.commands], limits) < len(commands):
            commands.sort(key=first or age)
            if kind.takes_turns:
                commands.sort(key=_turns(commands))
            del commands[kind.fitting(commands[: limits.commands], limits) :]
        commands.sort(key=rank)
    return commands


def _affordable(commands: list[C], costs: Int32, room: int) -> list[C]:
    """Those whose device programs still have time; what waits holds back the rest of its queue."""
    if whole_cost(costs) <= room:
        return commands
    order = sorted(range(len(commands)), key=lambda i: age(commands[i]))
    users = [commands[i].queue.owner.user for i in order]
    found: list[C] = []
    waiting: set[CommandQueue] = set()
    for i, fits in zip(order, fitting(users, costs[:, order], room).tolist(), strict=True):
        queue = commands[i].queue
        if fits and queue not in waiting:
            found.append(commands[i])
        else:
            waiting.add(queue)
    return found


def _turns(commands: Iterable[Command]) -> Callable[[Command], tuple[int, int]]:
    """Sorts commands so that no user has a second one before each other has a first."""
    before: Counter[str] = Counter()
    turns = {}
    for command in commands:
        user = command.queue.owner.user
        turns[command] = command.queue.rank[0], before[user]
        before[user] += 1
    return turns.__getitem__


def age(command: Command) -> tuple[int, int]:
    """Sorts commands by which goes first: higher priority, then the oldest."""
    return command.queue.rank[0], command.number


def rank(command: Command) -> tuple[int, int]:
    """Sorts the commands of a batch by their queues, each queue's in the order that they have.

    So the sequences that decode together are in the same order in every step, whichever of them was
    the first to ask: the worker finds each where it was. With two plans in flight the order of
    asking would be another in every other step.
    """
    return command.queue.rank


def _names(touched: Touched) -> set[int]:
    """Pages, and embeds as negative numbers."""
    pages, embeds = touched
    return {*pages, *(~embed for embed in embeds)}


# One in so many places is of the instance that has waited longest, so none has less than this part
# of what equal turns would give it.
EQUAL = 4

# Takes owners, the one that has waited longest first, and the number of a plan; returns their
# places in the order in which they go.
Order: TypeAlias = Callable[[Sequence[QueueOwner], int], Sequence[int]]


def by_goals(owners: Sequence[QueueOwner], plan: int) -> list[int]:
    """The order by `QueueOwner.precedence`, but for every fourth place, each time another one.

    What users have of the worker is decided elsewhere, by turns and by age. Here those of one user
    exchange their places. So no user has more or less by it, whatever their programs ask for.
    """
    known = {owner: owner.precedence for owner in dict.fromkeys(owners)}
    best = iter(sorted(range(len(owners)), key=lambda at: known[owners[at]]))
    oldest = iter(range(len(owners)))
    found: dict[int, None] = {}
    for place in range(len(owners)):
        line = oldest if (place + plan) % EQUAL == 0 else best
        found[next(at for at in line if at not in found)] = None
    return list(found)
