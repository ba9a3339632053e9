"""Tokens that were chosen before, which a durable instance's samplers choose again.

A sampler chooses among all tokens that a mask allows, and here that is one. So what it keeps of its
text is as if it had chosen freely. The tokens of a run are guesses, too, that cannot be wrong: many
go through the model at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pie_control.scheduler.commands.run import RunCommand
from pie_control.scheduler.commands.sample import NO_MASKS, only
from pie_control.scheduler.speculation import Guesser, Price
from pie_py.wire.plan import Int32, Uint32

UNLIMITED = 1 << 30  # tokens


class Known:
    """Guesses the known tokens of a run, and then what another one guesses, if there is one."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self.then: Guesser | None = None
        self._tokens = list(tokens)
        self._read = 0

    @property
    def is_over(self) -> bool:
        """True if the run has them all."""
        return self._read >= len(self._tokens)

    def read(self, tokens: Sequence[int]) -> None:
        """Takes those of a run's tokens that are new."""
        self._read = len(tokens)
        if self.then is not None:
            self.then.read(tokens)

    def guess(self, most: int, price: Price) -> list[int] | None:
        """The next ones."""
        if self.is_over:
            return [] if self.then is None else self.then.guess(most, price)
        return self._tokens[self._read :][:most]

    def learn(self, guessed: int, accepted: int, behind: Sequence[int], price: Price) -> None:
        """Nothing of its own guesses."""
        if self.is_over and self.then is not None:
            self.then.learn(guessed, accepted, behind, price)

    @property
    def rests(self) -> int:
        """Tokens before it guesses again."""
        if not self.is_over:
            return 0
        return UNLIMITED if self.then is None else self.then.rests


def masks_of(
    runs: Sequence[RunCommand | None], numbers: Sequence[int], vocabulary: int
) -> tuple[Int32, Uint32]:
    """`masked` and `masks` of a `Sample` whose rows choose runs' tokens of these numbers."""
    masked = np.full(len(runs), -1, np.int32)
    masks: list[Uint32] = []
    for row, (run, number) in enumerate(zip(runs, numbers, strict=True)):
        if run is not None and number < len(run.known):
            masked[row] = len(masks)
            masks.append(only(run.known[number], vocabulary))
    return masked, np.stack(masks) if masks else NO_MASKS
