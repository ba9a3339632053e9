"""Dialects: the ways in which families of models write calls and thoughts, and their reading.

Here is how one model writes: its family's row, its tokens, and the functions that it was given.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pie_gateway.backend.job import MARK, Grammar
from pie_gateway.backend.vocabulary import Vocabulary
from pie_gateway.dialects.families import FAMILIES, THOUGHTS, TOLD, Family, Section, family_of
from pie_gateway.dialects.forms import Functions

MOST_CALLS = 8  # that one answer is held to


@dataclass(frozen=True)
class Dialect:
    """How a model writes."""

    sections: tuple[Section, ...] = ()  # the marked parts that are looked for
    family: Family = TOLD  # of the model
    # That may be called, with the JSON schemas of their arguments.
    functions: Functions = field(default_factory=dict)
    # Tokens whose text the program precedes by `MARK`: only so they count as markers, and a text
    # that spells one out does not.
    marks: Mapping[int, str] = field(default_factory=dict)
    held: bool = False  # whether the text is held to a form: thoughts come before it, if at all

    def marked(self, marker: str) -> str:
        """A marker as it comes in the program's text."""
        return MARK + marker if marker in self.marks.values() else marker


def dialect_of(
    words: Vocabulary,
    functions: Functions | None = None,
    *,
    tells: bool = True,
    marked: bool = True,
    held: bool = False,
) -> Dialect:
    """How a model with these tokens writes; without `functions` no calls are looked for. Its chat
    template `tells` of tools; tokens that are markers are `marked` by `MARK`; a text that is `held`
    to a form has calls without a marker, and thoughts only if tokens are marked.
    """
    tokens = {each.token for each in FAMILIES if words.id_of(each.token) is not None}
    family = family_of(tokens, tells=tells)
    thinks = marked or not held
    sections = [each for each in THOUGHTS if thinks and words.id_of(each.begin) is not None]
    if functions and family.calls is not None and not held:
        sections.append(family.calls)
    markers = [text for each in sections for text in (each.begin, each.end)]
    if functions or family.channels:
        markers += family.inner
    ids = {words.id_of(text): text for text in markers if marked and text}
    marks = {token: text for token, text in ids.items() if token is not None}
    plain = Dialect((), family, functions or {}, marks)
    as_written = tuple(
        replace(each, begin=plain.marked(each.begin), end=plain.marked(each.end))
        for each in sections
    )
    return replace(plain, sections=as_written, held=held)


def required_calls(
    functions: Sequence[tuple[str, dict[str, Any]]], *, parallel: bool, lenient: bool = False
) -> Grammar:
    """A list of calls in JSON of functions with the JSON schemas of their arguments, one or, if
    `parallel`, several, at most `MOST_CALLS`: a weak model would never end. Its objects have
    nothing but what schemas name. If `lenient`, it leaves out of schemas what no grammar can hold.
    """
    options = [
        {
            "type": "object",
            # With an id it is a resource of its own: `#/$defs/X` in it is its own X.
            "properties": {
                "name": {"const": name},
                "arguments": {**_arguments(schema), "$id": str(at)},
            },
            "required": ["name", "arguments"],
        }
        for at, (name, schema) in enumerate(functions)
    ]
    schema = {
        "type": "array",
        "minItems": 1,
        "maxItems": MOST_CALLS if parallel else 1,
        "items": {"anyOf": options},
        "x-guidance": {"strict": True, "lenient": lenient, "coerce_one_of": lenient},
    }
    return Grammar("json-schema", json.dumps(schema), "tools")


def _arguments(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of a function's arguments; one that names none takes none."""
    if not schema.keys() - {"type", "properties", "required"} and not schema.get("properties"):
        return {"type": "object", "properties": {}, "additionalProperties": False}
    return {"type": "object", **schema}
