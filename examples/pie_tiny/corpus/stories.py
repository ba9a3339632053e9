"""Short stories from a grammar: a hero wants or loses something, meets a friend; it ends well."""

from __future__ import annotations

import re
from random import Random

from examples.pie_tiny.corpus.sample import Sample, Split, chat, plain
from examples.pie_tiny.corpus.words import ADJECTIVES, COLOURS, THINGS, invented

KIND = "story"

_ANIMALS = tuple("fox dog cat bear owl rabbit mouse duck goat frog deer hen".split())
# Names of children and of animals by the pronoun, which so follows from the name.
_CHILDREN: dict[str, tuple[str, ...]] = {
    "she": tuple("Mira Anna Clara Emma Greta Ida Lena Maya Nina Rosa Flora Julia".split()),
    "he": tuple("Tobin Ben David Felix Hugo Jonas Leo Oscar Paul Sam Kurt Marco".split()),
}
_ANIMAL_NAMES: dict[str, tuple[str, ...]] = {
    "she": ("Bella", "Coco", "Poppy", "Luna", "Daisy", "Nelly"),
    "he": ("Pip", "Momo", "Rusty", "Ziggy", "Bobo", "Nutty"),
}
_HOMES = (
    "in a small house by the sea",
    "in a village near the hills",
    "at the edge of a dark forest",
    "on a farm by the river",
    "in a little town",
)
_PLACES = (
    "the forest",
    "the garden",
    "the market",
    "the old mill",
    "the river",
    "the hill",
    "the lake",
)
_HIDDEN = (
    "under a bush",
    "behind a big stone",
    "in the tall grass",
    "under an old tree",
    "in a deep hole",
)

# Openings: `{a}` is the hero with an article and adjective, `{h}` the hero's name.
_OPENINGS = (
    "Once upon a time there was {a} called {h}. {P} lived {home}.",
    "Once upon a time {a} called {h} lived {home}.",
    "{h} was {a}. {P} lived {home}.",
    "There once was {a} called {h}. {P} lived {home}.",
)

# Of each plot its parts in order, one phrasing of each drawn. `{h}` is the hero, `{f}` the friend,
# `{p} {P} {o} {m}` the hero's pronoun (he, He, his, him) and `{q} {Q} {r} {n}` the friend's.
_PLOTS = [
    [part.split("\n  | ") for part in re.split(r"\n(?!  )", plot)]
    for plot in """
{P} had {t} and loved it very much.
  | The thing {p} loved most was {t}.
  | Every day {p} played with {t}.
One day the {k} was gone. {h} looked everywhere, but {p} could not find it.
  | One morning {h} could not find the {k}. {P} looked under the bed and behind the door.
  | One day {h} lost the {k} on the way to {place}. {P} was very sad.
Then {p} met {b} called {f}. "Why are you so sad?" asked {f}. "I lost my {k}," said {h}.
  | {P} sat down and cried. {F} called {f} came by and asked what was wrong. {h} told {n}.
"Let us look together," said {f}. They walked to {place} and searched all day.
  | "I will help you," said {f}. So the two friends went to {place}.
  | {f} had an idea. "Let us look near {place}," {q} said.
At last {f} saw something {colour} {hidden}. It was the {k}!
  | There, {hidden}, lay the {k}. {h} jumped for joy.
"Thank you!" said {h}. From that day on they were best friends.
  | {h} thanked {f} and took the {k} home. {P} never lost it again.
  | {h} was happy again, and {f} was happy too. They went home and had soup.

{h} wanted {t} more than anything.
  | {P} always dreamed of {t}.
  | {P} had many things, but {p} did not have {t}.
One day {p} saw one at the market, but {p} had no money.
  | One morning {p} went to the market to buy one, but it cost too much.
On the way home {p} met {b} called {f}. {Q} carried a heavy bag and was very tired.
  | Then {p} met {b} called {f}. {Q} had hurt {r} leg and could not walk.
"Can you help me?" asked {f}. {h} was in a hurry, but {p} stayed and helped {n}.
  | {h} did not think twice. {P} helped {n} all the way home.
  | "I will help you," said {h}, and together they slowly walked home.
"You are kind," said {f}. "Please take this." It was {t}!
  | To thank {m}, {f} opened a box and gave {m} {t}.
{h} was so happy that {p} danced all the way home.
  | {h} smiled. Now {p} had {t} and a new friend.
  | From that day on {h} and {f} met every day.

One day {p} went for a walk near {place}.
  | One morning {p} walked to {place}, because the sun was shining.
  | One day {p} played near {place}.
There {p} found {t} {hidden}. "Whose is it?" {p} asked.
  | Suddenly {p} saw something {hidden}. It was {t}!
{h} wanted to keep the {k}, but {p} knew that somebody missed it.
  | {h} liked the {k} very much, but it was not {o} own.
{P} asked all the neighbours. At last {p} came to {b} called {f}, who lived alone.
  | So {p} went from door to door. In the last house lived {b} called {f}.
"Is this your {k}?" asked {h}. "Yes, it is!" said {f}. "I lost it long ago."
  | "My {k}!" said {f}. "I looked for it everywhere." {h} gave it back to {n}.
{f} was so happy that {q} baked a cake, and they ate it together.
  | "Thank you," said {f}. They became good friends and played every day.
  | {h} went home without the {k}, but with a new friend.

{h} wanted to see {place}, but {p} was afraid of the dark.
  | {P} was not afraid of anything but the night.
One evening {p} went too far from home, and it became dark.
  | One day {p} lost the way, and soon the sun went down.
{P} heard a noise and hid {hidden}. But it was only {b} called {f}.
  | Then {p} saw a small light. It was {b} called {f}, who carried {t}.
"Do not be afraid," said {f}. "I know the way."
  | "Why do you shake?" asked {f}. "I cannot find my way home," said {h}.
{f} showed {m} the stars and the moon. Hand in hand they walked through the night.
  | They sang a song together, and the dark was not so dark any more.
At last they came home. {h} was not afraid of the dark any more.
  | Soon {h} saw the lights of home. "Thank you, {f}," {p} said, and slept well.
""".strip().split("\n\n")
]
_LAST = ("", "", " The end.", " And they lived happily ever after.")
_REQUESTS = (
    "Tell me a story about {about}.",
    "Write a short story about {about}.",
    "Please tell a story about {about}.",
)
_PRONOUNS = {"he": ("his", "him"), "she": ("her", "her")}

# Name, what it is (`fox`, `girl`) and pronoun.
Character = tuple[str, str, str]


def stories(random: Random, split: Split) -> Sample:
    """A story of 40 to 150 words, alone or told on request.

    Names, pronouns and things stay the same through a story. Held-out samples have only made-up
    names that were kept back from training; the words and plots are the same.
    """
    hero = _character(random, split)
    friend = _character(random, split)
    while friend[0] == hero[0] or friend[1] == hero[1]:
        friend = _character(random, split)
    story = _story(random, hero, friend)
    if random.random() < 0.6:
        return plain(KIND, story)
    about = f"{_article(hero[1])} {hero[1]}" + (
        f" called {hero[0]}" if random.random() < 0.4 else ""
    )
    return chat(KIND, "", random.choice(_REQUESTS).format(about=about), story)


def _story(random: Random, hero: Character, friend: Character) -> str:
    mood, other = random.sample(ADJECTIVES, 2)
    colour, thing = random.choice(COLOURS), random.choice(THINGS)
    his, him = _PRONOUNS[hero[2]]
    her_friends, her_friend = _PRONOUNS[friend[2]]
    met = f"{_article(other)} {other} {friend[1]}"
    words = {
        "h": hero[0],
        "f": friend[0],
        "a": f"{_article(mood)} {mood} {hero[1]}",
        "b": met,
        "F": met[0].upper() + met[1:],
        "p": hero[2],
        "P": hero[2].capitalize(),
        "o": his,
        "m": him,
        "q": friend[2],
        "Q": friend[2].capitalize(),
        "r": her_friends,
        "n": her_friend,
        "t": f"{_article(colour)} {colour} {thing}",
        "k": thing,
        "colour": colour,
        "home": random.choice(_HOMES),
        "place": random.choice(_PLACES),
        "hidden": random.choice(_HIDDEN),
    }
    parts = [random.choice(_OPENINGS), *(random.choice(part) for part in random.choice(_PLOTS))]
    return " ".join(parts).format_map(words) + random.choice(_LAST)


def _character(random: Random, split: Split) -> Character:
    pronoun = "she" if random.random() < 0.5 else "he"
    if random.random() < 0.6:
        what, known = random.choice(_ANIMALS), _ANIMAL_NAMES[pronoun]
    else:
        what, known = "girl" if pronoun == "she" else "boy", _CHILDREN[pronoun]
    if split.held_out or random.random() < 0.15:
        return invented(random, split).capitalize(), what, pronoun
    return random.choice(known), what, pronoun


def _article(noun: str) -> str:
    return "an" if noun[0] in "aeiou" else "a"
