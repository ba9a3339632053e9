"""Fair threads: users take turns, and so do the instances of one user."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeAlias

Work: TypeAlias = Callable[[], Any]


class Owner(NamedTuple):
    """The user and instance that work is done for."""

    user: str
    instance: str


class FairThreads:
    """A few threads, shared fairly: one user's queue delays others by no more than the running job.

    Fewer of the threads than there are may be one user's at a time, so that another user finds one
    free however long that user's work takes.
    """

    def __init__(self, threads: int, of_user: int, name: str) -> None:
        self._of_user = of_user
        self._lock = threading.Lock()
        self._lanes: OrderedDict[str, OrderedDict[str, deque[Work]]] = OrderedDict()
        self._running: Counter[str] = Counter()  # by user
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix=name)

    def submit(self, owner: Owner, work: Work) -> None:
        """Has work done when its turn comes. It must raise nothing."""
        with self._lock:
            lanes = self._lanes.setdefault(owner.user, OrderedDict())
            lanes.setdefault(owner.instance, deque()).append(work)
        self._executor.submit(self._run)

    def _run(self) -> None:
        """Does what may be done, also what another thread has had to pass over."""
        while (taken := self._take()) is not None:
            user, work = taken
            try:
                work()
            finally:
                with self._lock:
                    self._running[user] -= 1
                    if not self._running[user]:
                        del self._running[user]

    def _take(self) -> tuple[str, Work] | None:
        """The next work of the first user who may have another thread; both go to the end of their
        lines.
        """
        with self._lock:
            free = (user for user in self._lanes if self._running[user] < self._of_user)
            user = next(free, None)
            if user is None:
                return None
            lanes = self._lanes[user]
            instance, lane = next(iter(lanes.items()))
            work = lane.popleft()
            if lane:
                lanes.move_to_end(instance)
            else:
                del lanes[instance]
            if lanes:
                self._lanes.move_to_end(user)
            else:
                del self._lanes[user]
            self._running[user] += 1
            return user, work
