"""Ordering exercises: which of several functions takes longest, the decision that asynchronous
calls turn on.

Short texts in which every learnt token is such a decision teach it sooner than calls, where it is
one token in thirty. The decision has two steps, and each has exercises of its own: to find a task's
function and its time among the specifications, and to tell which of several times is the longest. A
model of this size that was given the whole only learnt nothing of it in 25 million tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from examples.pie_tiny.corpus.functions import ESTIMATE_TOKENS, Function, draw_functions
from examples.pie_tiny.corpus.sample import BEGIN, END, Piece, Sample, Split, chat, turn
from examples.pie_tiny.corpus.tasks import chain_letter, describe_function

KIND = "ordering"
ORDER = "Order: longest first."
TIMES = "Times."


def ordering(random: Random, split: Split) -> Sample:
    """One of the exercises: times in view, the tasks' times, or both steps at once."""
    form = random.random()
    if form < 0.15:
        return _sort_times(random)
    count = random.randint(2, 5)
    functions = draw_functions(random, split, count + random.randrange(3))
    tasks = random.sample(functions, count)
    specifications = "\n".join(function.specification for function in functions)
    names = [describe_function(random, function.name) for function in tasks]
    reply = _longest_first([f.estimate for f in tasks])
    if form < 0.30:
        return _read_times(specifications, names, tasks, reply)
    if form < 0.45:
        return _exercise(f"{TIMES}\n{specifications}", names, _times(tasks))
    return _exercise(f"{ORDER}\n{specifications}", names, reply)


def _sort_times(random: Random) -> Sample:
    """Letters with their times in view; the letters, longest first."""
    estimates = random.sample(range(1, 100), random.randint(2, 6))
    lines = [
        chain_letter(n) + ESTIMATE_TOKENS[estimate - 1] for n, estimate in enumerate(estimates)
    ]
    return _exercise(ORDER, lines, _longest_first(estimates))


def _read_times(
    specifications: str, names: Sequence[str], tasks: Sequence[Function], reply: str
) -> Sample:
    """Each task's time stands behind it; that, too, is learnt, so that it is found where the task
    is read.
    """
    prompt = BEGIN + turn("system", f"{ORDER}\n{specifications}") + "<|user|>\n"
    pieces = [Piece(f"{prompt}- {names[0]}", False)]
    for name, task in zip(names[1:], tasks, strict=False):
        pieces += [Piece(task.written_estimate, True), Piece(f".\n- {name}", False)]
    pieces += [Piece(tasks[-1].written_estimate, True), Piece(f".{END}\n<|assistant|>\n", False)]
    return Sample(KIND, (*pieces, Piece(reply + END, True)))


def _longest_first(estimates: Sequence[int]) -> str:
    order = sorted(range(len(estimates)), key=lambda number: -estimates[number])
    return " ".join(f"{chain_letter(number)}1" for number in order)


def _times(tasks: Sequence[Function]) -> str:
    return " ".join(chain_letter(n) + f.written_estimate for n, f in enumerate(tasks))


def _exercise(system: str, tasks: Sequence[str], reply: str) -> Sample:
    return chat(KIND, system, "\n".join(f"- {task}." for task in tasks), reply)
