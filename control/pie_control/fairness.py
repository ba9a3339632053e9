"""Who is next where users share something: the user, and then his instance, that got least.

This is start-time fair queueing (Goyal, Vin and Cheng, 1996), on two levels. Everybody has a
*virtual time*, which grows by what was done for him, divided by his weight. Next is who has the
least. What something costs is charged when it has been done, since nobody knows it before. Who
comes back after a pause begins a little (`credit`) before those who stayed: he cannot save up more
than that, and one who needs little is served at once.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from heapq import heappop, heappush
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

Item = TypeVar("Item")
Work: TypeAlias = Callable[[], Any]

_FORGET = 64  # those who are away and not in debt, before they are looked for


class Owner(NamedTuple):
    """The user and instance that something is done for."""

    user: str
    instance: str


class _Line:
    """Those who wait, each once, least served first."""

    __slots__ = ("_count", "_credit", "_heap", "_now", "_served", "_waiting")

    def __init__(self, credit: float) -> None:
        self._credit = credit
        self._served: dict[str, float] = {}  # virtual times
        self._waiting: set[str] = set()
        self._heap: list[tuple[float, int, str]] = []  # of those who wait; times may be outdated
        self._now = 0.0  # virtual time of the one who was taken last
        self._count = itertools.count()  # of equals, who came first

    def __contains__(self, name: str) -> bool:
        return name in self._waiting

    @property
    def waits(self) -> bool:
        """Whether anybody waits."""
        return bool(self._waiting)

    @property
    def known(self) -> int:
        """How many `knows` is true of."""
        return len(self._served)

    def knows(self, name: str) -> bool:
        """Whether he waits, or has had more than one who never came."""
        return name in self._served

    def enter(self, name: str) -> None:
        """Waits from now on."""
        served = max(self._served.get(name, 0.0), self._now - self._credit)
        self._served[name] = served
        self._waiting.add(name)
        heappush(self._heap, (served, next(self._count), name))

    def take(self, may: Callable[[str], bool]) -> str | None:
        """The one who is next among those who may; he waits no longer."""
        passed = []
        found = None
        while self._heap:
            served, _, name = entry = heappop(self._heap)
            if served < self._served[name]:  # charged since: his place is further back
                heappush(self._heap, (self._served[name], next(self._count), name))
            elif may(name):
                found = name
                self._now = max(self._now, served)
                self._waiting.discard(name)
                break
            else:
                passed.append(entry)
        for entry in passed:
            heappush(self._heap, entry)
        return found

    def charge(self, name: str, cost: float) -> None:
        """Something was done for him."""
        self._served[name] = self._served.get(name, self._now) + cost
        if len(self._served) > _FORGET + 2 * len(self._waiting):
            start = self._now - self._credit
            self._served = {
                each: served
                for each, served in self._served.items()
                if each in self._waiting or served > start
            }


class FairQueue(Generic[Item]):
    """What waits, by user and instance; one instance's items in their order."""

    def __init__(self, credit: float, weight_of: Callable[[str], float] = lambda user: 1.0) -> None:
        """Nothing waits yet.

        Args:
            credit: what a user or an instance may get before others after a pause, in the unit of
                `charge`.
            weight_of: a user's weight: his share grows with it.
        """
        self._credit = credit
        self._weight_of = weight_of
        self._users = _Line(credit)
        self._instances: dict[str, _Line] = {}  # by user
        self._items: dict[Owner, deque[Item]] = {}
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def push(self, owner: Owner, item: Item) -> None:
        """Has an item wait."""
        items = self._items.get(owner)
        if items is None:
            items = self._items[owner] = deque()
            self._line_of(owner.user).enter(owner.instance)
            if owner.user not in self._users:
                self._users.enter(owner.user)
        items.append(item)
        self._size += 1

    def pop(self, may: Callable[[str], bool] = lambda user: True) -> tuple[Owner, Item] | None:
        """The next item, of a user who may have one."""
        user = self._users.take(may)
        if user is None:
            return None
        line = self._instances[user]
        instance = line.take(lambda name: True)
        assert instance is not None, "a user who waits has an instance that does"
        owner = Owner(user, instance)
        items = self._items[owner]
        item = items.popleft()
        self._size -= 1
        if items:
            line.enter(instance)
        else:
            del self._items[owner]
        if line.waits:
            self._users.enter(user)
        return owner, item

    def charge(self, owner: Owner, cost: float) -> None:
        """Tells what was done for an owner."""
        cost /= self._weight_of(owner.user)
        self._users.charge(owner.user, cost)
        self._line_of(owner.user).charge(owner.instance, cost)
        if len(self._instances) > _FORGET and len(self._instances) > 2 * self._users.known:
            self._instances = {u: i for u, i in self._instances.items() if self._users.knows(u)}

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
        """Starts no thread yet.

        Args:
            threads: at most.
            of_user: of them for one user at a time.
            name: of the threads.
            stack_bytes: of each; 0 for the system's size.
        """
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
