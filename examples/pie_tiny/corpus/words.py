"""The words that generators combine, and names made up of syllables.

A tenth of the made-up names is kept back from training (`Split`): whether one is, follows from its
letters alone, so that no list of drawn names is needed.
"""

from __future__ import annotations

from keyword import iskeyword
from random import Random
from zlib import crc32

from examples.pie_tiny.corpus.sample import Split

PEOPLE = (
    "Mira Tobin Anna Ben Clara David Emma Felix Greta Hugo Ida Jonas Karin Leo Maya Nina Oscar"
    " Paul Rosa Sam Tilda Uma Victor Wanda Xaver Yara Zeno Alma Boris Celia Dora Edgar Flora"
    " Gustav Hanna Ivan Julia Kurt Lena Marco"
).split()
PLACES = (
    "Dorn Paris Rome Oslo Lima Cairo Delhi Tokyo Bern Dublin Madrid Prague Vienna Warsaw Athens "
    "Boston Denver Austin Lisbon London Berlin Geneva Havana Nairobi Ottawa Quito Seoul Sofia "
    "Toronto Zurich Brindle Harrow Milford Ashby Norwood"
).split()
ANIMALS = (
    "fox dog cat bear owl rabbit mouse horse duck goat sheep wolf frog hen bee crow deer lion"
    " tiger turtle"
).split()
THINGS = (
    "lamp book key ball map coin ring boat cup hat bell box rope drum kite knife stone apple clock "
    "mirror letter basket candle ladder bottle blanket hammer needle pencil ticket"
).split()
COLOURS = "red blue green yellow black white brown grey orange purple pink golden".split()
ADJECTIVES = (
    "old young small big quiet clever brave kind shy happy sad tired hungry curious lazy proud"
    " gentle strong"
).split()

# Functions are called by a verb and a noun; those held out are in no training sample.
VERBS = (
    "fetch find send read write open close start stop check list count add remove update create"
    " book order pay cancel print save load copy move rename sort merge plan call invite remind"
    " translate measure compare lock unlock paint repair clean wash cook boil mix serve plant"
    " water feed hire pack ship track rate post share play pause record scan draw"
).split()
NOUNS = (
    "weather mail file table room flight hotel taxi train ticket meeting note report invoice"
    " photo song video price stock order user account password address phone message letter"
    " parcel recipe pasta soup salad garden tree flower window door light heater fan oven fridge"
    " car bike boat engine tyre map route street city river bridge school course exam book page"
    " chapter word story game score team player coach match goal plan task project budget salary"
    " tax bank loan bill shop cart item size colour shape wall roof floor chair desk bed clock"
    " alarm calendar event guest gift card"
).split()
HELD_OUT_VERBS = "borrow deliver inspect polish collect compress launch rotate".split()
HELD_OUT_NOUNS = (
    "camera pillow violin harbour ladder battery curtain museum statue permit donkey tunnel".split()
)
PARAMETERS = (
    "name city day count text receiver place size colour title topic amount owner person limit"
    " kind level code key note date hour target source label unit length speed rank group"
).split()

# Common ones more than once, so that they are drawn more often. The rest is there for copying to be
# learnt with every letter and spelling, not only with the easy ones.
_ONSETS = (
    "b d f g h k l m n p r s t v z b d f g h k l m n p r s t v z br dr gr kr pl st tr "
    "c j w y qu ch sh th bl cl fl gl sl cr fr pr sc sk sm sn sp sw tw str"
).split()
_VOWELS = "a e i o u a e i o u a e i o u ai ei ea ee ie oa oo ou y".split()
_CODAS = (
    "",
    "",
    "",
    "n",
    "r",
    "l",
    "s",
    "m",
    "x",
    *"b d g k p t nd nt st ck sh ll ss rt ct".split(),
)
_SYLLABLES = len(_ONSETS) * len(_VOWELS) * len(_CODAS)
_MIDDLE_CODAS = 9
"""Only the first codas stand within a name, and seldom: others make clusters that cannot be
said.
"""


def invented(random: Random, split: Split) -> str:
    """A made-up name of one to three syllables, lower-case: `dromel`, `vataisin`, `quist`.

    One in ten names is of the kind that only held-out samples use, and those use no other.
    """
    while True:
        draw = random.random()
        last = 0 if draw < 0.08 else 1 if draw < 0.65 else 2
        name = "".join(
            [_syllable(int(random.random() * _SYLLABLES), n == last) for n in range(last + 1)]
        )
        if iskeyword(name):  # `break` is made of two syllables, and no parameter may be called so
            continue
        if (crc32(name.encode()) % 10 == 0) == split.held_out and name not in _REAL:
            return name


def strange(random: Random) -> str:
    """A word of arbitrary letters, of parts of two words, or a word that no function is called by.

    A model that copies those copies any word: syllables make few of the token sequences that real
    words are cut into. For training only.
    """
    while True:
        draw = random.random()
        if draw < 0.4:
            word = "".join(random.choices(_LETTERS, _FREQUENCIES, k=random.randint(3, 9)))
        elif draw < 0.75:
            first, second = random.choice(_WORDS), random.choice(_WORDS)
            word = first[: random.randint(1, len(first))] + second[random.randrange(len(second)) :]
        else:
            word = random.choice(_WORDS)
        if word not in _FUNCTION_WORDS:
            return word


def _syllable(number: int, last: bool) -> str:
    number, coda = divmod(number, len(_CODAS))
    onset, vowel = divmod(number, len(_VOWELS))
    within = last or (coda < _MIDDLE_CODAS and number % 3 == 0)
    return _ONSETS[onset] + _VOWELS[vowel] + (_CODAS[coda] if within else "")


_LETTERS = "etaoinshrdlucmfwypvbgkjqxz"
_FREQUENCIES = tuple(26 - place for place in range(26))

_WORDS = tuple(
    word.lower()
    for words in (PEOPLE, PLACES, ANIMALS, THINGS, COLOURS, ADJECTIVES, VERBS, NOUNS, PARAMETERS)
    for word in words
)
_FUNCTION_WORDS = frozenset(VERBS + NOUNS + HELD_OUT_VERBS + HELD_OUT_NOUNS)

_REAL = frozenset(
    word.lower()
    for words in (PEOPLE, PLACES, THINGS, VERBS, NOUNS, HELD_OUT_VERBS, HELD_OUT_NOUNS, PARAMETERS)
    for word in words
)
"""Words that syllables may spell by chance."""
