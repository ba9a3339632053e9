"""Guests that are ready for their turn: which one is next."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence, Set
from heapq import heappop, heappush
from operator import itemgetter

from pie_control.fairness import FairQueue
from pie_control.instances.instance import Instance

CREDIT_NS = 100_000_000  # of a guest that was idle, against those of its user
# Of a user whose guests were idle, against others: they wait so long for what that one begins with.
USER_CREDIT_NS = 30_000_000
LEAD_NS = 20_000_000  # of the guest that is next, which ends a turn if another is ready again


class ReadyGuests:
    """The least served user's guests are next, and of them the least served one.

    While all are of one user they wait in a heap, and are charged together at the end of a turn:
    the order is the same, and costs a fifth. A burst of launches makes it long, and a turn serves
    few. Otherwise they wait in a line for each user.
    """

    def __init__(self, weight_of: Callable[[str], float]) -> None:
        self._line: FairQueue[Instance] = FairQueue(CREDIT_NS, weight_of, USER_CREDIT_NS)
        self._single: str | None = None  # the user whose all are, if they are in the heap
        self._heap: list[tuple[float, int, Instance]] = []  # by what each has had, then as it came
        self._came = itertools.count()
        self._costs: list[tuple[str, float]] = []  # of instances of that user in this turn

    def __bool__(self) -> bool:
        return bool(self._heap or self._line)

    def begin_turn(self, arrived: Sequence[Instance], *, some_rest: bool) -> None:
        """These are ready, too. If users rest, the others are looked for in lines."""
        users = {instance.user for instance in arrived}
        if self._heap and self._single is not None:
            users.add(self._single)
        if len(users) == 1 and not self._line and not some_rest:
            self._single = single = users.pop()
            starts = self._line.enter_all(single, [instance.id for instance in arrived])
            for start, instance in zip(starts, arrived, strict=True):
                heappush(self._heap, (start, next(self._came), instance))
            return
        self._single = None
        self._heap.sort(key=itemgetter(1))
        for instance in (*[waiting for _, _, waiting in self._heap], *arrived):
            self._line.push(instance.owner, instance)
        self._heap = []

    def take(self, resting: Set[str]) -> Instance | None:
        """Takes the next guest out, of a user who does not rest; None if there is none."""
        if self._single is not None:
            may = self._heap and self._single not in resting
            return heappop(self._heap)[2] if may else None
        taken = self._line.pop(others_than(resting))
        return None if taken is None else taken[1]

    def charge(self, instance: Instance, nanoseconds: int) -> None:
        """The guest that was taken has had a turn."""
        if self._single is not None:
            self._costs.append((instance.id, nanoseconds))
        else:
            self._line.charge(instance.owner, nanoseconds)

    def charge_user(self, user: str, nanoseconds: int) -> None:
        """Charges a user for what was done outside turns: a user's time is one."""
        self._line.charge_user(user, nanoseconds)

    def end_turn(self) -> None:
        """Charges what has not been charged yet."""
        if self._single is not None and self._costs:
            self._line.served_round(self._single, self._costs, all_of_them=not self._heap)
            self._costs = []

    def makes_way(self, user: str) -> bool:
        """True if the next guest waits a turn for a ready one of this user who was served less."""
        if self._single is not None:
            return user != self._single
        return self._line.lead(user) > LEAD_NS

    def next_user(self, but: Set[str]) -> str | None:
        """The user of the guest that is next, without some users."""
        if self._heap:
            return None if self._single in but else self._single
        return self._line.next_user(but)

    def is_less_served(self, user: str, than: str) -> bool:
        """True if a user comes before another one, if both wait."""
        return self._line.is_less_served(user, than)


def others_than(users: Set[str]) -> Callable[[str], bool] | None:
    """Tells of a user whether it is none of these; None if there are none."""
    return (lambda user: user not in users) if users else None
