"""Copying exercises: the first thing to learn, because nearly everything else is made of it.

A model finds out how to copy (an induction head) far sooner from short texts in which every learnt
token is a copy than from calls, where it is one part of many.
"""

from __future__ import annotations

from random import Random

from examples.pie_tiny.corpus.functions import draw_name, draw_value, write_value
from examples.pie_tiny.corpus.sample import Sample, Split, chat
from examples.pie_tiny.corpus.words import PARAMETERS, strange

KIND = "copying"


def copying(random: Random, split: Split) -> Sample:
    """Words repeated, picked by the word before them, or put into quotes and calls."""
    draw = random.random()
    if draw < 0.35:
        words = [_word(random, split) for _ in range(random.randint(2, 16))]
        return chat(KIND, "", "Repeat: " + " ".join(words), " ".join(words))
    if draw < 0.55:
        names = [draw_name(random, split) for _ in range(random.randint(1, 4))]
        shown = [name if random.random() < 0.4 else name.replace("_", " ") for name in names]
        return chat(KIND, "", "Names: " + ", ".join(shown), "\n".join(names))
    if draw < 0.75:
        values = [draw_value(random, split) for _ in range(random.randint(1, 6))]
        listed = ", ".join(str(value) for value in values)
        return chat(KIND, "", "List: " + listed, f"[{', '.join(map(write_value, values))}]")
    keys = random.sample(PARAMETERS, random.randint(2, 6))
    pairs = {key: draw_value(random, split) for key in keys}
    asked = random.sample(keys, random.randint(1, len(keys)))
    shown_pairs = ", ".join(f"{key} {value}" for key, value in pairs.items())
    reply = "\n".join(f"{key}={write_value(pairs[key])}" for key in asked)
    return chat(KIND, "", f"Given {shown_pairs}. Pick {', '.join(asked)}.", reply)


def _word(random: Random, split: Split) -> str:
    if random.random() < 0.4:
        return strange(random)
    value = draw_value(random, split)
    return value if isinstance(value, str) else str(value)
