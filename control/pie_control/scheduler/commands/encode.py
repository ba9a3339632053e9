"""Commands that have an encoder make numbers of texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Self

import numpy as np

from pie_control.scheduler.commands.command import Command, Numbers, chain, int32, starts_of
from pie_py.wire.plan import Encode, Float32, Hidden, Int32

if TYPE_CHECKING:
    from pie_control.errors import ApiError
    from pie_control.instances.futures import Future


class Encoded:
    """The answer of one call, whose texts are in several commands."""

    def __init__(self, future: Future, count: int, tokens: int) -> None:
        self.future = future
        self.withdrawals: list[Callable[[], None]] = []  # take its commands out of their queue
        self._rows: dict[int, Float32] = {}
        self._count, self._tokens = count, tokens

    def add(self, places: Numbers, rows: Float32) -> None:
        """Takes the rows of some texts; with the last of them the future is ready."""
        self._rows.update(zip(places, rows, strict=True))
        if len(self._rows) == self._count and not self.future.ready:
            self.future.on_cancel = None
            numbers = np.concatenate([self._rows[place] for place in range(self._count)])
            self.future.resolve((self._tokens, numbers))

    def withdraw(self) -> None:
        """Takes what is not sent out of its queue."""
        for withdraw in self.withdrawals:
            withdraw()


@dataclass(slots=True, eq=False)
class EncodeCommand(Command):
    """Some texts of a call. Only its future depends on it."""

    batch = Encode
    counted = "tokens"
    takes_tokens = True
    one_batch_a_plan = True
    takes_turns = True
    is_withdrawn_if_cancelled = True
    tokens: Int32  # of all its texts
    lengths: Numbers
    seconds: Numbers  # see `Encode`
    places: Numbers  # of the texts in the call
    raw: bool
    answer: Encoded

    @classmethod
    def join(cls, commands: Sequence[Self]) -> Encode:
        """One batch."""
        return Encode(
            starts=starts_of(length for command in commands for length in command.lengths),
            tokens=chain([command.tokens for command in commands]),
            seconds=int32([second for command in commands for second in command.seconds]),
            raw=int32([int(command.raw) for command in commands for _ in command.lengths]),
        )

    def offer_withdrawal(self, withdraw: Callable[[Command], None]) -> None:
        """It is taken out when its call's future is cancelled."""
        self.answer.withdrawals.append(partial(withdraw, self))
        self.answer.future.on_cancel = self.answer.withdraw

    @classmethod
    def deliver(cls, commands: Sequence[Self], hidden: Hidden) -> None:
        """Gives every call its texts' numbers."""
        starts = starts_of(len(command.lengths) for command in commands).tolist()
        for command, (start, end) in zip(commands, pairwise(starts), strict=True):
            command.queue.owner.prompt_tokens += len(command.tokens)
            command.answer.add(command.places, hidden.means[start:end])

    def fail(self, error: ApiError) -> None:
        """Fails its call's future."""
        if not self.answer.future.ready:
            self.answer.future.fail(error)

    def fail_as_dependant(self) -> None:
        """Fails its call's future, unless that was cancelled or has a value."""
        self.queue.fail_dependant(self.answer.future)
