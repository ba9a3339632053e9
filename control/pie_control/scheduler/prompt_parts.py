"""Long prompts beside the steps of others: which forwards a plan has, and in what parts.

A plan takes as long as its forward batch, and every decoding sequence waits for it. So where steps
are to be run, prompts get a share of tokens beside them, and beside work of other users a share of
time, too. What is longer is cut: its first part goes now, the rest stays first in its queue. Only
the worker sees that: the rest attends to the slots that the part has filled, as it would have to
the inputs. Where a forward may be cut is decided when it is queued (`api/forward_cuts.py`).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable

from pie_control.commands import forward
from pie_control.commands.command import BatchLimits
from pie_control.commands.forward import ForwardCommand
from pie_control.commands.queue import CommandQueue
from pie_control.scheduler.batching import by_age, by_rank, cut
from pie_control.scheduler.company import Steppers
from pie_control.scheduler.prompt_pace import PromptPace
from pie_control.scheduler.prompt_turns import PromptTurns
from pie_control.scheduler.step_deficits import StepDeficits
from pie_control.scheduler.step_shares import shared

STEPS = 32  # forwards of one in so many of the prompts' tokens are steps, which are not cut
LEAST = 4  # prompts have one in so many of their tokens, however many steps there are
KEYS = 4096  # of inputs that run at once; where they look at more keys, fewer inputs may


def step_tokens(prompt_tokens: int | None) -> int:
    """Inputs of the longest forward that counts as a step: one token, or a few that are tried."""
    return sys.maxsize if prompt_tokens is None else max(1, prompt_tokens // STEPS)


def most_at_once(prompt_tokens: int | None, keys: int) -> int:
    """Inputs of a forward that may have to run at once, if they look at so many keys.

    It does not depend on the machine or its load: a program is refused always or never.
    """
    if prompt_tokens is None:
        return sys.maxsize
    return max(step_tokens(prompt_tokens), prompt_tokens * KEYS // max(KEYS, keys))


class PromptParts:
    """Divides the forwards of one model."""

    def __init__(
        self,
        prompt_tokens: int | None,
        page_size: int,
        pace: PromptPace,
        deficits: StepDeficits,
    ) -> None:
        """Takes the inputs of prompts beside steps, the slots of a page, what inputs cost, and who
        has had too few steps.
        """
        self._prompt_tokens = prompt_tokens or sys.maxsize
        self._short = step_tokens(prompt_tokens)
        self._page_size = page_size
        self._pace = pace
        self._deficits = deficits
        self._turns = PromptTurns()
        self._steppers = Steppers()

    def share(
        self,
        forwards: list[ForwardCommand],
        limits: BatchLimits,
        others: set[str],
        here: Callable[[], set[str]],
    ) -> list[ForwardCommand]:
        """The forwards of one batch, in parts where they are too long. At least one, or else steps
        of runs that all of them wait for.

        Args:
            forwards: what may go, as `gather` has it.
            limits: of the batch.
            others: users of the steps of runs that are in the batch.
            here: tells the users with queues.

        Returns:
            Commands, and parts of commands that stay in their queues.
        """
        steppers = others.union([c.queue.owner.user for c in forwards if self._is_step(c)])
        self._steppers.step(steppers)
        users = steppers.union([command.queue.owner.user for command in forwards])
        forwards = self._deficits.without_waiting(forwards, steppers)
        forwards = self._leave_out(forwards, limits, self._steppers.are_several(users))
        prompts = [command for command in forwards if not self._is_step(command)]
        if not prompts:
            return cut(forwards, limits)
        steps = limits.steps + self._step_inputs(forwards)
        seconds = self._pace.spare(steps, self._steppers.company(users, here()))
        if not steps and seconds == math.inf:
            return cut(forwards, limits)
        by_age(forwards)
        self._turns.wait([command.queue.owner.user for command in prompts])
        budget = max(self._prompt_tokens - steps, self._prompt_tokens // LEAST, 1)
        return self._fill(forwards, limits, budget if steps else limits.tokens, seconds)

    def _leave_out(
        self, forwards: list[ForwardCommand], limits: BatchLimits, several: bool
    ) -> list[ForwardCommand]:
        """All but the steps for which there is no room, or, if several users have some, no
        time.
        """
        room, steps = limits.tokens, self._step_inputs(forwards)
        if several:
            prompts = any(not self._is_step(command) for command in forwards)
            room = min(room, self._pace.steps_in_time(limits.steps + steps, prompts) - limits.steps)
        if steps <= room and len(forwards) <= limits.commands:
            return forwards
        return shared(forwards, self._short, room, limits.commands)

    def _is_step(self, command: ForwardCommand) -> bool:
        return len(command.inputs) <= self._short

    def _step_inputs(self, forwards: list[ForwardCommand]) -> int:
        return sum([len(command.inputs) for command in forwards if self._is_step(command)])

    def room_for_runs(self, forwards: list[ForwardCommand], limits: BatchLimits) -> int:
        """How many steps of runs a batch takes, so that the forward that waits longest goes
        along.
        """
        if not forwards:
            return min(limits.tokens, limits.commands)
        oldest = min(forwards, key=lambda command: (command.queue.rank[0], command.number))
        need = max(min(self._short, len(oldest.inputs)), oldest.first_piece)
        return min(limits.tokens - need, limits.commands - 1)

    def _fill(
        self, forwards: list[ForwardCommand], limits: BatchLimits, budget: int, seconds: float
    ) -> list[ForwardCommand]:
        """The oldest first, then steps, then prompts within their budget; by priority before all.

        Args:
            forwards: the oldest first.
            limits: of the batch.
            budget: inputs of prompts.
            seconds: for them.
        """
        chosen: list[ForwardCommand] = []
        tokens = cells = pages = 0
        least = self._short
        stopped: set[CommandQueue] = set()  # what comes after in these has to wait
        for is_long, command in self._in_order(forwards):
            if command.queue in stopped:
                continue
            user, cost = command.queue.owner.user, self._pace.cost(command)
            room = limits.tokens - tokens
            is_next = is_long and self._turns.is_next(user)
            if is_long:
                room = min(room, budget, max(least, self._pace.fitting(command, seconds)))
            if is_long and not is_next and command is forwards[0]:
                room = min(room, self._short)  # it gets on, and leaves the rest to others
            cells += command.cells
            pages += len(command.pages)
            if (
                len(chosen) == limits.commands
                or cells > forward.MAX_CELLS
                or pages > forward.MAX_CONTEXT_PAGES
            ):
                break
            piece = self._piece(command, room, command is forwards[0])
            if piece is not command:
                stopped.add(command.queue)
            if piece is None:
                continue
            chosen.append(piece)
            count = len(piece.inputs)
            tokens += count
            if is_long:
                budget -= count
                seconds -= cost * count
                self._turns.charge(user, count)
            if is_next:
                least = 0  # one prompt has some inputs in any case
        if not chosen:
            return cut(forwards, limits)
        by_rank(chosen)
        return chosen

    def _piece(self, command: ForwardCommand, room: int, is_oldest: bool) -> ForwardCommand | None:
        """What of a command goes into a batch with so much room; the oldest gets on anyway."""
        if len(command.inputs) <= room:
            return command
        count = command.cut_at(room)
        if is_oldest:
            count = count or command.first_piece
        elif count < self._short:
            return None
        if count == len(command.inputs):
            return command
        return command.split(count, self._page_size)

    def _in_order(self, forwards: list[ForwardCommand]) -> list[tuple[bool, ForwardCommand]]:
        """By priority, the oldest, steps, then prompts by users' turns and age, each with whether
        it is a prompt; none overtakes one of its own queue.
        """
        behind: set[CommandQueue] = set()
        ranked: list[tuple[tuple[int, bool, int, int], bool, ForwardCommand]] = []
        for command in forwards:
            queue = command.queue
            is_long = len(command.inputs) > self._short or queue in behind
            if is_long:
                behind.add(queue)
            # Steps may fill a batch, again and again: what has waited longest goes before them.
            late = is_long and command is not forwards[0]
            had = self._turns.had(queue.owner.user) if late else 0
            ranked.append(((queue.rank[0], late, had, command.number), is_long, command))
        ranked.sort()
        return [(is_long, command) for _, is_long, command in ranked]
