"""How deep a parser would have to go, found without one.

A stack that is exhausted ends the whole instance, so text by a model is looked at before Python's
own parsers see it.
"""

from __future__ import annotations

import re
from functools import cache
from keyword import iskeyword

DEEPEST = 150  # nested brackets and operators

_TOKEN = r"""
    (?P<text>(?P<prefix>[A-Za-z]{0,2})(?:'''.*?'''|\"\"\".*?\"\"\"|'(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*"))
    | (?P<comment>\#[^\n]*)
    | (?P<word>\w[\w.]*(?<=\d)(?:[eE][+-]?\d+)?|\w+)
    | (?P<space>[ \t\r\f\\]+)
    | (?P<sign>.)
    """


@cache
def _tokens() -> re.Pattern[str]:
    """Compiled by the first call that is read: this takes 2 ms, which no launch needs."""
    return re.compile(_TOKEN, re.VERBOSE | re.DOTALL)


def is_too_deep(text: str) -> bool:
    """True if the syntax tree of a Python or JSON text may be more than `DEEPEST` deep.

    Counts, at each place, the brackets that are open and the operators and keywords since the last
    comma or line in each of them: no tree is deeper. `elif` counts to the end: each is within the
    last.
    """
    count = elifs = 0  # at this place
    bases = [0]  # the count at the beginning of each open bracket
    for found in _tokens().finditer(text):
        match found.lastgroup:
            case "text" | "prefix":
                if "f" in found["prefix"].lower():
                    count += found["text"].count("{") + 1
                    if is_too_deep(found["text"][len(found["prefix"]) + 1 : -1]):
                        return True
            case "word":
                word = found["word"]
                elifs += word == "elif"
                count += iskeyword(word) + word.count(".")
            case "sign":
                count = _after(found["sign"], count, bases)
            case _:
                pass
        if count + elifs > DEEPEST:
            return True
    return False


def _after(sign: str, count: int, bases: list[int]) -> int:
    """The count after a sign; `bases` changes with brackets."""
    if sign in "([{":
        bases.append(count + 1)
        return count + 1
    if sign in ")]}":
        return (bases.pop() if len(bases) > 1 else count) + 1
    if sign in ",;" or (sign == "\n" and len(bases) == 1):
        return bases[-1]
    return count if sign == "\n" else count + 1
