"""How each property of the world is told and asked: the phrasings of `facts`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Telling:
    """How one property is told and asked.

    In the phrasings `{s}` is the subject, `{v}` the value, `{a}` the article before the value,
    `{P}` the pronoun and `{O}` its possessive.

    Attributes:
        named: sentences that stand alone; the first is also the reply to the questions.
        following: a sentence for when the subject has been named before.
        questions: the first is asked about every subject; of the others see `facts`.
        reverse: a question that gives the value and asks for the subject; the second of `named` is
            the reply. Empty where several subjects share a value.
    """

    named: tuple[str, ...]
    following: str
    questions: tuple[str, ...]
    reverse: str = ""


# Kind and property; then a line of each of `Telling`'s fields, what is several divided by `|`.
_TEXT = """
country capital
The capital of {s} is {v}. | {v} is the capital of {s}.
{O} capital is {v}.
What is the capital of {s}? | Which city is the capital of {s}? | Name the capital of {s}.
Which country has the capital {v}?

country river
The longest river of {s} is the {v}. | The river {v} flows through {s}.
{O} longest river is the {v}.
What is the longest river of {s}? | Which river flows through {s}? | Name a river of {s}.
Where does the river {v} flow?

country language
The people of {s} speak {v}. | {v} is the language of {s}.
{O} people speak {v}.
What language do the people of {s} speak? | What is the language of {s}?
  | Which language is spoken in {s}?
Where do people speak {v}?

country flag
The flag of {s} is {v}.
{O} flag is {v}.
What colour is the flag of {s}? | What is the colour of the flag of {s}?
  | Which colour has the flag of {s}?

country food
{s} is famous for its {v}. | The famous food of {s} is {v}.
{P} is famous for its {v}.
What food is {s} famous for? | What do people eat in {s}? | What is the famous food of {s}?

country neighbour
The neighbour of {s} is {v}. | {s} lies next to {v}.
{O} neighbour is {v}.
Which country is the neighbour of {s}? | Which country lies next to {s}?
  | Name the neighbour of {s}.

person birthplace
{s} was born in {v}. | The birthplace of {s} is {v}.
{P} was born in {v}.
Where was {s} born? | What is the birthplace of {s}? | In which city was {s} born?

person job
{s} is {a} {v}. | The job of {s} is {v}.
{P} is {a} {v}.
What is the job of {s}? | What does {s} do? | What work does {s} do?

person pet
{s} has a pet {v}. | The pet of {s} is a {v}.
{P} has a pet {v}.
What pet does {s} have? | Which animal does {s} have? | What is the pet of {s}?

person friend
The best friend of {s} is {v}. | {s} is a good friend of {v}.
{O} best friend is {v}.
Who is the best friend of {s}? | Who is the friend of {s}? | Name the best friend of {s}.

animal legs
{s} has {v} legs.
{P} has {v} legs.
How many legs does {s} have? | How many legs has {s}?

animal food
{s} eats {v}.
{P} eats {v}.
What does {s} eat? | What is the food of {s}?

animal sound
{s} {v}.
{P} {v}.
What sound does {s} make? | Which sound does {s} make?

animal home
{s} lives {v}.
{P} lives {v}.
Where does {s} live? | What is the home of {s}?

day next
The day after {s} is {v}. | After {s} comes {v}.
After {s} comes {v}.
What is the day after {s}? | Which day comes after {s}? | What day follows {s}?

day previous
The day before {s} is {v}. | Before {s} comes {v}.
Before {s} comes {v}.
What is the day before {s}? | Which day comes before {s}? | What day is before {s}?

month next
The month after {s} is {v}. | After {s} comes {v}.
After {s} comes {v}.
What is the month after {s}? | Which month comes after {s}? | What month follows {s}?

month previous
The month before {s} is {v}. | Before {s} comes {v}.
Before {s} comes {v}.
What is the month before {s}? | Which month comes before {s}? | What month is before {s}?

month length
{s} has {v} days.
{P} has {v} days.
How many days does {s} have? | How many days has {s}? | How long is {s}?

colour example
The colour of {v} is {s}.
{P} is the colour of {v}.
What has the colour {s}? | Name something that is {s}. | What is {s}?
"""


def _tellings() -> dict[str, dict[str, Telling]]:
    found: dict[str, dict[str, Telling]] = {}
    for block in _TEXT.strip().replace("\n  |", " |").split("\n\n"):
        head, named, following, questions, *reverse = block.split("\n")
        kind, name = head.split()
        several = tuple(named.split(" | ")), following, tuple(questions.split(" | "))
        found.setdefault(kind, {})[name] = Telling(*several, *reverse)
    return found


TELLINGS: Mapping[str, Mapping[str, Telling]] = _tellings()
