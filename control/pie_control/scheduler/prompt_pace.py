"""The length of prompts' parts. Beside other users' work a part takes no longer than the operator
says; beside steps of the same user, as long as so many inputs without a context, within limits.

What a part costs depends on the model, the machine and its other work, and grows with the context
that it attends to. So it is learned, from what parts have taken (`part_costs.py`). Some take longer
than was expected, so all aim at less than the bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from pie_control.scheduler.commands.forward import NO_SAMPLER, ForwardCommand
from pie_control.scheduler.fair_share import Competition
from pie_control.scheduler.part_costs import PartCosts

LEAST = 4  # prompts have one in so many of their milliseconds, or as long as the steps take
APART = 4  # so many times the bound, for prompts where no other user takes steps
AIM = 0.75  # of the bound: one part in a hundred takes a quarter longer than it should
UNKNOWN = 8  # so many times the inputs of a step take all the time, until any have been measured


class PromptPace:
    """Learns what steps and inputs of prompts cost, in seconds."""

    def __init__(self, seconds: float | None, tokens: int, short: int) -> None:
        """Nothing is known yet. A batch of forwards where several users have work takes so many
        seconds, None for no bound, and has so many tokens of prompts beside steps; the longest
        forward that counts as a step has `short` inputs.
        """
        self._seconds = seconds
        self._tokens = tokens
        self._short = short
        self._step = 0.0  # the steps of a batch
        self._few = 0.0  # so few steps that their number makes no difference
        self._each = 0.0  # an input of steps, beside that
        self._unknown = (seconds or 0.0) / (UNKNOWN * short)
        self._plain, self._masked = PartCosts(), PartCosts()

    def of_steps(self, steps: int) -> float:
        """Seconds of a batch with so many steps of one input, and nothing else."""
        return self._few + (self._each * steps if steps > self._short else 0.0)

    def spare(self, steps: int, others: Competition) -> float:
        """Seconds for prompts beside so many steps in a batch.

        Where the steps alone take nearly all the time, no bound holds, and prompts that wait for
        long leave batches small: then they have as long as the steps. A user's own prompts take as
        many inputs beside their steps as they may, but of a model that is slow at them no more than
        `APART` times the bound, and not ten times as long at the end of a long one: parts get
        shorter as the context grows.
        """
        if self._seconds is None or others is Competition.NONE:
            return math.inf
        if others is Competition.OWN_STEPS:
            whole = min(self._plain.of(self._tokens, 0), APART * self._seconds)
            return max(self._seconds, self._step, whole)
        if others is Competition.QUEUES:
            return APART * max(self._seconds, self._step)
        if not steps:
            return max(self._seconds, self._step)  # they come too late for it
        left = AIM * self._seconds - self._step
        return left if left >= self._seconds / LEAST else self._step

    def steps_in_time(self, inputs: int, prompts: bool) -> int:
        """How many of so many inputs of steps a batch has where several users take some; prompts
        have a part of the time if there are any.
        """
        if self._seconds is None:
            return inputs
        left = self._seconds * (1 - prompts / LEAST) - self._few
        left = left if left >= self._seconds / LEAST else self._few
        return min(inputs, int(left / (self._each or self._unknown)))

    def cost(self, command: ForwardCommand, inputs: int) -> float:
        """Seconds of so many inputs of the next part."""
        costs = self._costs(command)
        return costs.of(inputs, _context(command)) or self._unknown * inputs

    def fitting(self, command: ForwardCommand, seconds: float) -> int:
        """How many of a forward's next inputs take no longer."""
        count = len(command.inputs)
        if seconds == math.inf:
            return count
        costs = self._costs(command)
        most = costs.fitting(seconds, _context(command)) if costs else int(seconds / self._unknown)
        return min(count, most)

    def took(self, commands: Sequence[ForwardCommand], steps: int, seconds: float) -> None:
        """Learns what a batch of forwards has taken, with so many steps of runs."""
        prompts = [command for command in commands if len(command.inputs) > self._short]
        steps += sum([len(c.inputs) for c in commands if len(c.inputs) <= self._short])
        if not prompts:
            self._step = _mean(self._step, seconds)
            if steps <= self._short:
                self._few = _mean(self._few, seconds)
            else:
                taken = max(seconds - self._few, seconds / LEAST)
                self._each = _mean(self._each, taken / steps)
        elif steps or any(command.part_of or command.sent_slots for command in prompts):
            # Those that have a batch for themselves are computed whole.
            taken = seconds - self._step if steps else seconds
            plain = all(self._costs(command) is self._plain for command in prompts)
            costs = self._plain if plain else self._masked
            parts = [(len(command.inputs), _context(command)) for command in prompts]
            costs.took(parts, max(taken, seconds / LEAST))

    def _costs(self, command: ForwardCommand) -> PartCosts:
        """Rows of a mask, and weights that a program is told, cost more, in some many times."""
        is_plain = command.mask is None and command.attends == NO_SAMPLER
        return self._plain if is_plain else self._masked


def _mean(before: float, new: float) -> float:
    return (before + new) / 2 if before else new


def _context(command: ForwardCommand) -> int:
    """Inputs before those of a command, which these attend to."""
    return int(command.page_used.sum())
