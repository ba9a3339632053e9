"""Users whose steps come too rarely beside longer forwards of others, which wait for them then.

A batch with a step of one user and 50 ms of another one's prompts is shared, and the time is not:
the worker's time is divided by deficit round robin (Shreedhar and Varghese, 1995). With each batch
that has work of others, a user with a step is entitled to his part of its time, and has had that of
the steps. Once he lacks `most` seconds, what others have beyond one input a forward stays in its
queue in batches with his steps. These repay him: each has been his, its pause included. So steps
come in a row, as fast as without others, and prompts have long batches in their half of the time.

Steps of one input are always shared: many take little longer than one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from pie_control.commands.forward import ForwardCommand
from pie_control.commands.queue import CommandQueue

ABSENT = 8  # a user without a step loses one in so many seconds of what he lacks


@dataclass(slots=True)
class _Deficit:
    """What a user lacks."""

    seconds: float = 0.0
    part: float = 1.0  # of the time, that he is entitled to


class StepDeficits:
    """What users lack of the worker's time, in seconds."""

    def __init__(self, most: float | None, short: int, weight_of: Callable[[str], float]) -> None:
        """No user lacks anything.

        Args:
            most: seconds that a user may lack; None for any time.
            short: inputs of the longest forward that is a step.
            weight_of: a user's weight, with which his part grows.
        """
        self._most = most
        self._short = short
        self._weight_of = weight_of
        self._users: dict[str, _Deficit] = {}
        self._whole = 1.0  # weights of all users who had work when the last batch was formed

    def without_waiting(
        self, forwards: list[ForwardCommand], steppers: Collection[str]
    ) -> list[ForwardCommand]:
        """Leaves out the forwards that wait for others' steps.

        Those that the operator lets go before others' work stay. What is behind one that is left
        out, in its queue, is left out, too.

        Args:
            forwards: what may go.
            steppers: who has steps in the batch.
        """
        most = self._most
        if most is None:
            return forwards
        here = {command.queue.owner.user for command in forwards}.union(steppers)
        self._whole = sum([self._weight_of(user) for user in here])
        if not self._users:
            return forwards
        # A user alone when his last batch was formed would repay nothing to users who came since.
        for user, its in self._users.items():
            its.part = self._part(user)
        lacking = {user for user, its in self._users.items() if its.seconds > most}
        lacking.intersection_update(steppers)
        if not lacking:
            return forwards
        kept: list[ForwardCommand] = []
        stopped: set[CommandQueue] = set()
        for command in forwards:
            queue = command.queue
            if len(command.inputs) > 1 and queue.priority <= 0 and queue.owner.user not in lacking:
                stopped.add(queue)
            if queue not in stopped:
                kept.append(command)
        return kept

    def took(
        self,
        forwards: Sequence[ForwardCommand],
        running: Callable[[], Collection[str]],
        seconds: float,
        step: float,
    ) -> None:
        """Learns what a batch of forwards has taken.

        Args:
            forwards: of the batch, without runs.
            running: tells the users with runs in it.
            seconds: of the worker, from the end of the batch before on.
            step: seconds that its forwards of one input would have taken, with the runs.
        """
        extra: Counter[str] = Counter()  # inputs beyond the first of a forward
        for command in forwards:
            extra[command.queue.owner.user] += len(command.inputs) - 1
        total = extra.total()
        if self._most is None or not (total or self._users):
            return
        steppers = {c.queue.owner.user for c in forwards if len(c.inputs) <= self._short}
        steppers.update(running())
        for user in steppers:
            if total > extra[user]:
                had = min(seconds, step) + max(0.0, seconds - step) * extra[user] / total
                self._owe(user, seconds, had)
        for user, deficit in list(self._users.items()):
            if user not in steppers:
                deficit.seconds -= seconds / ABSENT
            elif total == extra[user]:
                deficit.seconds -= seconds * (1 - deficit.part)
            if deficit.seconds <= 0:
                del self._users[user]

    def _owe(self, user: str, seconds: float, had: float) -> None:
        """A user is entitled to his part of some seconds, and has had some of them."""
        deficit = self._users.setdefault(user, _Deficit())
        deficit.part = self._part(user)
        deficit.seconds += seconds * deficit.part - had

    def _part(self, user: str) -> float:
        return min(1.0, self._weight_of(user) / self._whole)
