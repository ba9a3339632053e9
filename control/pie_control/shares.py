"""Shares: what each user has of things of which the server has only so many, and may have.

A part of the server that gives such a thing declares it once, with `Shares.add`, and asks its share
before it gives more. The request `quota` lists all of them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from pie_control.errors import Shortage
from pie_py.config.limits import Quota, Quotas
from pie_py.config.server import ServerConfig

Held = Callable[[str], int]
Measure = Callable[[str], Awaitable[int]]


class Share:
    """One kind of thing, of which a user may have a part."""

    __slots__ = ("_most", "_quotas", "has", "kind", "size")

    def __init__(
        self, kind: str, size: int, has: Held, quotas: Quotas, most: Held | None = None
    ) -> None:
        self.kind = kind
        self.size = size
        self.has = has
        self._quotas = quotas
        self._most = most

    def most(self, user: str) -> int:
        """How many a user may have; one at least."""
        return self._quotas.most(user, self.size) if self._most is None else self._most(user)

    def is_full(self, user: str) -> bool:
        """True if a user has as many as one may."""
        return self.has(user) >= self.most(user)

    def check(self, user: str, more: int, free: int) -> None:
        """Refuses more of it than one user may have; `free` is how many no user has.

        Raises:
            ApiError: `limit-exceeded`.
        """
        most = self.most(user)
        if most >= self.size or self.size - free + more <= most:
            return  # the user may have all, or all users together have no more
        has = self.has(user)
        if has + more > most:
            model, _, what = self.kind.rpartition(": ")
            raise Shortage(
                f"your instances have {has} {what}{model and f' of {model}'}, and one user may have"
                f" {most}; free some, or wait until others of your instances have ended"
            )


class Shares:
    """All kinds of which users have shares."""

    def __init__(self, quotas: Quotas) -> None:
        self.quotas = quotas
        self._shares: dict[str, Share] = {}
        self._lent: dict[str, Held] = {}
        self._measured: dict[str, tuple[int | None, Measure]] = {}

    @classmethod
    def of(cls, config: ServerConfig) -> Shares:
        """Those of a server's configuration."""
        return cls(Quotas(config.quota, config.quotas))

    def add(self, kind: str, size: int, has: Held, most: Held | None = None) -> Share:
        """Declares something that users share; a kind of the same name is replaced.

        The kind is what it is, in the plural; behind the model and a colon, if it is a model's. The
        server has `size` of it, a user `has` so many and may have `most`: by default the quota's
        share.
        """
        share = self._shares[kind] = Share(kind, size, has, self.quotas, most)
        return share

    def add_lent(self, kind: str, has: Held) -> None:
        """Declares something of which a user may have more than a share while it is free."""
        self._lent[kind] = has

    def add_measured(self, kind: str, most: int | None, measure: Measure) -> None:
        """Declares what has to be looked at where it is kept; a user may have so many of it, None
        if others make room for it.
        """
        self._measured[kind] = most, measure

    async def of_user(self, user: str) -> dict[str, Any]:
        """A user's weight and priority, and of each kind what the user `has` and `may` have.

        `may` is null where more is lent while it is free.
        """
        quota: Quota = self.quotas.of(user)
        kinds = [
            {"kind": share.kind, "has": share.has(user), "may": share.most(user)}
            for share in self._shares.values()
        ]
        kinds += [{"kind": kind, "has": has(user), "may": None} for kind, has in self._lent.items()]
        for kind, (most, measure) in self._measured.items():
            kinds.append({"kind": kind, "has": await measure(user), "may": most})
        return {
            "user": user,
            "weight": quota.weight,
            "priority": quota.priority,
            "launches": quota.launches if quota.launches < float("inf") else None,
            "kinds": kinds,
        }
