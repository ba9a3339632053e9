"""Rows of logits that the worker keeps between the command that computes them and a choice."""

from __future__ import annotations

from pie_control.errors import ApiError
from pie_control.resources.pools import FreeList
from pie_py.wire.operations import LOGIT_ROWS


class LogitRow:
    """A row, as long as a command names it: no other one gets it before."""

    __slots__ = ("_rows", "failed", "row", "sent")

    def __init__(self, rows: FreeList) -> None:
        """Takes a row.

        Raises:
            ApiError: `out-of-resources`.
        """
        self.row = -1
        self._rows = rows
        if not rows.free:
            raise ApiError(
                "out-of-resources",
                f"all {LOGIT_ROWS} rows of logits are waiting for choices that mix them in",
            )
        self.row = int(rows.take(1)[0])
        self.sent = False  # whether the worker has what fills it, or never gets it
        self.failed = False

    def fail(self) -> None:
        """It will not be filled."""
        self.sent = self.failed = True

    def __del__(self) -> None:
        if self.row >= 0:
            self._rows.give_one(self.row)
