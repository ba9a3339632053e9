"""Ordering exercises: which of several functions takes longest, the decision that asynchronous calls turn on.

Short texts in which every learnt token is such a decision teach it sooner than calls, where it is one
token in thirty.
"""

from __future__ import annotations

from random import Random

from examples.pie_tiny.corpus.functions import draw_functions
from examples.pie_tiny.corpus.sample import Sample, Split, chat
from examples.pie_tiny.corpus.tasks import chain_letter, describe_function

KIND = "ordering"


def ordering(random: Random, split: Split) -> Sample:
    """Functions with their times, tasks that name some of them; the tasks' letters, longest first."""
    count = random.randint(2, 5)
    functions = draw_functions(random, split, count + random.randrange(3))
    tasks = random.sample(functions, count)
    lines = "\n".join(f"- {describe_function(random, function.name)}." for function in tasks)
    order = sorted(range(count), key=lambda number: -tasks[number].estimate)
    system = "Order: longest first.\n" + "\n".join(f.specification for f in functions)
    reply = " ".join(f"{chain_letter(number)}1" for number in order)
    return chat(KIND, system, lines, reply, value=reply)
