"""Pages published under a name, for other instances to map."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pie_control.errors import ApiError, exceeded, invalid
from pie_control.resources.pools import PagePool
from pie_control.shares import Shares
from pie_control.timers import Timer, Timers
from pie_py.wire.plan import Int32

MAX_NAME = 256  # characters
MAX_EXPORTS = 4096  # of one user
MAX_LISTED = 1 << 20  # pages in the lists of one user's exports, or as many as there are
# Exports outlive instances, and nothing but their release frees them: they must not take every
# page.
MAX_SHARE = 0.5  # of the pool, all exports together


@dataclass(slots=True, eq=False)
class Export:
    """One name and the pages behind it."""

    name: str
    user: str  # that may release it
    shared: bool
    pages: Int32  # [n] physical, each once
    seconds: float  # without an import, after which it ends
    due: float = math.inf  # when that is, by the clock
    timer: Timer | None = None


class Exports:
    """The exports of one model.

    Private names are each user's own; shared names are common to all. A user's private export hides
    a shared one of the same name from that user.
    """

    def __init__(
        self, pool: PagePool, shares: Shares, model: str, clock: Callable[[], float], timers: Timers
    ) -> None:
        self._pool = pool
        self._quotas = shares.quotas
        size = int(pool.size * MAX_SHARE)
        self._share = shares.add(f"{model}: exported pages", size, self._held_by)
        self._clock = clock
        self._timers = timers
        self._private: dict[str, dict[str, Export]] = {}  # by user, name
        self._shared: dict[str, Export] = {}
        self._count: dict[str, int] = {}  # exports by user
        self.listed: dict[str, int] = {}  # pages in the lists of these
        self._holds: NDArray[np.int32] = np.zeros(pool.size, np.int32)  # exports of each page

    def __len__(self) -> int:
        return len(self._shared) + sum(len(own) for own in self._private.values())

    @property
    def pages(self) -> int:
        """Pages that exports hold."""
        return int(np.count_nonzero(self._holds))

    def check(self, user: str, name: str, pages: Int32, shared: bool) -> None:
        """Tells whether `add` would succeed, without changing anything.

        Raises:
            ApiError: `invalid-argument`, `already-exists`, `limit-exceeded`.
        """
        if not 0 < len(name) <= MAX_NAME:
            raise invalid(f"a name of {len(name)} characters; give 1 to {MAX_NAME}")
        if len(pages) == 0:
            raise invalid(f"export {name!r} has no pages")
        if name in (self._shared if shared else self._private.get(user, {})):
            kind = "a shared export" if shared else "an export of yours"
            raise ApiError(
                "already-exists", f"{name!r} is {kind} already; release it or take another name"
            )
        if self._count.get(user, 0) >= MAX_EXPORTS:
            raise exceeded(f"you have {MAX_EXPORTS} exports; release some")
        if len(np.unique(pages)) != len(pages):
            raise invalid(f"export {name!r} has a page more than once")
        listed, most = self.listed.get(user, 0), max(MAX_LISTED, self._pool.size)
        if listed + len(pages) > most:
            raise exceeded(
                f"your exports list {listed} pages, those of several counted in each, and may list"
                f" {most}; {len(pages)} more are too many: release some"
            )
        most = self._share.most(user)
        if listed + len(pages) > most and self._holds_with(user, pages) > most:
            raise exceeded(
                f"the exports of one user may hold {most} pages, and yours would hold more: release"
                " some"
            )
        more = pages[self._holds[pages] == 0]
        most = int(self._pool.size * MAX_SHARE)
        if self.pages + len(more) > most:
            raise exceeded(
                f"exports hold {self.pages} pages and may hold {most}; {len(more)} more are too"
                " many: release some"
            )

    def add(self, user: str, name: str, pages: Int32, shared: bool) -> None:
        """Publishes pages `[n]`, which are immutable from now on. Raises as `check`."""
        self.check(user, name, pages, shared)
        export = Export(name, user, shared, pages, self._quotas.of(user).export_seconds)
        self._names(export)[name] = export
        self._await_end(export)
        self._count[user] = self._count.get(user, 0) + 1
        self.listed[user] = self.listed.get(user, 0) + len(pages)
        self._pool.retain(pages)
        self._pool.immutable[pages] = True
        self._holds[pages] += 1

    def use(self, user: str, name: str) -> Int32:
        """The pages of the export that this user means by a name; its time starts again.

        Raises:
            ApiError: `not-found`.
        """
        export = self._find(user, name)
        export.due = self._clock() + export.seconds
        return export.pages

    def _find(self, user: str, name: str) -> Export:
        export = self._private.get(user, {}).get(name) or self._shared.get(name)
        if export is None:
            raise ApiError(
                "not-found", f"no export that you may import is called {name[:MAX_NAME]!r}"
            )
        return export

    def names(self, user: str) -> list[str]:
        """Names that this user may import, sorted."""
        return sorted({*self._private.get(user, ()), *self._shared})

    def release(self, user: str, name: str) -> None:
        """Withdraws an export of this user; instances that map its pages keep them.

        Raises:
            ApiError: `not-found`, `permission-denied`.
        """
        self._end(self._own(user, name))

    def clear(self) -> None:
        """Ends all exports; instances that map their pages keep them."""
        private = (export for own in self._private.values() for export in own.values())
        for export in [*self._shared.values(), *private]:
            self._end(export)

    def expire(self, user: str, name: str, seconds: float) -> None:
        """Sets after how many seconds without an import an export of this user ends.

        Raises:
            ApiError: `not-found`, `permission-denied`, `invalid-argument`, `limit-exceeded`.
        """
        export, most = self._own(user, name), self._quotas.of(user).export_seconds
        if seconds <= 0:
            raise invalid("no time; `release-export` ends it at once")
        if seconds > most:
            raise exceeded(
                f"{seconds:g} s, and exports of yours end after {most:g} s without an import"
            )
        export.seconds = seconds
        self._await_end(export)

    def _await_end(self, export: Export) -> None:
        if export.timer is not None:
            export.timer.cancel()
        export.due = self._clock() + export.seconds
        if export.due < math.inf:
            self._wake_at_end(export)

    def _wake_at_end(self, export: Export) -> None:
        left = export.due - self._clock()
        export.timer = self._timers.call_later(left, lambda: self._end_if_due(export))

    def _end_if_due(self, export: Export) -> None:
        if export.due > self._clock():  # it has been imported meanwhile
            self._wake_at_end(export)
        else:
            self._end(export)

    def _own(self, user: str, name: str) -> Export:
        export = self._find(user, name)
        if export.user != user:
            raise ApiError("permission-denied", f"{name!r} was exported by another user")
        return export

    def _end(self, export: Export) -> None:
        user, name = export.user, export.name
        if export.timer is not None:
            export.timer.cancel()
        names = self._names(export)
        del names[name]
        if not names and not export.shared:
            del self._private[user]
        self._count[user] -= 1
        self.listed[user] -= len(export.pages)
        if not self._count[user]:
            del self._count[user], self.listed[user]
        self._holds[export.pages] -= 1
        self._pool.release(export.pages)

    def of_user(self, user: str) -> Iterator[Int32]:
        """Pages `[n]` of each of the user's exports."""
        shared = (export for export in self._shared.values() if export.user == user)
        for export in (*shared, *self._private.get(user, {}).values()):
            yield export.pages

    def _holds_with(self, user: str, more: Int32) -> int:
        """Pages that the user's exports hold, with these."""
        return len(np.unique(np.concatenate([more, *self.of_user(user)])))

    def _held_by(self, user: str) -> int:
        return self._holds_with(user, np.zeros(0, np.int32))

    def _names(self, export: Export) -> dict[str, Export]:
        return self._shared if export.shared else self._private.setdefault(export.user, {})
