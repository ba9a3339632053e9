"""A small invented world that never changes, with some plain facts of the real one beside it.

The model learns these facts by heart, so every one is written down here and none is drawn: a
question about the world has one answer, in training and afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class Subject:
    """Something the world has facts about.

    Attributes:
        kind: `country`, `person`, `animal`, `day`, `month` or `colour`.
        name: what it is called.
        pronoun: what stands for it after the first mention: `it`, `he` or `she`.
        facts: the value of each of its properties, all as text.
    """

    kind: str
    name: str
    pronoun: str
    facts: Mapping[str, str]


# Name, capital, river, language, colour of the flag, food. Two lines make a pair of neighbours.
_COUNTRIES = """
Velland   | Orrin   | Sarn   | Vellish   | green  | honey cake
Korvia    | Talmar  | Ibra   | Korvian   | red    | onion soup
Estmark   | Havenby | Linna  | Estish    | blue   | smoked fish
Norwen    | Skelby  | Tarn   | Norwish   | white  | apple pie
Pellara   | Cassima | Moro   | Pellaran  | yellow | rice pudding
Zandor    | Kesh    | Ulu    | Zandori   | orange | roast lamb
Brinland  | Tollen  | Wend   | Brinnish  | black  | cheese bread
Luvia     | Marisol | Avela  | Luvian    | purple | grape jelly
Ostrel    | Grendal | Dorva  | Ostrish   | brown  | potato stew
Tirrany   | Quill   | Esk    | Tirran    | pink   | plum cake
Hallow    | Bexby   | Rill   | Hallish   | grey   | pumpkin soup
Fendale   | Umber   | Thorn  | Fendish   | golden | mushroom pie
Calder    | Vasco   | Pirro  | Caldish   | red    | pepper stew
Junara    | Solani  | Kuba   | Junari    | green  | mango salad
Rothmar   | Eisel   | Brack  | Rothish   | black  | rye bread
Wexia     | Dunmor  | Lorne  | Wexian    | blue   | egg noodles
Arbenia   | Castra  | Velo   | Arbenian  | white  | olive bread
Mundria   | Pontis  | Sella  | Mundrian  | yellow | lemon cake
Sorrel    | Fincham | Ode    | Sorrish   | purple | berry jam
Gavenna   | Ludo    | Tessa  | Gavennan  | orange | carrot soup
Yarrow    | Nesting | Swale  | Yarrish   | brown  | nut bread
Inderra   | Balka   | Omra   | Inderran  | pink   | bean curry
Thessel   | Argon   | Penna  | Thessish  | golden | fig cake
Draven    | Holt    | Grimm  | Dravish   | grey   | cabbage soup
"""

# Name, pronoun, birthplace, job, pet. Two lines make a pair of friends.
_PERSONS = """
Adela   | she | Orrin   | baker      | cat
Bram    | he  | Talmar  | teacher    | dog
Corin   | he  | Havenby | fisherman  | parrot
Dessa   | she | Skelby  | doctor     | rabbit
Elric   | he  | Cassima | painter    | goat
Fenna   | she | Kesh    | singer     | horse
Garrick | he  | Tollen  | farmer     | pig
Hetty   | she | Marisol | writer     | mouse
Ilse    | she | Grendal | judge      | turtle
Jorin   | he  | Quill   | potter     | duck
Kasper  | he  | Bexby   | gardener   | hen
Lysa    | she | Umber   | pilot      | snake
Morwen  | she | Vasco   | cook       | cat
Nestor  | he  | Solani  | sailor     | parrot
Odette  | she | Eisel   | dancer     | dog
Perrin  | he  | Dunmor  | carpenter  | goat
Quinn   | she | Castra  | nurse      | rabbit
Roland  | he  | Pontis  | builder    | horse
Selma   | she | Fincham | tailor     | mouse
Tarek   | he  | Ludo    | driver     | pig
Ulric   | he  | Nesting | miller     | duck
Vera    | she | Balka   | librarian  | turtle
Willem  | he  | Argon   | blacksmith | hen
Zelda   | she | Holt    | astronomer | snake
"""

# Name, legs, food, sound, where it lives.
_ANIMALS = """
cat   | four | meat    | meows  | in a house
dog   | four | meat    | barks  | in a house
cow   | four | grass   | moos   | on a farm
horse | four | hay     | neighs | in a stable
sheep | four | grass   | bleats | in a meadow
hen   | two  | seeds   | clucks | on a farm
duck  | two  | plants  | quacks | on a pond
frog  | four | flies   | croaks | in a pond
owl   | two  | mice    | hoots  | in the woods
wolf  | four | meat    | howls  | in the forest
bee   | six  | nectar  | buzzes | in a hive
lion  | four | meat    | roars  | on the savanna
"""

_DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
_MONTHS = (
    "January February March April May June July August September October November December"
).split()
_LENGTHS = "31 28 31 30 31 30 31 31 30 31 30 31".split()

_COLOURS = """
red    | blood
blue   | the sky
green  | grass
yellow | a lemon
white  | snow
black  | coal
brown  | chocolate
grey   | a rain cloud
orange | a carrot
purple | a plum
pink   | a flamingo
golden | honey
"""


def _rows(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in row.split("|")] for row in table.strip().splitlines()]


def _countries() -> Iterator[Subject]:
    rows = _rows(_COUNTRIES)
    for n, (name, *values) in enumerate(rows):
        facts = dict(zip(("capital", "river", "language", "flag", "food"), values, strict=True))
        yield _subject("country", name, "it", facts | {"neighbour": rows[n ^ 1][0]})


def _persons() -> Iterator[Subject]:
    rows = _rows(_PERSONS)
    for n, (name, pronoun, *values) in enumerate(rows):
        facts = dict(zip(("birthplace", "job", "pet"), values, strict=True))
        yield _subject("person", name, pronoun, facts | {"friend": rows[n ^ 1][0]})


def _animals() -> Iterator[Subject]:
    for name, *values in _rows(_ANIMALS):
        yield _subject(
            "animal", name, "it", dict(zip(("legs", "food", "sound", "home"), values, strict=True))
        )


def _calendar() -> Iterator[Subject]:
    for n, day in enumerate(_DAYS):
        yield _subject("day", day, "it", {"next": _DAYS[(n + 1) % 7], "previous": _DAYS[n - 1]})
    for n, month in enumerate(_MONTHS):
        neighbours = {"next": _MONTHS[(n + 1) % 12], "previous": _MONTHS[n - 1]}
        yield _subject("month", month, "it", neighbours | {"length": _LENGTHS[n]})


def _colours() -> Iterator[Subject]:
    for colour, example in _rows(_COLOURS):
        yield _subject("colour", colour, "it", {"example": example})


def _subject(kind: str, name: str, pronoun: str, facts: dict[str, str]) -> Subject:
    return Subject(kind, name, pronoun, MappingProxyType(facts))


SUBJECTS: tuple[Subject, ...] = (*_countries(), *_persons(), *_animals(), *_calendar(), *_colours())
_BY_KIND: dict[str, tuple[Subject, ...]] = {
    kind: tuple(subject for subject in SUBJECTS if subject.kind == kind)
    for kind in ("country", "person", "animal", "day", "month", "colour")
}


def subjects(kind: str) -> tuple[Subject, ...]:
    """All subjects of a kind, in the order they are written down.

    Raises:
        KeyError: the world has no such kind.
    """
    return _BY_KIND[kind]
