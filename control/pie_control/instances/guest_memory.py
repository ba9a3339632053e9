"""Memory that guests have taken, and the instance that ends when it is too much.

Wasmtime does not report how much memory a guest has, but the system counts the pages that it makes
for a thread, and guests run on one. So the pages that are made while guests run are theirs, each
guest's by the time that it ran. A guest gives no memory back before its end. Some pages are the
server's, made in guests' calls; they are found by the process's size, which is never less than what
its guests have.
"""

from __future__ import annotations

import resource
from collections import Counter
from collections.abc import Callable, Iterable

import psutil

from pie_control.instances.instance import PAGE_BYTES, Instance
from pie_py.config.limits import Quotas
from pie_py.config.memory import total_memory

SEGMENT_NS = 500_000  # of guests' time, of which the pages are counted together
CHECKED_BYTES = 64 << 20  # made since the last check
_MACHINE_SHARE = 0.5  # of guests, if the operator says nothing
_WHO = getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)


def pages_made() -> int:
    """Pages of memory that the system has made for this thread so far."""
    return resource.getrusage(_WHO).ru_minflt


def default_bytes() -> int:
    """Memory for all guests together: half of the machine's, or of the container's."""
    return int(total_memory() * _MACHINE_SHARE)


def process_bytes() -> int:
    """Memory of this process."""
    return int(psutil.Process().memory_info().rss)


class GuestMemory:
    """Counts pages while guests run; looks at the whole when many have been made."""

    def __init__(
        self,
        check: Callable[[int], None] = lambda size: None,
        pages_made: Callable[[], int] = pages_made,
    ) -> None:
        self._check = check
        self._pages_made = pages_made
        self._seen = 0  # pages made when it last looked
        self._unchecked = 0
        self._ran: list[tuple[Instance, int]] = []  # since then, and how long
        self._ns = 0

    def begin(self) -> None:
        """Guests run from now on."""
        self._seen = self._pages_made()

    def ran(self, instance: Instance, nanoseconds: int) -> None:
        """A guest has had its turn."""
        self._ran.append((instance, nanoseconds))
        self._ns += nanoseconds
        if self._ns > SEGMENT_NS:
            self._count()

    def end(self) -> None:
        """No guest runs. Ends some that have too much memory."""
        if self._ran:
            self._count()
        if self._unchecked * PAGE_BYTES > CHECKED_BYTES:
            self._unchecked = 0
            self._check(process_bytes())

    def _count(self) -> None:
        now = self._pages_made()
        made, self._seen = now - self._seen, now
        if made:  # mostly none are
            self._unchecked += made
            for instance, nanoseconds in self._ran:
                instance.pages_made += made * nanoseconds / max(1, self._ns)
        self._ran.clear()
        self._ns = 0


def correct(instances: Iterable[Instance], process_bytes: int) -> None:
    """Takes away what cannot be guests': all have no more than the process has."""
    instances = list(instances)
    counted = sum(instance.guest_bytes for instance in instances)
    if counted > process_bytes:
        for instance in instances:
            instance.pages_made = instance.guest_bytes / PAGE_BYTES * process_bytes / counted


def of_users(instances: Iterable[Instance]) -> Counter[str]:
    """Bytes that the instances of each user have."""
    held: Counter[str] = Counter()
    for instance in instances:
        held[instance.user] += instance.memory_bytes
    return held


def too_much(
    instances: Iterable[Instance], quotas: Quotas, whole: int
) -> tuple[Instance, int] | None:
    """The instance that ends first, and the bound in bytes that its user is above, if one is.

    It is the one with the most memory: of a user who has more than one may have; or, if all
    together have more than `whole`, of the user with the most for their weight.
    """
    instances = list(instances)
    held = of_users(instances)
    for user, size in held.items():
        if size > (most := quotas.memory(user, whole)):
            return _largest(instances, user), most
    if sum(held.values()) > whole:
        user = max(held, key=lambda user: held[user] / quotas.weight(user))
        return _largest(instances, user), whole
    return None


def _largest(instances: Iterable[Instance], user: str) -> Instance:
    return max((i for i in instances if i.user == user), key=lambda i: i.memory_bytes)
