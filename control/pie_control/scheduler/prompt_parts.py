"""Long prompts beside the steps of others: which forwards a plan has, and in what parts.

A plan takes as long as its forward batch, and every decoding sequence waits for it. So where steps
are to be run, prompts get a share of tokens beside them, and what is longer is cut: its first part
goes now, the rest stays first in its queue. Only the worker sees that: the rest attends to the
slots that the part has filled, as it would have to the inputs.

Cut are forwards that keep what they compute, without a mask, not observed, whose inputs' positions
do not decrease, and whose slots are all new but for the end of one page among its inputs. Others
run whole.
"""

from __future__ import annotations

from pie_control.commands import forward
from pie_control.commands.command import BatchLimits
from pie_control.commands.forward import ForwardCommand
from pie_control.commands.queue import CommandQueue
from pie_control.scheduler.batching import by_age, by_rank, cut

STEPS = 32  # forwards of one in so many of the prompts' tokens are steps, which are not cut
LEAST = 4  # prompts have one in so many of their tokens, however many steps there are


def step_tokens(prompt_tokens: int) -> int:
    """Inputs of the longest forward that counts as a step: one token, or a few that are tried."""
    return max(1, prompt_tokens // STEPS)


def share(
    forwards: list[ForwardCommand], limits: BatchLimits, page_size: int
) -> list[ForwardCommand]:
    """The forwards of one batch, in parts where they are too long. Always at least one.

    Args:
        forwards: what may go, as `gather` has it.
        limits: of the batch.
        page_size: slots of a page.

    Returns:
        Commands, and parts of commands that stay in their queues.
    """
    if limits.prompt_tokens is None or (len(forwards) == 1 and not limits.steps):
        return cut(forwards, limits)
    short = step_tokens(limits.prompt_tokens)
    steps = [len(command.inputs) for command in forwards if len(command.inputs) <= short]
    if len(steps) == len(forwards) or not (steps or limits.steps):
        return cut(forwards, limits)
    by_age(forwards)
    if _must_be_whole(forwards[0], short):
        return cut(forwards, limits)
    least = max(1, limits.prompt_tokens // LEAST)
    budget = max(limits.prompt_tokens - limits.steps - sum(steps), least)
    return _fill(forwards, limits, short, budget, page_size)


def room_for_runs(forwards: list[ForwardCommand], limits: BatchLimits) -> int:
    """How many steps of runs a batch takes, so that the forward that waits longest goes along."""
    if not forwards:
        return min(limits.tokens, limits.commands)
    oldest = min(forwards, key=lambda command: (command.queue.rank[0], command.number))
    need = len(oldest.inputs)
    if limits.prompt_tokens is not None and oldest.divisible:
        need = min(need, step_tokens(limits.prompt_tokens))
    return min(limits.tokens - need, limits.commands - 1)


def _must_be_whole(command: ForwardCommand, short: int) -> bool:
    """Whether a command can't be cut. It goes as soon as it is the oldest, whatever it takes."""
    return len(command.inputs) > short and not command.divisible


def _fill(
    forwards: list[ForwardCommand], limits: BatchLimits, short: int, budget: int, page_size: int
) -> list[ForwardCommand]:
    """The oldest first, then steps, then prompts within their budget; by priority before all."""
    chosen: list[ForwardCommand] = []
    tokens = cells = pages = 0
    stopped: set[CommandQueue] = set()  # what comes after in these has to wait
    for is_long, command in _in_order(forwards, short):
        if command.queue in stopped:
            continue
        count = len(command.inputs)
        room = min(limits.tokens - tokens, budget) if is_long else limits.tokens - tokens
        cells += command.cells
        pages += len(command.pages)
        if (
            len(chosen) == limits.commands
            or cells > forward.MAX_CELLS
            or pages > forward.MAX_CONTEXT_PAGES
        ):
            break
        if count > room:
            stopped.add(command.queue)
            count = min(room, count - max(1, len(command.outputs)))  # outputs are all in the last
            if not command.divisible or count < short:
                continue
            command = command.split(count, page_size)
        chosen.append(command)
        tokens += count
        if is_long:
            budget -= count
    if not chosen:
        return cut(forwards, limits)
    by_rank(chosen)
    return chosen


def _in_order(forwards: list[ForwardCommand], short: int) -> list[tuple[bool, ForwardCommand]]:
    """By priority, the oldest, steps before others, then age; none overtakes one of its own
    queue.
    """
    behind: set[CommandQueue] = set()
    ranked: list[tuple[bool, ForwardCommand]] = []
    for command in forwards:
        is_long = len(command.inputs) > short or command.queue in behind
        if is_long:
            behind.add(command.queue)
        ranked.append((is_long, command))
    # Steps may fill a batch, again and again: the forward that has waited longest goes before them.
    oldest = forwards[0]
    ranked.sort(
        key=lambda pair: (pair[1].queue.rank[0], pair[0] and pair[1] is not oldest, pair[1].number)
    )
    return ranked
