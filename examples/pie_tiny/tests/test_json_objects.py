"""JSON samples: the object is what another reader makes of the description."""

from __future__ import annotations

import json
import re
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from examples.pie_tiny.corpus.json_objects import json_objects
from examples.pie_tiny.corpus.sample import Sample, Split

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
    value = json.loads(sample.pieces[-1].text.removesuffix("<|end|>"))
    assert isinstance(value, dict)
    return value


@given(seeds, splits)
def test_the_reply_is_the_object_described(seed: int, split: Split) -> None:
    sample = json_objects(Random(seed), split)
    reply = sample.pieces[-1].text.removesuffix("<|end|>")
    assert sample.kind == "json"
    assert reply == json.dumps(value_of(sample))
    assert list(value_of(sample).items()) == list(expected(sample).items())
    assert len(sample.text) <= 700
