"""JSON objects from a description: fields in a list, or their types and then prose that holds the
values.

In a list the value alone shows its type: digits are an integer, `yes` and `no` booleans, `none` is
null, several joined by `and` a list, parentheses an object; anything else is a string, to be
copied.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from random import Random

from examples.pie_tiny.corpus.json_prose import typed_prose
from examples.pie_tiny.corpus.json_values import (
    animal,
    colour,
    flag,
    made_up,
    mood,
    number,
    person,
    place,
    several,
    thing,
)
from examples.pie_tiny.corpus.sample import Sample, Split, chat

SYSTEMS = ("Answer with JSON only.", "You write JSON.")
OPENINGS = ("A {}: ", "A {} with ", "Make a {}: ")
SUBJECTS = ("person", "place", "dog", "house", "ship", "guest", "thing", "shop", "letter", "game")
GROUPS = ("address", "contact", "details", "family", "garden", "trip", "parcel")

Maker = Callable[[Random, Split], object]


def _nouns(names: str, maker: Maker) -> dict[str, Maker]:
    return dict.fromkeys(names.split(), maker)


FIELDS: Mapping[str, Maker] = {
    **_nouns("name owner friend teacher maker author sender neighbour", person),
    **_nouns("city home origin target harbour station", place),
    **_nouns("item gift prize tool title label", thing),
    **_nouns("pet animal", animal),
    **_nouns("colour paint", colour),
    **_nouns("mood kind", mood),
    **_nouns("age count price size weight height length speed score level", number),
    **_nouns("year floor room seats pages depth width rank", number),
    **_nouns("active open ready new paid lost sold public urgent hidden", flag),
    **_nouns("friends guests members children", several(person)),
    **_nouns("cities stops", several(place)),
    **_nouns("items tools gifts", several(thing)),
    **_nouns("pets", several(animal)),
    **_nouns("colours", several(colour)),
    **_nouns("scores sizes rooms", several(number)),
}
NOUNS = tuple(FIELDS)
# What a field with a made-up name holds.
MAKERS: tuple[Maker, ...] = (
    person,
    place,
    thing,
    number,
    number,
    flag,
    several(thing),
    several(number),
)


def json_objects(random: Random, split: Split) -> Sample:
    """A description and the JSON object it describes, as `json.dumps` writes it.

    Made-up names are those of the split; held-out samples name no person and no place of
    training's.
    """
    user, value = (typed_prose if random.random() < 0.35 else _listed)(random, split)
    if random.random() < 0.3:
        system = random.choice(SYSTEMS)
    else:
        system, user = "", f"Write JSON. {user}"
    return chat("json", system, user, json.dumps(value))


def _listed(random: Random, split: Split) -> tuple[str, dict[str, object]]:
    """`A person: name Mira, age 31, trip (city Dorn, paid yes), colours red and blue.`"""
    items = list(_fields(random, split, random.randint(1, 6)).items())
    if random.random() < 0.25:
        inner: object = _fields(random, split, random.randint(1, 3))
        items[random.randrange(len(items))] = random.choice(GROUPS), inner
    value = dict(items)
    opening = random.choice(OPENINGS).format(random.choice(SUBJECTS))
    return f"{opening}{_listing(value)}.", value


def _fields(random: Random, split: Split, count: int) -> dict[str, object]:
    """As many fields; in a third of the objects some have made-up names. A few are null."""
    fields: dict[str, object] = {}
    strange = 0.5 if random.random() < 1 / 3 else 0.0
    while len(fields) < count:
        if random.random() < strange:
            noun, maker = made_up(random, split), random.choice(MAKERS)
        else:
            noun = random.choice(NOUNS)
            maker = FIELDS[noun]
        fields[noun] = None if random.random() < 0.06 else maker(random, split)
    return fields


def _listing(fields: Mapping[str, object]) -> str:
    return ", ".join(f"{noun} {_told(value)}" for noun, value in fields.items())


def _told(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return " and ".join(map(str, value))
    if isinstance(value, dict):
        return f"({_listing(value)})"
    return str(value)
