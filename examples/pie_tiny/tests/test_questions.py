"""A question has one answer, which is a statement of the text or that the text does not say."""

from __future__ import annotations

import re
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from examples.pie_tiny.corpus.questions import UNKNOWN, questions
from examples.pie_tiny.corpus.sample import END, Sample, Split

SEEDS = st.integers(0, 2**32)
SPLITS = st.builds(Split, st.booleans())

# A reader of its own: the statement, and what a question about it looks like.
STATEMENTS = (
    (r"(\w+) lives in (\w+)\.", r"Where does (\w+) live\?", r"Who lives in (\w+)\?"),
    (r"(\w+) is (\d+) years old\.", r"How old is (\w+)\?", r"Who is (\d+) years old\?"),
    (r"(\w+) has a pet (\w+)\.", r"What pet does (\w+) have\?", r"Who has a pet (\w+)\?"),
    (
        r"(\w+) likes the colour (\w+)\.",
        r"What colour does (\w+) like\?",
        r"Who likes the colour (\w+)\?",
    ),
    (r"(\w+) owns the (\w+ \w+)\.", r"What does (\w+) own\?", r"Who owns the (\w+ \w+)\?"),
    (r"(\w+) is a friend of (\w+)\.", r"Whose friend is (\w+)\?", r"Who is a friend of (\w+)\?"),
)


def read(sample: Sample) -> tuple[list[str], str]:
    """The statements and the question of a prompt."""
    user = sample.prompt.split("<|user|>\n")[1].split(END)[0]
    lines = [line for line in user.split("\n") if line]
    text, question = lines[0].removeprefix("Text: "), lines[1].removeprefix("Question: ")
    return [part + "." for part in text.removesuffix(".").split(". ")], question


def answers(statements: list[str], question: str) -> list[str]:
    """All statements that answer the question."""
    found = []
    for told, by_person, by_value in STATEMENTS:
        for pattern, group in ((by_person, 1), (by_value, 2)):
            asked = re.fullmatch(pattern, question)
            if asked is None:
                continue
            for statement in statements:
                matched = re.fullmatch(told, statement)
                if matched and matched[group] == asked[1]:
                    found.append(statement)
    return found


@given(SEEDS, SPLITS)
def test_the_answer_is_the_only_one(seed: int, split: Split) -> None:
    sample = questions(Random(seed), split)
    statements, question = read(sample)
    assert 2 <= len(statements) <= 6
    assert all(any(re.fullmatch(told, s) for told, _, _ in STATEMENTS) for s in statements)
    found = answers(statements, question)
    assert len(found) <= 1
    expected = found[0] if found else UNKNOWN
    assert sample.pieces[-1].text == expected + END
    assert sample.pieces[-1].learned
    assert len(sample.text.split()) < 80
