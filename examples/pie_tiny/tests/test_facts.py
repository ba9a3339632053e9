"""The world is consistent, what is said of it is true, and kept-back phrasings stay back."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.pie_tiny.corpus.facts import GREETINGS, facts
from examples.pie_tiny.corpus.sample import END, Sample, Split
from examples.pie_tiny.corpus.tellings import TELLINGS
from examples.pie_tiny.corpus.words import PEOPLE, PLACES
from examples.pie_tiny.corpus.world import SUBJECTS, fact, subjects

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
    assert fact("country", "Velland", "capital") == "Orrin"
    assert [len(subjects(kind)) for kind in ("country", "person", "animal", "day", "month")] == [
        24,
        24,
        12,
        7,
        12,
    ]
    for subject in SUBJECTS:
        assert set(subject.facts) == set(TELLINGS[subject.kind]), subject.name
    with pytest.raises(KeyError):
        fact("country", "Atlantis", "capital")


@pytest.mark.parametrize("wanted", ["capital", "river", "language"])
def test_what_can_be_asked_in_reverse_is_unique(wanted: str) -> None:
    assert len({country.facts[wanted] for country in subjects("country")}) == 24


@pytest.mark.parametrize(("kind", "wanted"), [("country", "neighbour"), ("person", "friend")])
def test_pairs_are_mutual(kind: str, wanted: str) -> None:
    for subject in subjects(kind):
        other = fact(kind, subject.name, wanted)
        assert other != subject.name
        assert fact(kind, other, wanted) == subject.name


def test_days_and_months_go_round() -> None:
    for kind, count in (("day", 7), ("month", 12)):
        first = name = subjects(kind)[0].name
        for _ in range(count):
            assert fact(kind, fact(kind, name, "next"), "previous") == name
            name = fact(kind, name, "next")
        assert name == first
    assert sum(int(month.facts["length"]) for month in subjects("month")) == 365


def test_people_are_born_in_cities_of_the_world() -> None:
    cities = {country.facts["capital"] for country in subjects("country")}
    assert {person.facts["birthplace"] for person in subjects("person")} == cities


def test_names_of_the_world_are_not_those_of_random_texts() -> None:
    named = {subject.name for subject in SUBJECTS} | {
        c.facts["capital"] for c in subjects("country")
    }
    assert named.isdisjoint({*PEOPLE, *PLACES})


@given(SEEDS, SPLITS)
def test_everything_told_is_true(seed: int, split: Split) -> None:
    sample = facts(Random(seed), split)
    assert sample.kind == "facts"
    assert len(sample.text.split()) < 60
    told = reply(sample)
    if sample.answer:
        assert sample.answer["value"] == told
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
        if sample.answer and question(sample) in expected:
            known += 1
            name, value = expected[question(sample)]
            assert name.lower() in reply(sample).lower()
            assert value in reply(sample)
    assert known > 4000


def test_kept_back_questions_are_never_trained() -> None:
    trained = {question(sample) for sample in drawn(Split(), 20_000) if sample.answer}
    canonical = {
        telling.questions[0].replace("{s}", country.name)
        for country in subjects("country")
        for telling in TELLINGS["country"].values()
    }
    assert canonical <= trained
    greetings = {asked for asked, _ in GREETINGS}
    held_out = {
        question(sample) for sample in drawn(Split(held_out=True)) if sample.answer
    } - greetings
    assert len(held_out) > 200
    assert held_out.isdisjoint(trained)
