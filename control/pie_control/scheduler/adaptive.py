"""The policy *adaptive*: a plan the moment that the worker takes one, long prompts in parts, and
fair shares of the worker's time for users.

A plan takes as long as its forward batch, and every decoding sequence waits for it. So where steps
are to be run, prompts get a share of tokens beside them, and beside work of other users a share of
time, too. What is longer is cut: its first part goes now, the rest stays first in its queue. Only
the worker sees that: the rest attends to the slots that the part has filled, as it would have to
the inputs. Where a forward may be cut is decided when it is queued (`api/forward.py`).

Whose work goes first, and what waits, is decided by users' virtual times (`fair_share.py`); how
much fits into a time, by what inputs have cost so far (`PromptPace`).
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import cast

import numpy as np
from numpy.typing import NDArray

from pie_control.scheduler.batching import age, by_goals, cut, rank
from pie_control.scheduler.commands import forward
from pie_control.scheduler.commands.command import BatchLimits, CommandQueue, QueueOwner
from pie_control.scheduler.commands.forward import NO_SAMPLER, ForwardCommand
from pie_control.scheduler.fair_share import ActiveUsers, Competition, FairShare
from pie_control.scheduler.in_flight import PlanBatch
from pie_py.config.scheduling import SchedulerConfig

KEPT = 0.95  # of what earlier batches count for, with each later one
LONGER = 2  # a part has at most so many times the inputs of the longest one so far
# A batch, its inputs, the pairs of an input and what it attends to, and the context: in units of
# which each costs about as much, so that few batches say little of what they do not show.
UNITS = np.array([0.1, 1 / 256, 1 / (256 << 12), 1 / (8 << 12)])
_RIDGE = 1e-4


class PartCosts:
    """The cost of parts of one kind, as the sum of four terms, none of which is negative: for the
    batch, for its inputs, for each pair of an input and a token before, and for the context.

    The terms are fitted by least squares; the newest batches count most.
    """

    def __init__(self) -> None:
        self._squares = np.zeros((4, 4))
        self._products = np.zeros(4)
        self._seconds = [0.0] * 4  # of each term's unit
        self._longest = 0

    def __bool__(self) -> bool:
        """True if any have been measured."""
        return self._longest > 0

    def took(self, parts: Sequence[tuple[int, int]], seconds: float) -> None:
        """Learns what a batch took, of some parts: inputs and context of each."""
        inputs = sum([count for count, _ in parts])
        pairs = sum([count * context for count, context in parts])
        terms = np.array([1.0, inputs, pairs, sum([context for _, context in parts])]) * UNITS
        self._squares = KEPT * self._squares + np.outer(terms, terms)
        self._products = KEPT * self._products + terms * seconds
        self._seconds = (_least_squares(self._squares, self._products) * UNITS).tolist()
        self._longest = max(self._longest, inputs)

    def of(self, inputs: int, context: int) -> float:
        """Seconds of so many inputs behind such a context; 0 if nothing is known."""
        batch, each, pair, token = self._seconds
        return batch + each * inputs + pair * inputs * context + token * context

    def fitting(self, seconds: float, context: int) -> int:
        """How many inputs behind such a context take so many seconds."""
        batch, each, pair, token = self._seconds
        most = LONGER * self._longest
        left, cost = seconds - batch - token * context, each + pair * context
        if left <= 0:
            return 0
        return most if cost * most <= left else int(left / cost)


def _least_squares(
    squares: NDArray[np.float64], products: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The terms, none negative, that fit best, as far as leaving out those that are finds it."""
    found = np.zeros(len(products))
    used = np.arange(len(products))
    while used.size:
        part = squares[np.ix_(used, used)] + _RIDGE * np.eye(used.size)
        fitted = np.linalg.solve(part, products[used])
        if (fitted >= 0).all():
            found[used] = fitted
            break
        used = np.delete(used, fitted.argmin())
    return found


# Prompts have one in so many of a batch's milliseconds, or as long as the steps take, and one in so
# many of their tokens, however many steps there are.
LEAST = 4
APART = 4  # so many times the bound, for prompts where no other user takes steps
AIM = 0.75  # of the bound: one part in a hundred takes a quarter longer than it should
UNKNOWN = 8  # so many times the inputs of a step take all the time, until any have been measured


class PromptPace:
    """Learns what steps and inputs of prompts cost, in seconds, and how long prompts' parts are.

    Beside other users' work a part takes no longer than the operator says; beside steps of the same
    user, as long as so many inputs without a context, within limits. What it costs depends on the
    model, the machine and its other work, and grows with the context (`PartCosts`). Some take
    longer than was expected, so all aim at less than the bound.
    """

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
