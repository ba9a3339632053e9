"""In which order one user's work goes where not all of it has room.

What users have of the worker is decided elsewhere, by turns and by age. Here those of one user
exchange their places. So no user has more or less by it, whatever their programs ask for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from pie_control.scheduler.commands.command import QueueOwner
from pie_control.scheduler.run_table import Rows, RunTable

# One in so many places is of the instance that has waited longest, so none has less than this part
# of what equal turns would give it.
EQUAL = 4

# Takes owners, the one that has waited longest first, and the number of a plan; returns their
# places in the order in which they go.
Order: TypeAlias = Callable[[Sequence[QueueOwner], int], Sequence[int]]


def by_goals(owners: Sequence[QueueOwner], plan: int) -> list[int]:
    """The order by `QueueOwner.precedence`, but for every fourth place, each time another one."""
    known = {owner: owner.precedence for owner in dict.fromkeys(owners)}
    best = iter(sorted(range(len(owners)), key=lambda at: known[owners[at]]))
    oldest = iter(range(len(owners)))
    found: dict[int, None] = {}
    for place in range(len(owners)):
        line = oldest if (place + plan) % EQUAL == 0 else best
        found[next(at for at in line if at not in found)] = None
    return list(found)


def exchanged(table: RunTable, rows: Rows, order: Order, plan: int) -> Rows:
    """Rows of runs in the order of their turns, those of each user in their places exchanged.

    Their turns are exchanged, too: else a user whose runs were passed over would seem to have
    waited, and go before others.
    """
    facts, runs = table.facts, [table.runs[row] for row in rows.tolist()]
    users = ((run.queue.owner.user, run.queue.rank[0]) if run else ("", 0) for run in runs)
    rows = rows.copy()
    for places in _grouped(users):
        own = rows[places]
        waiting = own[facts.stepped[own].argsort(kind="stable")]
        owners = [run.queue.owner for row in waiting.tolist() if (run := table.runs[row])]
        turns = facts.last[own]
        rows[places] = own = waiting[list(order(owners, plan))]
        facts.last[own] = turns
    return rows


def _grouped(users: Iterable[tuple[str, int]]) -> Iterable[list[int]]:
    """The places of each user and priority."""
    found: dict[tuple[str, int], list[int]] = {}
    for place, user in enumerate(users):
        found.setdefault(user, []).append(place)
    return found.values()
