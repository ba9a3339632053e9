"""Whose steps go into a batch that has no room or time for all: what users want, as equally as it
can be given. A user who wants little gets it; what he leaves is the others'.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from pie_control.commands.forward import ForwardCommand
from pie_control.commands.queue import CommandQueue
from pie_control.scheduler.batching import by_age


def shared(
    forwards: list[ForwardCommand], short: int, inputs: int, commands: int
) -> list[ForwardCommand]:
    """Leaves out steps of users who have more than their part; the oldest stay.

    Steps that the operator lets go before others' work stay. What is behind one that is left out,
    in its queue, is left out, too.

    Args:
        forwards: what may go.
        short: inputs of the longest forward that is a step; so many a user has in any case.
        inputs: of steps, of all users together.
        commands: likewise.

    Returns:
        What is left, the oldest first.
    """
    wants: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for command in forwards:
        if len(command.inputs) <= short:
            wants[command.queue.owner.user] += len(command.inputs)
            counts[command.queue.owner.user] += 1
    parts, numbers = _parts(wants, inputs, short), _parts(counts, commands, 1)
    by_age(forwards)
    kept: list[ForwardCommand] = []
    stopped: set[CommandQueue] = set()
    for command in forwards:
        user, count = command.queue.owner.user, len(command.inputs)
        if command.queue in stopped:
            continue
        if count <= short and command.queue.priority <= 0:
            if count > parts[user] or not numbers[user]:
                parts[user] = 0  # nothing shorter overtakes it
                stopped.add(command.queue)
                continue
            parts[user] -= count
            numbers[user] -= 1
        kept.append(command)
    return kept


def _parts(wants: Mapping[str, int], room: int, least: int) -> dict[str, int]:
    """Of each user so much that none has less than he wants while another one has more."""
    parts: dict[str, int] = {}
    users: Sequence[str] = sorted(wants, key=wants.__getitem__)
    for before, user in enumerate(users):
        parts[user] = min(wants[user], max(least, room // (len(users) - before)))
        room = max(0, room - parts[user])
    return parts
