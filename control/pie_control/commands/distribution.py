"""The next-token distribution of an embed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np

from pie_control.commands.command import BatchLimits, Command, Touched, int32
from pie_control.errors import ApiError
from pie_control.instances.futures import Future
from pie_py.wire.plan import BatchResult, NextDist

if TYPE_CHECKING:
    from pie_control.commands.scrub import Scrub

MAX_DISTRIBUTION_CELLS = 1 << 22  # commands times the widest k: 32 MiB of answer


@dataclass(slots=True, eq=False)
class NextDistCommand(Command):
    """Asks for the next-token distribution of an embed. Only its future depends on it."""

    kind: ClassVar[str] = NextDist.kind
    is_withdrawn_if_cancelled: ClassVar[bool] = True
    embed: int
    k: int
    future: Future

    def read(self) -> Touched:
        """The embed."""
        return [], [self.embed]

    def written(self) -> Touched:
        """Nothing."""
        return [], []

    @classmethod
    def join(cls, commands: Sequence[Self]) -> NextDist:
        """One batch."""
        return NextDist(int32([c.embed for c in commands]), int32([c.k for c in commands]))

    @classmethod
    def fitting(cls, commands: Sequence[Self], limits: BatchLimits) -> int:
        """As many as have an answer of bounded size: the widest makes all as wide."""
        widest = 0
        for i, command in enumerate(commands):
            widest = max(widest, command.k)
            if widest * (i + 1) > MAX_DISTRIBUTION_CELLS:
                return max(i, 1)
        return len(commands)

    @classmethod
    def deliver(cls, commands: Sequence[Self], answer: BatchResult) -> None:
        """Gives every command its own part of the distributions: token ids, probabilities."""
        distributions = answer.distributions
        if distributions is None:
            return
        tokens = distributions.tokens.view(np.uint32)
        probabilities = distributions.probabilities
        for i, command in enumerate(commands):
            if command.queue.failure is None:
                k = command.k
                command.future.on_cancel = None
                command.future.resolve((tokens[i, :k], probabilities[i, :k]))

    def trace(self, provenance: object) -> None:
        """It writes nothing."""

    def offer_withdrawal(self, withdraw: Callable[[Command], None]) -> None:
        """It is taken out when its future is cancelled."""
        self.future.on_cancel = partial(withdraw, self)

    def fail(self, error: ApiError) -> None:
        """Fails its future."""
        self.future.fail(error)

    def fail_as_dependant(self) -> None:
        """Fails its future, unless that was cancelled or has a value."""
        if not self.future.ready:
            self.future.fail(self.queue.dependency_error())

    def scrub(self, scrub: Scrub) -> None:
        """Nothing."""
