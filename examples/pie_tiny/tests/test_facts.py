"""The world is consistent, what is said of it is true, and kept-back phrasings stay back."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from examples.pie_tiny.corpus.facts import GREETINGS, facts
from examples.pie_tiny.corpus.sample import BEGIN, END, Sample, Split
from examples.pie_tiny.corpus.tellings import TELLINGS
from examples.pie_tiny.corpus.world import SUBJECTS, subjects

SEEDS = st.integers(0, 2**32)
SPLITS = st.builds(Split, st.booleans())


def article(noun: str) -> str:
    return ("an " if noun[0] in "aeiou" else "a ") + noun


def true_sentences() -> set[str]:
    """Every sentence that facts may tell of the world, written out from the tables without
    facts.py.
    """
    told = set()
    for subject in SUBJECTS:
        name = article(subject.name) if subject.kind == "animal" else subject.name
        pronoun = subject.pronoun.capitalize()
        possessive = {"It": "Its", "He": "His", "She": "Her"}[pronoun]
        for wanted, value in subject.facts.items():
            telling = TELLINGS[subject.kind][wanted]
            for phrasing in (*telling.named, telling.following):
                sentence = phrasing.replace("{a} {v}", article(value)).replace("{v}", value)
                sentence = (
                    sentence.replace("{s}", name).replace("{P}", pronoun).replace("{O}", possessive)
                )
                told.add(sentence[0].upper() + sentence[1:])
        if subject.kind == "country":
            told.add(f"It lies on the river {subject.facts['river']}.")
    return told


TRUE = true_sentences()


def sentences(text: str) -> list[str]:
    return [sentence + "." for sentence in text.removesuffix(".").split(". ")]


def reply(sample: Sample) -> str:
    return sample.pieces[-1].text.removesuffix(END)


def question(sample: Sample) -> str:
    return sample.prompt.split("<|user|>\n")[1].split(END)[0]


def drawn(split: Split, count: int = 6000) -> list[Sample]:
    return [facts(Random(seed), split) for seed in range(count)]


def test_the_world_has_what_it_promises() -> None:
    counts = [len(subjects(kind)) for kind in ("country", "person", "animal", "day", "month")]
    assert counts == [24, 24, 12, 7, 12]
    for subject in SUBJECTS:
        assert set(subject.facts) == set(TELLINGS[subject.kind]), subject.name


@given(SEEDS, SPLITS)
def test_everything_told_is_true(seed: int, split: Split) -> None:
    sample = facts(Random(seed), split)
    assert sample.kind == "facts"
    assert len(sample.text.split()) < 60
    told = reply(sample)
    if told in {answer for _, answer in GREETINGS} or told.startswith("I do not know "):
        return
    assert all(sentence in TRUE for sentence in sentences(told)), told


def test_a_reply_is_about_the_subject_and_property_asked() -> None:
    expected = {}
    for subject in SUBJECTS:
        name = article(subject.name) if subject.kind == "animal" else subject.name
        for wanted, value in subject.facts.items():
            telling = TELLINGS[subject.kind][wanted]
            for asked in telling.questions:
                expected[asked.replace("{s}", name)] = (name, value)
            if telling.reverse:
                expected[telling.reverse.replace("{v}", value)] = (subject.name, value)
    known = 0
    for sample in drawn(Split()) + drawn(Split(held_out=True)):
        if len(sample.pieces[0].text) > len(BEGIN) and question(sample) in expected:
            known += 1
            name, value = expected[question(sample)]
            assert name.lower() in reply(sample).lower()
            assert value in reply(sample)
    assert known > 4000
