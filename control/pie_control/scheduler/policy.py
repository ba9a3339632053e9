"""Scheduling policies: their interface, and how a setting becomes one.

A policy decides when what is ready becomes a plan, which forwards the plan has, in what parts, and
which of a user's instances go first.
It does no I/O and is handed the time and all else, but what batches took: that it learns. The
mechanisms around it form batches of light commands, keep commands in order, and send plans ahead of
results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from pie_control.scheduler.adaptive import Adaptive
from pie_control.scheduler.commands.command import BatchLimits, QueueOwner
from pie_control.scheduler.commands.forward import ForwardCommand
from pie_control.scheduler.in_flight import PlanBatch
from pie_py.config.plugins import named_policy
from pie_py.config.scheduling import SchedulerConfig


class SchedulingPolicy(Protocol):
    """Decides for one model."""

    def wait(self, now: float, ready: Callable[[], int]) -> float:
        """Seconds for which what is ready waits for more, before a plan is formed; 0 if a plan is
        formed now.

        It is asked again when they are over, and whenever something has come.

        Args:
            now: trio's time, in seconds.
            ready: counts the queues and runs with something to send.
        """

    def choose(
        self,
        forwards: list[ForwardCommand],
        limits: BatchLimits,
        running: set[str],
        present: Callable[[], set[str]],
    ) -> list[ForwardCommand]:
        """The forwards of one batch: commands, and parts of commands that stay in their queues.

        At least one, or else steps that all of them wait for: of runs in the batch, or under way
        in another model of the worker.

        Args:
            forwards: what may go, each queue's in order; at least one.
            limits: what the worker takes beside the steps of runs that are in the batch.
            running: users of these.
            present: returns the users with queues.
        """

    def order(self, owners: Sequence[QueueOwner], plan: int) -> Sequence[int]:
        """The places of some of one user's instances in the order in which they go, where there is
        not room for all. `adaptive` looks at their `precedence`.

        Args:
            owners: the one that has waited longest first; one may be there more than once.
            plan: its number.
        """

    def took(self, batch: PlanBatch, seconds: float, elapsed: float) -> None:
        """Learns what a batch of forwards took.

        Args:
            batch: its commands, and the steps of runs.
            seconds: of the worker.
            elapsed: seconds from the end of the batch before on.
        """


# Makes a policy of the settings, the slots of a page, and the weights of users.
NewPolicy: TypeAlias = Callable[[SchedulerConfig, int, Callable[[str], float]], SchedulingPolicy]

POLICIES: dict[str, NewPolicy] = {"adaptive": Adaptive}


def load_policy(name: str) -> NewPolicy:
    """The maker of the policy of a name, or of an import path `package.module:function`.

    Raises:
        UnknownPolicy: if there is none.
    """
    return named_policy(name, POLICIES, "scheduling")
