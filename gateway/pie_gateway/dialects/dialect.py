"""Dialects: what a family of models writes around calls and thoughts.

The family shows in the vocabulary: what it writes around a call is a token of its own.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pie_gateway.backend.job import Grammar
from pie_gateway.backend.vocabulary import Vocabulary


@dataclass(frozen=True)
class Section:
    """A part of a text between two markers; without an end it goes to the text's."""

    begin: str
    end: str
    is_call: bool


@dataclass(frozen=True)
class Dialect:
    """How a family writes."""

    sections: tuple[Section, ...]
    bare_calls: bool = False  # a text that begins with an object in JSON is a call

    @property
    def markers(self) -> list[str]:
        """Texts that the program must not leave out."""
        return [text for each in self.sections for text in (each.begin, each.end) if text]


CALLS = Section("", "", is_call=True)  # a text that is held to calls


THOUGHT = Section("<think>", "</think>", is_call=False)


HERMES = Section("<tool_call>", "</tool_call>", is_call=True)  # Qwen 2.5 and 3, Hermes


MISTRAL = Section("[TOOL_CALLS]", "", is_call=True)


LLAMA = Section("<|python_tag|>", "", is_call=True)  # Llama 3.1 and later


def dialect_of(words: Vocabulary, *, calls: bool) -> Dialect:
    """How a model writes, by its vocabulary; `calls` are looked for only if it was given tools."""
    sections = [THOUGHT] if _has(words, THOUGHT) else []
    if not calls:
        return Dialect(tuple(sections))
    for family in (MISTRAL, LLAMA):
        if _has(words, family):
            return Dialect((*sections, family), bare_calls=family is LLAMA)
    return Dialect((*sections, HERMES))


def _has(words: Vocabulary, section: Section) -> bool:
    return section.begin in words.special or section.begin.encode() in words.ids


def required_calls(functions: Sequence[tuple[str, dict[str, Any]]], *, parallel: bool) -> Grammar:
    """A list of calls in JSON, at least one.

    Args:
        functions: names and the JSON schemas of their arguments.
        parallel: whether there may be several.
    """
    options = [
        {
            "type": "object",
            "properties": {"name": {"const": name}, "arguments": schema},
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for name, schema in functions
    ]
    schema: dict[str, Any] = {"type": "array", "minItems": 1, "items": {"anyOf": options}}
    if not parallel:
        schema["maxItems"] = 1
    return Grammar("json-schema", json.dumps(schema))
