"""Compilation of a grammar: its text as llguidance takes it, first tried in a confined process."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from typing import Any

from llguidance import LLMatcher, LLParserLimits
from llguidance.gbnf_to_lark import gbnf_to_lark

from pie_control.errors import ApiError
from pie_control.grammar.json_schema import rewritten
from pie_control.grammar.matcher import first_lines
from pie_control.grammar.vocabulary import Vocabulary, load_vocabulary
from pie_control.models.tokenizer import codec_of

# A token is consumed on the control thread: with llguidance's own limits an ambiguous grammar could
# hold it up for a tenth of a second at each one, with these for a few milliseconds. Rows of JSON
# schemas have some dozens of items, those of an object with 200 optional members 800.
_LIMITS = LLParserLimits(
    max_items_in_row=800, step_max_items=10_000, max_lexer_states=50_000, max_grammar_size=200_000
)

# White space between the parts of a JSON text, if there may be any: no more than a layout needs.
_ANY_SPACE = {"whitespace_flexible": True, "whitespace_pattern": r"[ \n\r\t]{1,64}"}
# As Python's json writes it: much of the text is then forced, and a weak model does not fill its
# tokens with white space.
_ONE_SPACE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_OPTIONS = ("strict", "any_whitespace", "any_key_order")  # ours among those of `x-guidance`


def schema_grammar(text: str) -> str:
    """The grammar of a JSON schema, whose options are in its `x-guidance`.

    Raises:
        ApiError: `invalid-argument` if it is wrong, or asks for what no grammar can hold it to.
    """
    return _styled(text, LLMatcher.grammar_from_json_schema)


def lark_grammar(text: str) -> str:
    """The grammar of a text in Lark's syntax, whose schemas (`%json`) are as those alone.

    Raises:
        ApiError: as `schema_grammar`.
    """
    parts, at = [], 0
    for place in (found.end() for found in re.finditer(r"%json\s*(?=\{)", text)):
        with suppress(json.JSONDecodeError, RecursionError):  # llguidance says what is wrong
            _, end = json.JSONDecoder().raw_decode(text, place)
            parts += [text[at:place], _styled(text[place:end], str)]
            at = end
    return str(LLMatcher.grammar_from_lark("".join([*parts, text[at:]])))


def _styled(text: str, finish: Callable[[str], str]) -> str:
    """What `finish` makes of a schema once llguidance knows it; see `schema_grammar`."""
    try:
        schema = json.loads(text)
        options = _taken_options(schema)
        style = _ANY_SPACE if options.get("any_whitespace") else _ONE_SPACE
        found = rewritten(schema, options.get("strict", False), options.get("any_key_order", False))
        if found is False:
            raise ApiError("invalid-argument", "the grammar: no text satisfies it")
        found = {} if found is True else found
        found["x-guidance"] = {**style, **found.get("x-guidance", {})}
        return finish(json.dumps(found))
    except RecursionError:
        raise ApiError("invalid-argument", "the JSON schema: nested too deep") from None
    except (ValueError, TypeError, AttributeError) as error:
        raise ApiError("invalid-argument", f"the JSON schema: {error}") from None


def ebnf_grammar(text: str) -> str:
    """The grammar of an EBNF as llama.cpp writes it (GBNF), from the rule `root`.

    Raises:
        ApiError: `invalid-argument`.
    """
    try:
        return str(gbnf_to_lark(text))
    except RecursionError:
        raise ApiError("invalid-argument", "the grammar: nested too deep") from None
    except Exception as error:  # the converter has several errors of its own, and some of Python's
        raise ApiError("invalid-argument", f"the grammar: {error}") from None


def _taken_options(schema: Any) -> dict[str, bool]:
    """Takes our options out of a schema."""
    guidance = schema.get("x-guidance") if isinstance(schema, dict) else None
    if not isinstance(guidance, dict):
        return {}
    options = {name: guidance.pop(name) for name in _OPTIONS if name in guidance}
    for name, value in options.items():
        if not isinstance(value, bool):
            raise ValueError(f"x-guidance: {name} is {value!r}, not true or false")
    return options


KINDS: dict[str, Callable[[str], str]] = {
    "json-schema": schema_grammar,
    "regex": LLMatcher.grammar_from_regex,
    "lark": lark_grammar,
    "ebnf": ebnf_grammar,
}


def probe(folder: str, vocab_size: int, stops: list[int], kind: str, text: str) -> str:
    """Compiles a grammar and computes its first mask, to see whether that goes well. Returns the
    grammar as `compiled` takes it.

    Raises:
        ApiError: as `compiled`; `unsupported` if the tokenizer does not work with grammars.
    """
    ready = KINDS[kind](text)
    compiled(_vocabulary(folder, vocab_size, tuple(stops)), ready).deep_copy().compute_bitmask()
    return ready


def compiled(vocabulary: Vocabulary, ready: str) -> LLMatcher:
    """A matcher at a grammar's start.

    Raises:
        ApiError: `invalid-argument` for a wrong grammar, or one that no text satisfies.
    """
    root = LLMatcher(vocabulary.tokenizer, ready, log_level=0, limits=_LIMITS)
    if root.is_error():
        raise ApiError("invalid-argument", f"the grammar: {first_lines(root.get_error())}")
    if root.is_stopped() and not root.is_accepting():
        raise ApiError("invalid-argument", "the grammar: no text satisfies it")
    return root


@lru_cache(maxsize=8)
def _vocabulary(folder: str, size: int, stops: tuple[int, ...]) -> Vocabulary:
    return load_vocabulary(codec_of(folder), size, stops)
