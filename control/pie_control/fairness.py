"""Fair queueing where users share something: the least served user is next, of their instances the
least served one.

This is start-time fair queueing (Goyal, Vin and Cheng, 1996), on two levels. Each user, and each
instance of a user, has a *virtual time*: the sum of the costs of its work, divided by the user's
weight. The least virtual time is next. A cost is charged after the work, because it is not known
before. After a pause a user or an instance starts a little (its credit) before the others that
wait: it cannot save up more than that, and what needs little is served at once.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import contextmanager, suppress
from heapq import heappop, heappush
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import trio

Item = TypeVar("Item")
Work: TypeAlias = Callable[[], Any]

_FORGET = 64  # names that do not wait, before they are looked through


class Owner(NamedTuple):
    """The user and instance that something is done for."""

    user: str
    instance: str


class VirtualTimes:
    """The service that names have had, by weight."""

    __slots__ = ("_credit", "_now", "served")

    def __init__(self, credit: float) -> None:
        """No name has been served. Takes what a name may get before others after a pause."""
        self._credit = credit
        self.served: dict[str, float] = {}  # virtual times
        self._now = 0.0  # virtual time of the name that was served last

    def start_of(self, name: str) -> float:
        """The virtual time with which a name begins to wait."""
        return max(self.served.get(name, 0.0), self._now - self._credit)


class _Line(VirtualTimes):
    """Names that wait, each once, the least served first."""

    __slots__ = ("_count", "_heap", "places")

    def __init__(self, credit: float) -> None:
        super().__init__(credit)
        self.places: dict[str, int] = {}  # of the names that wait
        self._heap: list[tuple[float, int, str]] = []  # places; others than those are outdated
        self._count = 0  # of places: of equals the first is next

    def enter(self, name: str) -> None:
        """Waits from now on."""
        self.served[name] = self.start_of(name)
        self.rejoin(name)

    def rejoin(self, name: str) -> None:
        """Takes a new place, behind the equals."""
        self._count = self.places[name] = count = self._count + 1
        heappush(self._heap, (self.served[name], count, name))

    def leave(self, name: str) -> None:
        """Waits no longer."""
        del self.places[name]

    def first(self, may: Callable[[str], bool] | None = None) -> str | None:
        """The name that is next, among those that may."""
        if may is not None:
            waiting = [(self.served[name], at, name) for name, at in self.places.items()]
            return min((place for place in waiting if may(place[2])), default=(0, 0, None))[2]
        heap, places = self._heap, self.places
        while heap:
            _, place, name = heap[0]
            if places.get(name) == place:
                return name
            heappop(heap)
        return None

    def begin(self, name: str) -> None:
        """Work is begun for a name."""
        self._now = max(self._now, self.served[name])

    def lead(self, name: str) -> float:
        """The next name's virtual time beyond this one's. The line is not empty."""
        first = self.first()
        assert first is not None, "the line is not empty"
        return self.served[first] - self.start_of(name)

    def charge(self, name: str, cost: float) -> None:
        """Work was done for a name."""
        self.served[name] = served = self.served.get(name, self._now) + cost
        if name in self.places:
            self.rejoin(name)
        elif not self.places:
            self._now = max(self._now, served)
        self._forget()

    def enter_all(self, names: Sequence[str]) -> list[float]:
        """Names begin to wait, and take no place: they are served in rounds. Returns the virtual
        time of each: the least is next, and of equals the first."""
        served, least = self.served, self._now - self._credit
        for name in names:
            start = served.get(name, 0.0)
            served[name] = start if start > least else least
        return [served[name] for name in names]

    def served_round(self, costs: Sequence[tuple[str, float]], *, all_of_them: bool) -> None:
        """Names that waited were served, in their order, each at its cost; perhaps all."""
        served = self.served
        name = costs[-1][0]
        self._now = max(self._now, served[name])
        for each, its in costs:
            served[each] += its
        if all_of_them:
            self._now = max(self._now, served[name])
            self._forget()

    def _forget(self) -> None:
        """Forgets names that do not wait and have no less than what a new name starts with."""
        if len(self.served) > _FORGET + 2 * len(self.places):
            self.served = {
                each: served
                for each, served in self.served.items()
                if each in self.places or served > self._now
            }


class FairQueue(Generic[Item]):
    """Items that wait, by user and instance; one instance's items in their order."""

    def __init__(
        self,
        credit: float,
        weight_of: Callable[[str], float] = lambda user: 1.0,
        credit_of_user: float | None = None,
    ) -> None:
        """Nothing waits yet. After a pause an instance may get `credit`, in the unit of `charge`,
        before others of its user, and a user `credit_of_user`, by default as much, before others. A
        user's share grows with their weight.
        """
        self._credit = credit
        self._weight_of = weight_of
        self._users = _Line(credit if credit_of_user is None else credit_of_user)
        self._instances: dict[str, _Line] = {}  # by user
        self._items: dict[Owner, deque[Item]] = {}
        self.size = 0  # items

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[Item]:
        """Items in the order in which they would be taken if nothing cost anything."""

        def place(owner: Owner) -> tuple[float, int, float, int]:
            users, line = self._users, self._instances[owner.user]
            user, instance = owner
            return (
                users.served[user],
                users.places[user],
                line.served[instance],
                line.places[instance],
            )

        for owner in sorted(self._items, key=place):
            yield from self._items[owner]

    def push(self, owner: Owner, item: Item) -> None:
        """Has an item wait."""
        items = self._items.get(owner)
        if items is None:
            items = self._items[owner] = deque()
            self._line_of(owner.user).enter(owner.instance)
            if owner.user not in self._users.places:
                self._users.enter(owner.user)
        items.append(item)
        self.size += 1

    def pop(self, may: Callable[[str], bool] | None = None) -> tuple[Owner, Item] | None:
        """The next item, of a user who may have one."""
        user = self._users.first(may)
        if user is None:
            return None
        line = self._instances[user]
        instance = line.first()
        assert instance is not None, "a user in the line has an instance in it"
        owner = Owner(user, instance)
        items = self._items[owner]
        item = items.popleft()
        self.size -= 1
        line.begin(instance)
        self._users.begin(user)
        if items:
            line.rejoin(instance)
        else:
            del self._items[owner]
            line.leave(instance)
        if line.places:
            self._users.rejoin(user)
        else:
            self._users.leave(user)
        return owner, item

    def next_user(self, but: Set[str] = frozenset()) -> str | None:
        """The user of the next item, without some users; None if nothing of another one waits."""
        return self._users.first((lambda user: user not in but) if but else None)

    def is_less_served(self, user: str, than: str) -> bool:
        """True if a user comes before another one, if both wait."""
        return self._users.start_of(user) < self._users.start_of(than)

    def lead(self, user: str) -> float:
        """The next user's virtual time beyond this one's. The queue is not empty."""
        return self._users.lead(user)

    def charge(self, owner: Owner, cost: float) -> None:
        """Tells what was done for an owner."""
        cost /= self._weight_of(owner.user)
        self._users.charge(owner.user, cost)
        self._line_of(owner.user).charge(owner.instance, cost)
        self._forget()

    def charge_user(self, user: str, cost: float) -> None:
        """Charges a user for what was done outside this line."""
        self._users.charge(user, cost / self._weight_of(user))

    # Rounds: where one user is alone, and what waits for them becomes more between two rounds only,
    # the order is the same without places in a line, and costs less.

    def enter_all(self, user: str, instances: Sequence[str]) -> list[float]:
        """Has instances of a user wait for a round; no other user has any that wait. Returns the
        virtual time of each: the least is next, and of equals the first."""
        self._users.enter_all([user])
        return self._line_of(user).enter_all(instances)

    def served_round(
        self, user: str, costs: Sequence[tuple[str, float]], *, all_of_them: bool
    ) -> None:
        """The first of them have had their turn, perhaps all: which it was, and at what cost."""
        weight = self._weight_of(user)
        if weight != 1.0:
            costs = [(name, cost / weight) for name, cost in costs]
        self._users.served_round([(user, sum([cost for _, cost in costs]))], all_of_them=True)
        self._instances[user].served_round(costs, all_of_them=all_of_them)
        self._forget()

    def _forget(self) -> None:
        known = self._users.served
        if len(self._instances) > _FORGET + 2 * len(known):
            self._instances = {u: line for u, line in self._instances.items() if u in known}

    def _line_of(self, user: str) -> _Line:
        line = self._instances.get(user)
        if line is None:
            line = self._instances[user] = _Line(self._credit)
        return line


class FairThreads:
    """A few threads, shared fairly: one user's queue delays others by no more than the running job.

    Fewer of the threads than there are may be one user's at a time, so that another user finds one
    free however long that user's work takes.
    """

    def __init__(self, threads: int, of_user: int, name: str, stack_bytes: int = 0) -> None:
        """Starts no thread yet. One user has `of_user` at a time; stacks are the system's if 0."""
        self._threads = threads
        self._of_user = of_user
        self._name = name
        self._stack_bytes = stack_bytes
        self._lock = threading.Condition()
        self._waiting: FairQueue[Work] = FairQueue(credit=0.0)
        self._running: Counter[str] = Counter()  # by user
        self._idle = self._started = 0

    def submit(self, owner: Owner, work: Work) -> None:
        """Has work done when its turn comes. It must raise nothing."""
        with self._lock:
            self._waiting.push(owner, work)
            if self._idle:
                self._lock.notify()
            elif self._started < self._threads:
                self._started += 1
                with _stack_size(self._stack_bytes):
                    threading.Thread(
                        target=self._run, name=f"{self._name}-{self._started}", daemon=True
                    ).start()

    async def run(self, owner: Owner, work: Callable[[], Item]) -> Item:
        """Does work when its turn comes, and returns or raises as it does."""
        done, token = trio.Event(), trio.lowlevel.current_trio_token()
        found: list[Item] = []
        errors: list[Exception] = []

        def do() -> None:
            try:
                found.append(work())
            except Exception as error:  # noqa: BLE001  raised by who waits
                errors.append(error)
            with suppress(trio.RunFinishedError):
                token.run_sync_soon(done.set)

        self.submit(owner, do)
        await done.wait()
        if errors:
            raise errors[0]
        return found[0]

    def _run(self) -> None:
        with self._lock:
            while True:
                taken = self._waiting.pop(lambda user: self._running[user] < self._of_user)
                if taken is None:
                    self._idle += 1
                    self._lock.wait()
                    self._idle -= 1
                    continue
                owner, work = taken
                self._running[owner.user] += 1
                self._lock.release()
                started = time.monotonic()
                try:
                    work()
                finally:
                    self._lock.acquire()
                    self._running[owner.user] -= 1
                    self._waiting.charge(owner, time.monotonic() - started)


_stack_sizes = threading.Lock()  # the size is one of the whole process


@contextmanager
def _stack_size(size: int) -> Iterator[None]:
    with _stack_sizes:
        before = threading.stack_size(size)
        try:
            yield
        finally:
            threading.stack_size(before)
