"""JSON samples: the object is what another reader makes of the description."""

from __future__ import annotations

import json
import re
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from examples.pie_tiny.corpus.json_objects import NOUNS, json_objects
from examples.pie_tiny.corpus.json_values import made_up
from examples.pie_tiny.corpus.sample import Sample, Split
from examples.pie_tiny.corpus.words import PEOPLE, PLACES

seeds = st.integers(0, 2**32)
splits = st.builds(Split, st.booleans())

# How prose states a field, and what denies it; a field without a group is a boolean.
STATED = {
    "age": r" is (\d+) years old",
    "height": r" is (\d+) centimetres tall",
    "score": r" has (\d+) points",
    "price": r" costs (\d+) coins",
    "weight": r" weighs (\d+) grams",
    "people": r" has (\d+) people",
    "founded": r" was founded in (\d+)",
    "rivers": r" has (\d+) rivers",
    "city": r" lives in (\w+)",
    "boss": r" works for (\w+)",
    "pet": r" has a pet (\w+)",
    "colour": r" is painted (\w+)",
    "maker": r" was made by (\w+)",
    "owner": r" belongs to (\w+)",
    "ruler": r" is ruled by (\w+)",
    "colours": r" likes ([\w, ]+)",
    "friends": r" knows ([\w, ]+)",
    "cities": r" is known in ([\w, ]+)",
    "guests": r" is visited by ([\w, ]+)",
    "goods": r" sells every ([\w, ]+)",
    "active": r" is active",
    "married": r" is married",
    "broken": r" is broken",
    "sold": r" is sold",
    "market": r" has a market",
    "safe": r" is safe",
}


def description(sample: Sample) -> str:
    """The prompt's last message without the request before it."""
    message = sample.prompt.split("<|user|>\n")[1].split("<|end|>")[0]
    return message.removeprefix("Write JSON. ")


def read(told: str) -> object:
    """A value of a list of fields."""
    if told.startswith("("):
        return read_fields(told[1:-1])
    if " and " in told:
        return [read(each) for each in told.split(" and ")]
    if re.fullmatch(r"-?\d+", told):
        return int(told)
    return {"none": None, "yes": True, "no": False}.get(told, told)


def read_fields(listing: str) -> dict[str, object]:
    fields = re.findall(r"(\w+) (\([^)]*\)|[^,(]+)(?:, |$)", listing)
    return {field: read(told) for field, told in fields}


def read_prose(fields: str, sentences: str) -> dict[str, object]:
    """What prose says of each field that has a type."""
    return {
        field: read_fact(field, kind, sentences)
        for field, kind in re.findall(r"(\w+) \(([\w ]+)\)", fields)
    }


def read_fact(field: str, kind: str, sentences: str) -> object:
    if field == "name":
        return sentences.split()[0]
    if field == "item":
        found = re.match(r"The ((?:\w+ )?\w+?) (?:is|was|has|costs|weighs|belongs) ", sentences)
        assert found
        return found[1]
    if kind == "boolean":
        return re.search(STATED[field], sentences) is not None
    found = re.search(STATED.get(field, rf"The {field} of .+ is (\d+)\."), sentences)
    if kind == "string or null" and (found is None or found[1] == "nobody"):
        return None
    assert found
    if kind == "integer":
        return int(found[1])
    return re.split(", | and ", found[1]) if kind == "list" else found[1]


def expected(sample: Sample) -> dict[str, object]:
    told = description(sample)
    if told.startswith("Fields: "):
        fields, _, sentences = told.removeprefix("Fields: ").partition(". ")
        return read_prose(fields, sentences)
    listing = re.fullmatch(r"(?:Make )?[Aa] \w+(?:: | with )(.*)\.", told)
    assert listing
    return read_fields(listing[1])


def value_of(sample: Sample) -> dict[str, object]:
    value = sample.answer["value"]
    assert isinstance(value, dict)
    return value


def strings_in(value: object) -> list[str]:
    if isinstance(value, dict):
        return [text for each in value.values() for text in strings_in(each)]
    if isinstance(value, list):
        return [text for each in value for text in strings_in(each)]
    return [value] if isinstance(value, str) else []


@given(seeds, splits)
def test_the_reply_is_the_object_described(seed: int, split: Split) -> None:
    sample = json_objects(Random(seed), split)
    reply = sample.pieces[-1].text.removesuffix("<|end|>")
    assert sample.kind == "json"
    assert reply == json.dumps(value_of(sample))
    assert list(value_of(sample).items()) == list(expected(sample).items())
    assert len(sample.text) <= 700


@given(seeds, splits)
def test_one_level_of_nesting_and_at_most_six_fields(seed: int, split: Split) -> None:
    value = value_of(json_objects(Random(seed), split))
    assert 1 <= len(value) <= 6
    for inner in value.values():
        if isinstance(inner, dict):
            assert 1 <= len(inner) <= 3
            assert not any(isinstance(each, dict) for each in inner.values())


@given(seeds)
def test_held_out_samples_name_no_known_person_or_place(seed: int) -> None:
    named = strings_in(value_of(json_objects(Random(seed), Split(held_out=True))))
    assert not set(named) & {*PEOPLE, *PLACES}


def test_every_type_and_form_comes_up() -> None:
    random = Random(11)
    samples = [json_objects(random, Split()) for _ in range(2000)]
    values = [value for sample in samples for value in value_of(sample).values()]
    assert {type(value) for value in values} == {str, int, bool, type(None), list, dict}
    assert {len(value_of(sample)) for sample in samples} == {1, 2, 3, 4, 5, 6}
    fields = {field for sample in samples for field in value_of(sample)}
    assert fields >= {*NOUNS, *STATED}
    assert len(fields) > 500
    in_prose = sum("Fields: " in sample.prompt for sample in samples)
    assert 0.3 < in_prose / len(samples) < 0.4


def test_no_string_reads_as_another_type() -> None:
    random = Random(2)
    drawn = {made_up(random, Split()) for _ in range(20_000)}
    assert not drawn & {"none", "yes", "no", "and"}
