"""Tasks drawn at random, in the form that the embedded model was trained on.

Functions and made-up words are of the kind that its training kept back (`invented`): nothing can be
known by heart. `examples/pie_tiny/corpus` draws what it was trained on; this draws only what is
measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any
from zlib import crc32

from benchmarks.async_calls.jobs import Job, PlannedCall

WORKLOADS = ("parallel", "multi-step", "interrupts")
ARRIVALS = (0.2, 0.4)  # seconds, of the second and the third task (AsyncLM, section 6.6)
LEAST_SECONDS, MOST_SECONDS, MEAN_SECONDS = 0.03, 0.5, 0.11  # of a call (AsyncLM, section 6)

_VERBS = ("borrow", "deliver", "inspect", "polish", "collect", "compress", "launch", "rotate")
_NOUNS = (
    "camera",
    "pillow",
    "violin",
    "harbour",
    "ladder",
    "battery",
    "curtain",
    "museum",
    "permit",
)
_PARAMETERS = (
    "name",
    "city",
    "day",
    "count",
    "text",
    "place",
    "size",
    "title",
    "amount",
    "kind",
    "code",
)
_WORDS = (
    "Mira",
    "Tobin",
    "Anna",
    "Clara",
    "Oslo",
    "Lima",
    "Bern",
    "lamp",
    "key",
    "coin",
    "rope",
    "red",
)
_ADJECTIVES = (
    "old",
    "young",
    "small",
    "quiet",
    "clever",
    "brave",
    "kind",
    "happy",
    "gentle",
    "strong",
)
_ANIMALS = ("fox", "dog", "owl", "rabbit", "horse", "goat", "wolf", "frog", "deer", "turtle")
_ONSETS = (*"bdfghklmnprstvz", "br", "dr", "gr", "pl", "st", "tr")
_VOWELS = ("a", "e", "i", "o", "u", "ai", "ea", "ee", "oa", "oo")
_CODAS = ("", "", "", "n", "r", "l", "s", "m")
_RESULT = object()


def draw(workload: str, seed: int, number: int, longest: int = 5) -> Job:
    """The job of a number; the same seed and number give the same one.

    Args:
        workload: `parallel`, 2 to 5 independent calls; `multi-step`, three chains of dependent
            ones; `interrupts`, the same with each chain a task of its own, which come in turn.
        seed: of all jobs.
        number: of the job.
        longest: calls of a chain.
    """
    random = Random(f"bench-async:{workload}:{seed}:{number}")
    if workload == "parallel":
        lengths = [1] * random.randint(2, max(2, longest))
    else:
        lengths = [random.randint(1, longest) for _ in range(3)]
    tools = _tools(random, sum(lengths) + random.randrange(3))
    order = random.sample(tools, sum(lengths))
    calls: list[PlannedCall] = []
    sentences = []
    for chain, length in enumerate(lengths):
        own, order = order[:length], order[length:]
        task = chain if workload == "interrupts" else 0
        sentences.append(_chain(random, chain, own, task, calls))
    if workload == "interrupts":
        return Job(tuple(sentences), tuple(calls), tuple(tools), ARRIVALS)
    return Job(("\n".join(f"- {line}" for line in sentences),), tuple(calls), tuple(tools))


def _chain(
    random: Random, chain: int, tools: Sequence[dict[str, Any]], task: int, calls: list[PlannedCall]
) -> str:
    """Adds a chain's calls; what the user says to have them made."""
    said = []
    before: PlannedCall | None = None
    result: object = None
    for step, tool in enumerate(tools):
        parameters = tool["parameters"]["required"]
        given: dict[str, Any] = {name: _value(random) for name in parameters}
        words = dict(given)
        if before is not None and parameters and random.random() < 0.8:
            name = random.choice(parameters)
            given[name], words[name] = result, _RESULT
        call = PlannedCall(
            f"{'abcde'[chain]}{step + 1}",
            tool["name"],
            given,
            tool["seconds"],
            () if before is None else (before.identifier,),
            task,
        )
        calls.append(call)
        said.append(_described(random, tool["name"], words))
        before, result = call, tool["run"]["result"]
    return ", then ".join(said) + "."


def _tools(random: Random, count: int) -> list[dict[str, Any]]:
    """Functions of different names, each with one result of its own."""
    names: dict[str, None] = {}
    while len(names) < count:
        names[_name(random)] = None
    return [_tool(random, name) for name in names]


def _tool(random: Random, name: str) -> dict[str, Any]:
    parameters = random.sample(_PARAMETERS, random.choice((0, 1, 1, 1, 2, 2, 3)))
    seconds = draw_seconds(random)
    return {
        "name": name,
        "parameters": {"properties": {key: {} for key in parameters}, "required": parameters},
        "seconds": seconds,
        "run": {"kind": "simulated", "seconds": seconds, "result": _value(random)},
    }


def draw_seconds(random: Random) -> float:
    """How long a function takes, in hundredths: from 30 to 500 ms, 110 ms in the mean."""
    while True:  # the mean is a little larger, for what is beyond the limit
        seconds = LEAST_SECONDS + random.expovariate(1 / (MEAN_SECONDS - LEAST_SECONDS + 0.0014))
        if seconds <= MOST_SECONDS:
            return round(seconds, 2)


def _name(random: Random) -> str:
    kind = random.random()
    if kind < 0.3:
        return f"{invented(random)}_{invented(random)}"
    if kind < 0.6:
        return f"{random.choice(_VERBS)}_{invented(random)}"
    return f"{random.choice(_VERBS)}_{random.choice(_NOUNS)}"


def _value(random: Random) -> str | int:
    kind = random.random()
    if kind < 0.4:
        return random.choice(_WORDS)
    if kind < 0.55:
        return invented(random)
    if kind < 0.7:
        return f"{random.choice(_ADJECTIVES)} {random.choice(_ANIMALS)}"
    return int(10 ** (random.random() * 3))


def invented(random: Random) -> str:
    """A made-up word of two syllables; of all of them, the tenth that training kept back."""
    while True:
        word = "".join(
            random.choice(_ONSETS) + random.choice(_VOWELS) + random.choice(_CODAS)
            for _ in range(2)
        )
        if crc32(word.encode()) % 10 == 0:
            return word


def _described(random: Random, name: str, arguments: dict[str, Any]) -> str:
    kind = random.random()
    said = name if kind < 0.4 else name.replace("_", " the " if kind < 0.7 else " ")
    if not arguments:
        return said
    given = [f"{key} {_word(value)}" for key, value in arguments.items()]
    listed = given[0] if len(given) == 1 else ", ".join(given[:-1]) + " and " + given[-1]
    return f"{said} with {listed}"


def _word(value: object) -> str:
    if value is _RESULT:
        return "the result"
    return f'"{value}"' if isinstance(value, str) and " " in value else str(value)
