"""The policy *adaptive*: a plan the moment that the worker takes one, long prompts in parts, and
fair shares of the worker's time for users.

A plan takes as long as its forward batch, and every decoding sequence waits for it. So where steps
are to be run, prompts get a share of tokens beside them, and beside work of other users a share of
time, too. What is longer is cut: its first part goes now, the rest stays first in its queue. Only
the worker sees that: the rest attends to the slots that the part has filled, as it would have to
the inputs. Where a forward may be cut is decided when it is queued (`api/forward_cuts.py`).

Whose work goes first, and what waits, is decided by users' virtual times (`fair_share.py`); how
much fits into a time, by what inputs have cost so far (`prompt_pace.py`).
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import cast

from pie_control.scheduler.batching import age, cut, rank
from pie_control.scheduler.commands import forward
from pie_control.scheduler.commands.command import BatchLimits, CommandQueue, QueueOwner
from pie_control.scheduler.commands.forward import ForwardCommand
from pie_control.scheduler.fair_share import ActiveUsers, FairShare
from pie_control.scheduler.order import by_goals
from pie_control.scheduler.plan_batch import PlanBatch
from pie_control.scheduler.prompt_pace import PromptPace
from pie_py.config.scheduling import SchedulerConfig

LEAST = 4  # prompts have one in so many of their tokens, however many steps there are


class Adaptive:
    """Divides the forwards of one model among users, and prompts among batches."""

    def __init__(
        self, config: SchedulerConfig, page_size: int, weight_of: Callable[[str], float]
    ) -> None:
        seconds = config.prompt_ms / 1000 if config.prompt_ms else None
        self._prompt_tokens = config.prompt_tokens or sys.maxsize
        self._short = config.step_tokens
        self._page_size = page_size
        self._weight_of = weight_of
        self._pace = PromptPace(seconds, config.prompt_tokens or 0, self._short)
        self.shares = FairShare(seconds, self._short, weight_of)  # what users have had
        self._active = ActiveUsers()
        self._is_alone = True  # no other model is served
        self._others_step: Callable[[], bool] = lambda: False
        self._cuts = [0, 0]  # batches of steps, and of prompts, where some may have no room

    def share(
        self, active: ActiveUsers, shares: FairShare, others_step: Callable[[], bool]
    ) -> None:
        """Steps of users in other models of the worker count here, and these there: whose time it
        is does not depend on the model. Takes what says that others have something at the worker.
        """
        self._active, self.shares, self._is_alone = active, shares, False
        self._others_step = others_step

    def wait(self, now: float, ready: Callable[[], int]) -> float:
        """0: the worker is never left idle."""
        return 0.0

    def order(self, owners: Sequence[QueueOwner], plan: int) -> Sequence[int]:
        """By their programs' goals, and some places by turns."""
        return by_goals(owners, plan)

    def took(self, batch: PlanBatch, seconds: float, elapsed: float) -> None:
        """Learns what inputs cost, and charges users what they have had."""
        forwards, steps = cast(Sequence[ForwardCommand], batch.commands), batch.steps
        runs = 0 if steps is None else steps.inputs
        if not self._is_alone and steps is not None:  # `choose` is not asked where all are runs
            self._active.step(steps.users)
        self._pace.took(forwards, runs, seconds)
        if forwards or self.shares.waiting:
            lone = self._pace.of_steps(runs + [len(each.inputs) for each in forwards].count(1))
            self.shares.took(forwards, lambda: steps.users if steps else set(), elapsed, lone)

    def choose(
        self,
        forwards: list[ForwardCommand],
        limits: BatchLimits,
        running: set[str],
        present: Callable[[], set[str]],
    ) -> list[ForwardCommand]:
        """The steps, as far as there is room, and prompts as far as there is time. None if all of
        it waits for steps of another model.
        """
        if len(forwards) == 1 and not running and self._is_step(forwards[0]):
            self._active.step((forwards[0].queue.owner.user,))
            return forwards
        steps = [c for c in forwards if self._is_step(c) and not c.sent_slots]  # no end of a prompt
        steppers = running.union([command.queue.owner.user for command in steps])
        self._active.step(steppers)
        users = steppers.union([command.queue.owner.user for command in forwards])
        if self._others_step():
            steppers = steppers.union(self._active.users)
        if len(users | steppers) > 1:
            forwards = self.shares.without_waiting(forwards, steppers)
        forwards = self._leave_out(forwards, limits, self._active.are_several(users))
        prompts = [command for command in forwards if not self._is_step(command)]
        if not prompts:
            return cut(forwards, limits)
        inputs = limits.steps + self._step_inputs(forwards)
        seconds = self._pace.spare(inputs, self._active.competition(users, present()))
        if not inputs and seconds == math.inf:
            turns = self._exchanged(forwards, prompts=True)
            return cut(forwards, limits, lambda each: (each.queue.rank[0], turns[each]))
        forwards.sort(key=age)
        budget = max(self._prompt_tokens - inputs, self._prompt_tokens // LEAST, 1)
        return self._fill(forwards, limits, budget if inputs else limits.tokens, seconds)

    def _exchanged(
        self, forwards: list[ForwardCommand], *, prompts: bool
    ) -> dict[ForwardCommand, int]:
        """The number by which each goes: those of one user are exchanged, in the `order`."""
        self._cuts[prompts] += 1
        of_users: dict[tuple[str, int], list[ForwardCommand]] = {}
        for command in sorted(forwards, key=age):
            key = command.queue.owner.user, command.queue.rank[0]
            of_users.setdefault(key, []).append(command)
        found: dict[ForwardCommand, int] = {}
        for own in of_users.values():
            order = self.order([command.queue.owner for command in own], self._cuts[prompts])
            for place, command in zip(order, own, strict=True):
                found[own[place]] = command.number
        return found

    def _is_step(self, command: ForwardCommand) -> bool:
        return len(command.inputs) <= self._short

    def _step_inputs(self, forwards: list[ForwardCommand]) -> int:
        return sum([len(command.inputs) for command in forwards if self._is_step(command)])

    def _leave_out(
        self, forwards: list[ForwardCommand], limits: BatchLimits, several: bool
    ) -> list[ForwardCommand]:
        """All but steps for which there is no room, or, where several users have some, no time."""
        room, steps = limits.tokens, self._step_inputs(forwards)
        if several:
            prompts = any(not self._is_step(command) for command in forwards)
            room = min(room, self._pace.steps_in_time(limits.steps + steps, prompts) - limits.steps)
        if steps <= room and len(forwards) <= limits.commands:
            return forwards
        return self._in_turns(forwards, room, limits.commands)

    def _in_turns(
        self, forwards: list[ForwardCommand], room: int, commands: int
    ) -> list[ForwardCommand]:
        """Leaves out steps for which there is no room: in inputs, of all users together, where a
        user has those of a step in any case; and in commands. Users' steps go in turns, each user's
        first by `order`: the next is of the user with the fewest inputs in the batch, by weight.

        Steps that the operator lets go before others' work stay. What is behind one that is left
        out, in its queue, is left out, too.
        """
        forwards.sort(key=age)
        had: Counter[str] = Counter()  # inputs
        turns: list[tuple[float, int, ForwardCommand]] = []
        numbers = self._exchanged(forwards, prompts=False)
        for command in sorted(forwards, key=lambda each: (each.queue.rank[0], numbers[each])):
            if self._is_step(command) and command.queue.priority <= 0:
                user = command.queue.owner.user
                turns.append((had[user] / self._weight_of(user), numbers[command], command))
                had[user] += len(command.inputs)
        had.clear()
        full: set[str] = set()  # nothing shorter overtakes a step of the same user
        stopped: dict[CommandQueue, int] = {}  # the first of the queue that is left out
        for _, _, command in sorted(turns, key=lambda turn: turn[:2]):
            user, count = command.queue.owner.user, len(command.inputs)
            fits = commands > 0 and (count <= room or had[user] + count <= self._short)
            if user in full or (had[user] and not fits):
                full.add(user)
                stopped.setdefault(command.queue, command.number)
                continue
            had[user] += count
            room -= count
            commands -= 1
        return [each for each in forwards if each.number < stopped.get(each.queue, sys.maxsize)]

    def _fill(
        self, forwards: list[ForwardCommand], limits: BatchLimits, budget: int, seconds: float
    ) -> list[ForwardCommand]:
        """The oldest first, then steps, then prompts within their budget of inputs and seconds; by
        priority before all.
        """
        numbers = self._exchanged(forwards, prompts=True)
        passed = numbers[forwards[0]] != forwards[0].number  # others of its user go before it
        chosen: list[ForwardCommand] = []
        tokens = cells = pages = 0
        least = self._short
        users = {each.queue.owner.user for each in forwards if not self._is_step(each)}
        next_at = min([self.shares.start_of(user) for user in users])  # who was served least
        stopped: set[CommandQueue] = set()  # what comes after in these has to wait
        for is_long, command in self._in_order(forwards, numbers):
            if command.queue in stopped:
                continue
            user = command.queue.owner.user
            room = limits.tokens - tokens
            is_next = is_long and self.shares.start_of(user) == next_at
            is_next = is_next and not (passed and command is forwards[0])
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
                seconds -= self._pace.cost(piece, count)
            if is_next:
                least = 0  # one prompt has some inputs in any case
        if not chosen:
            return cut(forwards, limits)
        chosen.sort(key=rank)
        return chosen

    def _piece(self, command: ForwardCommand, room: int, is_oldest: bool) -> ForwardCommand | None:
        """The part of a command for a batch with so much room; the oldest gets on anyway."""
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

    def _in_order(
        self, forwards: list[ForwardCommand], numbers: dict[ForwardCommand, int]
    ) -> list[tuple[bool, ForwardCommand]]:
        """By priority, the oldest, steps, then prompts by users' virtual times and the numbers by
        which they go, each with whether it is a prompt; none overtakes one of its own queue.
        """
        behind: set[CommandQueue] = set()
        ranked: list[tuple[tuple[int, bool, float, int], bool, ForwardCommand]] = []
        for command in forwards:
            queue = command.queue
            is_long = len(command.inputs) > self._short or queue in behind
            if is_long:
                behind.add(queue)
            # Steps may fill a batch, again and again: what has waited longest goes before them.
            late = is_long and command is not forwards[0]
            had = self.shares.start_of(queue.owner.user) if late else 0.0
            number = numbers[command] if late else command.number
            ranked.append(((queue.rank[0], late, had, number), is_long, command))
        ranked.sort()
        return [(is_long, command) for _, is_long, command in ranked]
