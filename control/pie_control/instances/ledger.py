"""The ledger: what programs have used, by day, user, program and tag, kept after their end.

It is a file of SQLite in the data folder, to which servers that share the folder add.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import structlog
import trio

from pie_control.data_folder import BUSY_SECONDS
from pie_control.errors import ApiError, exceeded
from pie_control.instances.instance import Account, Instance, InstanceState
from pie_control.tasks import disk_may_refuse
from pie_py.config.limits import Budget

log = structlog.get_logger("pie.ledger")
SECONDS = 1.0  # between two looks at budgets
DAYS = 400  # that are kept
# Of one user and day; what is beyond has no tag of its own, and no program, if that has no budget.
MOST_ROWS = 256
OTHER = "(other)"
AMOUNTS = tuple(Budget.model_fields)  # what is counted
KEYS = ("day", "user", "program", "tag")
Key: TypeAlias = tuple[str, str, str, str]
Used: TypeAlias = dict[str, float]  # by amount
_SCHEMA = (
    f"CREATE TABLE IF NOT EXISTS used ({', '.join(f'{key} TEXT' for key in KEYS)},"
    f" {', '.join(f'{amount} REAL' for amount in AMOUNTS)}, PRIMARY KEY ({', '.join(KEYS)}))"
)
_ADD = (
    f"INSERT INTO used VALUES ({', '.join('?' * (len(KEYS) + len(AMOUNTS)))})"
    f" ON CONFLICT DO UPDATE SET {', '.join(f'{a} = {a} + excluded.{a}' for a in AMOUNTS)}"
)


class Ledger:
    """The usage of users, and the budgets of programs."""

    def __init__(
        self,
        file: Path,
        budgets: Mapping[str, Budget],
        date_ns: Callable[[], int],
        live: Callable[[], Iterable[Instance]],
        page_seconds: Callable[[Instance], float],
        end: Callable[[Instance, InstanceState, str], None],
    ) -> None:
        self._file = file
        self._budgets = budgets
        self._date_ns = date_ns
        self._live = live
        self._page_seconds = page_seconds
        self._end = end
        self._new: dict[Key, Used] = {}  # not written yet
        self._rows: dict[tuple[str, str], set[Key]] = {}  # of users, today
        self._spent: dict[tuple[str, str], str] = {}  # budgets, by user and program, and why
        self._file_lock = trio.Lock()

    def on_end(self, instance: Instance) -> None:
        """An instance has ended."""
        self._add(self._key(instance), self._used(instance))

    def waited(self, account: Account, seconds: float) -> None:
        """A conversation has waited for its tools."""
        self._add((self._day(), *account), {"tool_seconds": seconds})

    def check(self, user: str, program: str) -> None:
        """Refuses to start a program whose budget is spent. Raises ApiError `limit-exceeded`."""
        if (why := self._spent.get((user, program))) is not None:
            raise exceeded(why)

    async def usage(self, user: str | None, days: int) -> list[dict[str, Any]]:
        """The usage of a user, or of every user, in the last days, of which today is one; with what
        live instances have used so far. The newest day comes first.
        """
        await self._flush()
        oldest = self._day(days - 1)
        found = await trio.to_thread.run_sync(partial(self._read, user, oldest))
        for instance in self._live():
            if user in (None, instance.user):
                _add(found.setdefault(self._key(instance), {}), self._used(instance))
        order = sorted(found, key=lambda key: key[1:])
        order.sort(key=lambda key: key[0], reverse=True)
        return [
            dict(zip(KEYS, key, strict=True))
            | {name: found[key].get(name, 0.0) for name in AMOUNTS}
            for key in order
        ]

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Writes what is new, and ends what is beyond its budget, until cancelled."""
        task_status.started()
        try:
            while True:
                await self._flush()
                if self._budgets:
                    with disk_may_refuse("look at budgets"):
                        await self._look()
                await trio.sleep(SECONDS)
        finally:
            self._write(self._new)

    async def _look(self) -> None:
        """Sums up what was used of each budget today."""
        rows = await trio.to_thread.run_sync(partial(self._read, None, self._day()))
        used: dict[tuple[str, str], Used] = {}
        for (_, user, program, _), amounts in rows.items():
            _add(used.setdefault((user, program), {}), amounts)
        live = [each for each in self._live() if each.program.name in self._budgets]
        for instance in live:
            of_both = used.setdefault((instance.user, instance.program.name), {})
            _add(of_both, self._used(instance))
        self._spent = {}
        for (user, program), amounts in used.items():
            budget = self._budgets.get(program, Budget())
            for name in AMOUNTS:
                most = getattr(budget, name)
                if most is not None and amounts.get(name, 0.0) >= most:
                    text = (
                        f"{program} has used {amounts[name]:.6g} {name} of {user} today (UTC), and"
                        f" its budget is {most:g} (budgets.{program}.{name})"
                    )
                    self._spent[user, program] = text
        for instance in live:
            if (why := self._spent.get((instance.user, instance.program.name))) is not None:
                self._end(instance, InstanceState.FAILED, f"limit-exceeded: {why}")

    def _used(self, instance: Instance) -> Used:
        return {
            "instances": 1.0,
            "prompt_tokens": float(instance.prompt_tokens),
            "generated_tokens": float(instance.generated_tokens),
            "cached_tokens": float(instance.cached_tokens),
            "page_seconds": self._page_seconds(instance),
            "cpu_seconds": instance.cpu_ns / 1e9,
            "tool_seconds": instance.tool_seconds + instance.futures.outside_seconds,
        }

    def _key(self, instance: Instance) -> Key:
        return self._day(), *instance.account

    def _day(self, before: int = 0) -> str:
        seconds = self._date_ns() // 10**9 - before * 86400
        return datetime.fromtimestamp(seconds, UTC).date().isoformat()

    def _add(self, key: Key, used: Used) -> None:
        day, user, program, _ = key
        if self._rows and next(iter(self._rows))[0] != day:
            self._rows = {}
        rows = self._rows.setdefault((day, user), set())
        if len(rows) >= MOST_ROWS and key not in rows:
            rest = (program, OTHER) if program in self._budgets else (OTHER, "")
            key = day, user, *rest
        rows.add(key)
        _add(self._new.setdefault(key, {}), used)

    async def _flush(self) -> None:
        async with self._file_lock:
            new, self._new = self._new, {}
            if new:
                await trio.to_thread.run_sync(self._write, new)

    def _open(self) -> sqlite3.Connection:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        sql = sqlite3.connect(self._file, timeout=BUSY_SECONDS)
        sql.execute(_SCHEMA)
        return sql

    def _write(self, new: Mapping[Key, Used]) -> None:
        rows = [(*key, *(used.get(name, 0.0) for name in AMOUNTS)) for key, used in new.items()]
        try:
            with closing(self._open()) as sql, sql:
                sql.executemany(_ADD, rows)
                sql.execute("DELETE FROM used WHERE day < ?", (self._day(DAYS),))
        except (OSError, sqlite3.Error) as error:
            log.warning("what was used is lost", file=str(self._file), reason=str(error))

    def _read(self, user: str | None, oldest: str) -> dict[Key, Used]:
        where = "day >= ? AND (? IS NULL OR user = ?)"
        try:
            with closing(self._open()) as sql:
                rows = sql.execute(f"SELECT * FROM used WHERE {where}", (oldest, user, user))
                return {
                    (day, owner, program, tag): dict(zip(AMOUNTS, amounts, strict=True))
                    for day, owner, program, tag, *amounts in rows
                }
        except (OSError, sqlite3.Error) as error:
            raise ApiError("out-of-resources", f"{self._file} cannot be read: {error}") from None


def _add(used: Used, more: Used) -> None:
    for name, amount in more.items():
        used[name] = used.get(name, 0.0) + amount
