"""A trace can be run: the actions follow from the question and what was observed, and so does the
answer.
"""

from __future__ import annotations

import re
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from examples.pie_tiny.corpus.react import UNKNOWN, react
from examples.pie_tiny.corpus.sample import END, Sample, Split

SEEDS = st.integers(0, 2**32)
SPLITS = st.builds(Split, st.booleans())

PATTERNS = (
    (r"Where does (.+) live\?", "city"),
    (r"How old is (.+)\?", "age"),
    (r"What pet does (.+) have\?", "pet"),
    (r"What is the job of (.+)\?", "job"),
    (r"What colour does (.+) like\?", "colour"),
)


def question(sample: Sample) -> str:
    return sample.prompt.split("<|user|>\n")[1].split(END)[0]


def observations(sample: Sample) -> list[str]:
    given_ = [piece.text for piece in sample.pieces[1:] if not piece.learned]
    assert all(text.startswith("Observation: ") and text.endswith("\n") for text in given_)
    return [text.removeprefix("Observation: ").rstrip("\n") for text in given_]


def plan(asked: str, observed: list[str]) -> list[str]:
    """The actions that answer a question, by a reading of the question of its own."""
    together = re.fullmatch(r"How old are (\w+) and (\w+) together\?", asked)
    if together:
        added = f"add({observed[0]}, {observed[1]})" if len(observed) > 1 else ""
        return [f'lookup("{together[1]}", "age")', f'lookup("{together[2]}", "age")', added]
    phrase, last = next(
        ((m[1], name) for pattern, name in PATTERNS if (m := re.fullmatch(pattern, asked))),
        ("", ""),
    )
    if not phrase:
        relation = re.fullmatch(r"Who is (the .+)\?", asked)
        if relation is None:
            return [f'search("{asked.removeprefix("Who ").rstrip("?")}")']
        phrase = relation[1]
    properties = [last] if last else []
    while nested := re.fullmatch(r"the (\w+) of (.+)", phrase):
        properties.insert(0, nested[1])
        phrase = nested[2]
    found = iter(observed)
    actions = []
    if phrase.startswith("the person who "):
        actions.append(f'search("{phrase.removeprefix("the person who ")}")')
        phrase = next(found)
    for name in properties:
        actions.append(f'lookup("{phrase}", "{name}")')
        phrase = next(found, "")
    return actions


@given(SEEDS, SPLITS)
def test_the_trace_follows_from_the_question(seed: int, split: Split) -> None:
    sample = react(Random(seed), split)
    observed = observations(sample)
    learned = "".join(piece.text for piece in sample.pieces if piece.learned)
    actions = re.findall(r"^Action: (.+)$", learned, re.M)
    assert 1 <= len(actions) == len(observed) <= 3
    planned = plan(question(sample), observed)
    value = learned.removesuffix(END).rpartition("\nAnswer: ")[2]
    if value == UNKNOWN:
        assert observed[-1] == "nothing found"
        assert planned[: len(actions)] == actions
    else:
        assert planned == actions
        assert observed[-1] == value
    if actions[-1].startswith("add(") and value != UNKNOWN:
        assert int(observed[2]) == int(observed[0]) + int(observed[1])
