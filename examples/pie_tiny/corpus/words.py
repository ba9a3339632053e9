"""The words that generators combine, and names made up of syllables.

A tenth of the made-up names is kept back from training (`Split`): whether one is, follows from its
letters alone, so that no list of drawn names is needed.
"""

from __future__ import annotations

from random import Random
from zlib import crc32

from examples.pie_tiny.corpus.sample import Split

PEOPLE = (
    "Mira Tobin Anna Ben Clara David Emma Felix Greta Hugo Ida Jonas Karin Leo Maya Nina Oscar Paul "
    "Rosa Sam Tilda Uma Victor Wanda Xaver Yara Zeno Alma Boris Celia Dora Edgar Flora Gustav Hanna "
    "Ivan Julia Kurt Lena Marco"
).split()
PLACES = (
    "Dorn Paris Rome Oslo Lima Cairo Delhi Tokyo Bern Dublin Madrid Prague Vienna Warsaw Athens "
    "Boston Denver Austin Lisbon London Berlin Geneva Havana Nairobi Ottawa Quito Seoul Sofia "
    "Toronto Zurich Brindle Harrow Milford Ashby Norwood"
).split()
ANIMALS = (
    "fox dog cat bear owl rabbit mouse horse duck goat sheep wolf frog hen bee crow deer lion tiger "
    "turtle"
).split()
THINGS = (
    "lamp book key ball map coin ring boat cup hat bell box rope drum kite knife stone apple clock "
    "mirror letter basket candle ladder bottle blanket hammer needle pencil ticket"
).split()
COLOURS = "red blue green yellow black white brown grey orange purple pink golden".split()
ADJECTIVES = (
    "old young small big quiet clever brave kind shy happy sad tired hungry curious lazy proud gentle "
    "strong"
).split()

_ONSETS = "b d f g h k l m n p r s t v z br dr gr kr pl st tr".split()
_VOWELS = "a e i o u ai ei".split()
_CODAS = ("", "", "", "n", "r", "l", "s", "m", "x")
_SYLLABLES = len(_ONSETS) * len(_VOWELS) * len(_CODAS)


def invented(random: Random, split: Split) -> str:
    """A made-up name of two or three syllables, lower-case: `dromel`, `vataisin`.

    One in ten names is of the kind that only held-out samples use, and those use no other.
    """
    while True:
        last = 1 + (random.random() < 0.4)
        name = "".join(
            [_syllable(int(random.random() * _SYLLABLES), n == last) for n in range(last + 1)]
        )
        if (crc32(name.encode()) % 10 == 0) == split.held_out and name not in _REAL:
            return name


def _syllable(number: int, last: bool) -> str:
    number, coda = divmod(number, len(_CODAS))
    onset, vowel = divmod(number, len(_VOWELS))
    # A coda in the middle of a name would make clusters that nobody can say.
    return _ONSETS[onset] + _VOWELS[vowel] + (_CODAS[coda] if last else "")


_REAL = frozenset(word.lower() for words in (PEOPLE, PLACES, THINGS) for word in words)
"""What syllables may spell by chance."""
