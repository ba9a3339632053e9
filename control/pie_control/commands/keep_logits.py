"""Logits kept for a choice to mix in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

from pie_control.commands.command import Command, Touched, int32
from pie_control.errors import ApiError
from pie_control.resources.logit_rows import LogitRow
from pie_py.wire.plan import KeepLogits

if TYPE_CHECKING:
    from pie_control.commands.scrub import Scrub


@dataclass(slots=True, eq=False)
class KeepLogitsCommand(Command):
    """Keeps the logits after an embed. The choice that wants them waits until this is sent."""

    kind: ClassVar[str] = KeepLogits.kind
    is_told_when_sent: ClassVar[bool] = True
    embed: int
    row: LogitRow

    def read(self) -> Touched:
        """The embed."""
        return [], [self.embed]

    def written(self) -> Touched:
        """Nothing that has a name."""
        return [], []

    @classmethod
    def join(cls, commands: Sequence[Self]) -> KeepLogits:
        """One batch."""
        return KeepLogits(
            int32([command.embed for command in commands]),
            int32([command.row.row for command in commands]),
        )

    def was_sent(self) -> None:
        """What comes behind it in a plan may read the row."""
        self.row.sent = True

    def trace(self, provenance: object) -> None:
        """It writes nothing."""

    def fail(self, error: ApiError) -> None:
        """Fails the choice that wants the row, and what comes behind it in its queue."""
        self.row.fail()
        self.queue.fail(error)

    def fail_as_dependant(self) -> None:
        """Fails the choice that wants the row."""
        self.row.fail()

    def scrub(self, scrub: Scrub) -> None:
        """Nothing: no choice reads a row that has failed."""
