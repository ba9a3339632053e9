"""The goals of all instances: whose is which, and what is learned of those that end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from pie_control.instances.aim import Aim, Lengths
from pie_control.instances.instance import Instance, InstanceState
from pie_py.config.limits import ProgramGoal
from pie_py.wire.methods import Goal

MOST_PHASES = 32  # those behind the last are one


class Goals:
    """Gives instances their aims, and learns from those that end."""

    def __init__(
        self, of_programs: Mapping[str, ProgramGoal], lengths: Lengths, clock: Callable[[], float]
    ) -> None:
        """Takes the operator's goals for programs by name, and where lengths are kept."""
        self.missed = 0  # deadlines of instances that have ended
        self._of_programs = {name: Goal(**goal.model_dump()) for name, goal in of_programs.items()}
        self._lengths = lengths
        self._clock = clock

    def aim(self, instance: Instance) -> Aim:
        """That of a new instance."""
        aim = Aim(instance.user, instance.program.name, self._lengths, self._clock)
        if instance.parent is not None:
            aim.inherit(instance.parent.aim)
        elif (goal := self._of_programs.get(instance.program.name)) is not None:
            aim.take(goal)
        return aim

    def on_start(self, instance: Instance) -> None:
        """An instance begins its life, or another one: its calls are followed."""
        instance.futures.on_call = partial(_next_phase, instance)

    def on_end(self, instance: Instance) -> None:
        """Learns from an instance that has ended with a result."""
        aim = instance.aim
        if instance.parent is None and aim.is_late:
            self.missed += 1
        if instance.state is InstanceState.FINISHED:
            for phase, begun in enumerate(aim.phases):
                self._lengths.add(
                    aim.user, aim.kind(phase), float(instance.generated_tokens - begun)
                )
        aim.phases = [0]  # what is kept of it needs none


def _next_phase(instance: Instance) -> None:
    phases = instance.aim.phases
    if len(phases) < MOST_PHASES:
        phases.append(instance.generated_tokens)
