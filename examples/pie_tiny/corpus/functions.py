"""Function specifications for the tool-calling generators: names, parameters and estimated times.

Names are drawn so widely (verb and noun, or made-up words) that a model cannot know them: it has to
copy from the specification, and from the request the arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from examples.pie_tiny.corpus.sample import Split
from examples.pie_tiny.corpus.words import (
    ADJECTIVES,
    ANIMALS,
    COLOURS,
    HELD_OUT_NOUNS,
    HELD_OUT_VERBS,
    NOUNS,
    PARAMETERS,
    PEOPLE,
    PLACES,
    THINGS,
    VERBS,
    invented,
    strange,
)

Value = str | int

ESTIMATE_TOKENS = tuple(f"~{hundredths:02d}" for hundredths in range(1, 100))
"""How prompts write estimated times: hundredths of a second, each a token of its own. What is one
token next to the name is found and compared in two steps; digit by digit it takes many.
"""


@dataclass(frozen=True)
class Function:
    """A callable function as the prompt shows it.

    Attributes:
        name: an identifier.
        parameters: the names of its parameters, all of them required.
        estimate: how long a call is expected to take, in hundredths of a second (1 or more).
    """

    name: str
    parameters: tuple[str, ...]
    estimate: int

    @property
    def written_estimate(self) -> str:
        """The estimate in the prompt, a single token: `~35`; `~99` is a second or more."""
        return ESTIMATE_TOKENS[min(self.estimate, len(ESTIMATE_TOKENS)) - 1]

    @property
    def specification(self) -> str:
        """The line of the prompt: `fetch_weather~35(city, day)`.

        The estimate comes right behind the name: a small model finds what stands next to a name it
        looks for much sooner than what stands behind the parameters.
        """
        return f"{self.name}{self.written_estimate}({', '.join(self.parameters)})"


def draw_functions(random: Random, split: Split, count: int) -> list[Function]:
    """Functions with different names and, as far as there are enough, different estimates."""
    names: dict[str, None] = {}
    while len(names) < count:
        names[draw_name(random, split)] = None
    estimates = random.sample(range(1, 100), count)
    return [
        Function(name, _parameters(random, split), estimate)
        for name, estimate in zip(names, estimates, strict=True)
    ]


def draw_value(random: Random, split: Split) -> Value:
    """An argument or a result: a word, a made-up name, two words or a number."""
    draw = random.random()
    if draw < 0.35:
        return random.choice(random.choice(_WORDS))
    if draw < 0.55:
        return invented(random, split)
    if draw < 0.7:
        return f"{random.choice(ADJECTIVES)} {random.choice(ANIMALS)}"
    return int(10 ** (random.random() * 3))


def write_call(name: str, arguments: Sequence[tuple[str, Value]]) -> str:
    """A call in Python's syntax: `fetch_weather(city="Paris", day=3)`."""
    return f"{name}({', '.join(f'{key}={write_value(value)}' for key, value in arguments)})"


def write_value(value: Value) -> str:
    """A value as Python and JSON both write it."""
    return f'"{value}"' if isinstance(value, str) else str(value)


_WORDS: tuple[Sequence[str], ...] = (PEOPLE, PLACES, THINGS, COLOURS)


def draw_name(random: Random, split: Split) -> str:
    """A function name: verb and noun, or with made-up words."""
    draw = random.random()
    if draw < 0.25:
        return f"{invented(random, split)}_{invented(random, split)}"
    if draw < 0.4:
        return f"{random.choice(VERBS)}_{invented(random, split)}"
    if split.held_out:
        # One held-out word is enough for a name that training never showed.
        if draw < 0.7:
            return f"{random.choice(HELD_OUT_VERBS)}_{random.choice(NOUNS)}"
        return f"{random.choice(VERBS)}_{random.choice(HELD_OUT_NOUNS)}"
    if draw < 0.55:
        return f"{strange(random)}_{random.choice(NOUNS)}"
    if draw < 0.7:
        return f"{random.choice(VERBS)}_{strange(random)}"
    if draw < 0.8:
        return f"{strange(random)}_{strange(random)}"
    return f"{random.choice(VERBS)}_{random.choice(NOUNS)}"


def _parameters(random: Random, split: Split) -> tuple[str, ...]:
    count = random.choice((0, 1, 1, 1, 2, 2, 3))
    names: dict[str, None] = {}
    while len(names) < count:
        made_up = random.random() < 0.15
        names[invented(random, split) if made_up else random.choice(PARAMETERS)] = None
    return tuple(names)
