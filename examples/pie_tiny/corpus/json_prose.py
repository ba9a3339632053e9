"""Descriptions in prose: the types of fields, then sentences in which their values stand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from examples.pie_tiny.corpus.json_values import (
    animal,
    colour,
    made_up,
    person,
    place,
    several,
    thing,
)
from examples.pie_tiny.corpus.sample import Split, prose


@dataclass(frozen=True)
class Fact:
    """A fact that a sentence may say of its subject, and the field that holds it.

    Attributes:
        field: the field's name.
        type: as the prompt names it.
        says: the predicate, with `{}` for the value; of a boolean, what is said when it is true.
        denies: what is said instead of a null or of a false boolean, "" where neither can be.
        maker: draws the value, None of a boolean.
    """

    field: str
    type: str
    says: str
    denies: str = ""
    maker: Callable[[Random, Split], object] | None = None


def _up_to(limit: int) -> Callable[[Random, Split], int]:
    return lambda random, split: random.randint(2, limit)


PERSON = (
    Fact("age", "integer", "is {} years old", maker=_up_to(99)),
    Fact("height", "integer", "is {} centimetres tall", maker=_up_to(210)),
    Fact("score", "integer", "has {} points", maker=_up_to(9999)),
    Fact("city", "string", "lives in {}", maker=place),
    Fact("boss", "string or null", "works for {}", "works for nobody", person),
    Fact("pet", "string or null", "has a pet {}", "has no pet", animal),
    Fact("active", "boolean", "is active", "is not active"),
    Fact("married", "boolean", "is married", "is not married"),
    Fact("colours", "list", "likes {}", maker=several(colour)),
    Fact("friends", "list", "knows {}", maker=several(person)),
)
THING = (
    Fact("price", "integer", "costs {} coins", maker=_up_to(9999)),
    Fact("weight", "integer", "weighs {} grams", maker=_up_to(999)),
    Fact("age", "integer", "is {} years old", maker=_up_to(99)),
    Fact("colour", "string", "is painted {}", maker=colour),
    Fact("maker", "string", "was made by {}", maker=person),
    Fact("owner", "string or null", "belongs to {}", "belongs to nobody", person),
    Fact("broken", "boolean", "is broken", "is not broken"),
    Fact("sold", "boolean", "is sold", "is not sold"),
    Fact("cities", "list", "is known in {}", maker=several(place)),
)
PLACE = (
    Fact("people", "integer", "has {} people", maker=_up_to(9999)),
    Fact("founded", "integer", "was founded in {}", maker=_up_to(2020)),
    Fact("rivers", "integer", "has {} rivers", maker=_up_to(9)),
    Fact("ruler", "string or null", "is ruled by {}", "is ruled by nobody", person),
    Fact("market", "boolean", "has a market", "has no market"),
    Fact("safe", "boolean", "is safe", "is not safe"),
    Fact("guests", "list", "is visited by {}", maker=several(person)),
    Fact("goods", "list", "sells every {}", maker=several(thing)),
)
# Fields that have a predicate of their own: no made-up field may chance upon their names.
TAKEN = frozenset(("name", "item", *(fact.field for fact in (*PERSON, *THING, *PLACE))))


def typed_prose(random: Random, split: Split) -> tuple[str, dict[str, object]]:
    """`Fields: name (string), age (integer), city (string). Mira is 31 years old and lives in
    Dorn.`

    The fields stand in an order of their own, not always that of the sentences.
    """
    key, name, subject, known = _subject(random, split)
    facts = random.sample(known, random.randint(1, 4))
    types = {key: "string"} | {fact.field: fact.type for fact in facts}
    value: dict[str, object] = {key: name}
    predicates: list[tuple[str, bool]] = []
    for fact in facts:
        value[fact.field], predicate = _stated(random, split, fact)
        predicates.append((predicate, fact.type == "list"))
    sentences = _sentences(random, subject, predicates)
    if random.random() < 0.25:
        held = random.randint(2, 999)
        while (noun := made_up(random, split)) in TAKEN:
            pass
        types[noun], value[noun] = "integer", held
        sentences.append(f"The {noun} of {_within(subject)} is {held}.")
    order = list(value)
    if random.random() < 0.5:
        random.shuffle(order)
    fields = ", ".join(f"{field} ({types[field]})" for field in order)
    return f"Fields: {fields}. {' '.join(sentences)}", {field: value[field] for field in order}


def _subject(random: Random, split: Split) -> tuple[str, str, str, tuple[Fact, ...]]:
    """The field that holds the name, the name, how a sentence begins with it, and what may be
    said.
    """
    choice = random.randrange(3)
    if choice == 0:
        item = thing(random, split)
        return "item", item, f"The {item}", THING
    name, known = (person(random, split), PERSON) if choice == 1 else (place(random, split), PLACE)
    return "name", name, name, known


def _stated(random: Random, split: Split, fact: Fact) -> tuple[object, str]:
    """A value for the fact, and the predicate that states it."""
    if fact.maker is None:
        true = random.random() < 0.5
        return true, fact.says if true else fact.denies
    if fact.denies and random.random() < 0.25:
        return None, fact.denies
    value = fact.maker(random, split)
    told = prose(map(str, value)) if isinstance(value, list) else str(value)
    return value, fact.says.format(told)


def _sentences(random: Random, subject: str, predicates: list[tuple[str, bool]]) -> list[str]:
    """One predicate or two a sentence; after a list the sentence ends, lest its `and` run on."""
    sentences, waiting = [], ""
    for predicate, is_list in predicates:
        if waiting:
            sentences.append(f"{subject} {waiting} and {predicate}.")
            waiting = ""
        elif is_list or random.random() < 0.4:
            sentences.append(f"{subject} {predicate}.")
        else:
            waiting = predicate
    if waiting:
        sentences.append(f"{subject} {waiting}.")
    return sentences


def _within(subject: str) -> str:
    return f"the {subject[4:]}" if subject.startswith("The ") else subject
