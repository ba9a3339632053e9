"""Topics and work queues in the PostgreSQL of the store, by the functions of its `topics.sql`."""

from __future__ import annotations

from typing import Any

from pie_cluster.database.statements import Statements
from pie_control.errors import ApiError


class Topics(Statements):
    """Its tables."""

    def call(self, name: str, *arguments: Any) -> Any:
        """What a function gives.

        Raises:
            ApiError: the instance is refused.
        """
        marks = ", ".join(["%s"] * len(arguments))
        row = self._one(f"SELECT * FROM bus_{name}({marks})", arguments)
        assert row is not None
        if len(row) == 1:
            return row[0]
        code, told, value = row
        if code is not None:
            raise ApiError(code, told)
        return value

    def waits(self, lease: int) -> dict[tuple[str, int], bool]:
        """Open futures of a node, by instance and handle: whether a message was given to each."""
        rows = self._all(
            "SELECT instance, future, ready FROM bus_waits JOIN bus_members USING (instance)"
            " WHERE lease = %s",
            (lease,),
        )
        return {(instance, future): ready for instance, future, ready in rows}
