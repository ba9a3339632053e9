"""Fair shares of a model's worker: what its users have had of it, and which of them take steps.

This is start-time fair queueing, as in `fairness.py`: a user's virtual time is the sum of the
worker's seconds that they have had, divided by their weight. It decides whose prompts go first, and
what waits. A step beside 50 ms of another user's prompts has shared a batch, not its time. So
once a user is ahead of another with a step by more than a bound, what they have beyond one input a
forward stays in its queue in batches with that step. Steps come in a row then, as fast as without
them, and their prompts have long batches in their part of the time.

Steps of one input are always shared: many take little longer than one. So they cost only users who
have nothing longer. Each of these is charged with what the batch's steps take, however many users
share them; with all of a batch that has nothing longer. A user who has longer forwards, in the
batch or waiting, is charged with these alone: they have their share of the steps in any case.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import Enum, auto

from pie_control.fairness import VirtualTimes
from pie_control.scheduler.commands.command import CommandQueue
from pie_control.scheduler.commands.forward import ForwardCommand
from pie_py.config.keys import LOCAL_USER

IDLE_BATCHES = 8  # without a step, after which a user takes none
MOST_AHEAD = 10.0  # seconds that a user is ahead of others, whatever the operator lets go first
FORGET = 64  # users, before they are looked through


class Competition(Enum):
    """Rivals of the users who have work in a batch: they wait for it."""

    NONE = auto()  # there is one user alone, and no step has been taken for a while
    OWN_STEPS = auto()  # the same user takes steps, and no other has a queue
    QUEUES = auto()  # others have queues, or may come, and no user has had a step for a while
    STEPS = auto()  # a user takes steps beside another one's work


class ActiveUsers:
    """The users who have had a step in the last batches of forwards.

    A program that takes one token after the other has nothing queued while its own turn comes. If
    only what is queued counted, a prompt of another user would have the batch for itself, just
    before the next step comes.
    """

    def __init__(self) -> None:
        self._batches = 0
        self._last: dict[str, int] = {}  # the batch of a user's last step

    def step(self, users: Collection[str]) -> None:
        """A batch is formed in which these users have steps."""
        self._batches += 1
        for user in users:
            self._last[user] = self._batches
        if len(self._last) > len(users):
            oldest = self._batches - IDLE_BATCHES
            self._last = {user: batch for user, batch in self._last.items() if batch >= oldest}

    @property
    def users(self) -> Collection[str]:
        """All of them."""
        return self._last.keys()

    def are_several(self, users: Collection[str]) -> bool:
        """True if others take steps beside the users with work in a batch."""
        return bool(self._last) and len(self._last.keys() | users) > 1

    def competition(self, users: Collection[str], present: Collection[str]) -> Competition:
        """The competition of the users who have work in a batch; `present` are all with queues."""
        if self.are_several(users):
            return Competition.STEPS
        if len({*users, *present}) > 1:
            return Competition.QUEUES
        if self._last:
            return Competition.OWN_STEPS
        # Where users have keys, another one's first token may be wanted at any time.
        return Competition.NONE if LOCAL_USER in users else Competition.QUEUES


class FairShare(VirtualTimes):
    """Users' virtual times, in seconds of the worker."""

    __slots__ = ("_bound", "_short", "_weight_of", "waiting")

    def __init__(self, bound: float | None, short: int, weight_of: Callable[[str], float]) -> None:
        """No user has had anything. The longest forward that is a step has `short` inputs. A user
        with steps may lack `bound` seconds before others wait for them, and a user may get as many
        before others after a pause; None if nothing waits for steps.
        """
        super().__init__(bound or 0.0)
        self._bound = bound
        self._short = short
        self._weight_of = weight_of
        self.waiting: set[str] = set()  # users of what has waited, while they are ahead

    def without_waiting(
        self, forwards: list[ForwardCommand], steppers: Collection[str]
    ) -> list[ForwardCommand]:
        """Leaves out what waits for steps of users who have had less, where `steppers` have steps
        in the batch.

        What the operator lets go before others' work stays. What is behind one that is left out, in
        its queue, is left out, too.
        """
        if self._bound is None or not steppers:
            return forwards
        bound, weight_of = self._bound, self._weight_of
        most = min([self.start_of(user) + bound / weight_of(user) for user in steppers])
        ahead = {user for user, served in self.served.items() if served > most}
        left: list[ForwardCommand] = []
        stopped: set[CommandQueue] = set()
        for command in forwards:
            queue = command.queue
            if len(command.inputs) > 1 and queue.priority <= 0 and queue.owner.user in ahead:
                stopped.add(queue)
            if queue not in stopped:
                left.append(command)
        self.waiting.update([queue.owner.user for queue in stopped])
        return left

    def took(
        self,
        forwards: Sequence[ForwardCommand],
        running: Callable[[], Collection[str]],
        seconds: float,
        step: float,
    ) -> None:
        """Charges users what a batch of forwards, without runs, has taken: seconds of the worker
        from the end of the batch before on. `running` returns the users with runs in it.

        Steps alone, for which nothing has waited, are equal for all and are not charged: its
        forwards of one input would have taken `step` seconds, with the runs.
        """
        total = sum([len(command.inputs) for command in forwards]) - len(forwards)
        if not (total or self.waiting):
            return
        extra: Counter[str] = Counter()  # inputs beyond the first of a forward
        for command in forwards:
            extra[command.queue.owner.user] += len(command.inputs) - 1
        steppers = {c.queue.owner.user for c in forwards if len(c.inputs) <= self._short}
        steppers.update(running())
        step = min(seconds, step) if steppers else 0.0
        had = dict.fromkeys(steppers - self.waiting, step if total else seconds)
        had.update({user: (seconds - step) * n / total for user, n in extra.items() if n})
        if not had:  # the users that wait are alone
            self.waiting.clear()
            return
        self.charge(had)
        served, now = self.served, self._now
        self.waiting = {user for user in self.waiting if served.get(user, 0.0) > now}

    def charge(self, seconds: Mapping[str, float]) -> None:
        """Some users, one at least, have had so many seconds of a batch each."""
        starts = {user: self.start_of(user) for user in seconds}
        self._now = now = max(self._now, min(starts.values()))
        for user, had in seconds.items():
            ends = starts[user] + had / self._weight_of(user)
            self.served[user] = min(ends, now + MOST_AHEAD)
        if len(self.served) > FORGET:
            least = now - self._credit  # where an unknown user begins
            self.served = {user: had for user, had in self.served.items() if had > least}
