"""The programs that workers have compiled: of the fields that nearly every request has.

They mean what the rule `sampler` says of those fields, as of all others. A worker knows them by
their texts, so it does not matter who wrote one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache

from pie_py.device_programs.bound import types_of
from pie_py.device_programs.fields import COMPILED, FIELDS
from pie_py.device_programs.library import rule_text
from pie_py.device_programs.program import Program
from pie_py.device_programs.reader import read_texts
from pie_py.device_programs.scope import Text

_LIKELIEST = Text("", 1, "def likeliest(logits): return logits.argmax()")


@lru_cache(1024)
def is_compiled(program: Program) -> bool:
    """True for a program of fields that workers choose by without its operations."""
    names = [one.name for one in program.names]
    if names != sorted(COMPILED & set(names)):
        return False
    return is_greedy(program) or program.text == _text([one for one in FIELDS if one in names])


def is_greedy(program: Program) -> bool:
    """True for one that takes the most likely token."""
    return program.text in _greedy_texts()


@cache
def _greedy_texts() -> frozenset[str]:
    return frozenset({_text([], greedy=True), read_texts([_LIKELIEST], {}, {}).text})


def _text(fields: Sequence[str], *, greedy: bool = False) -> str:
    """The canonical text of some fields' program."""
    types, _ = types_of({name: FIELDS[name].default for name in fields})
    return read_texts(
        [rule_text("sampler")], {"fields": list(fields), "greedy": greedy}, types
    ).text
