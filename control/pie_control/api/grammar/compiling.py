"""Compilation of a grammar: its text as llguidance takes it, first tried in a confined process."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from typing import Any

from llguidance import LLMatcher, LLParserLimits
from llguidance.gbnf_to_lark import gbnf_to_lark

from pie_control.api.grammar.json_schema import rewritten
from pie_control.api.grammar.matcher import first_lines
from pie_control.api.grammar.vocabulary import Vocabulary, load_vocabulary
from pie_control.confined.process import uncharged
from pie_control.errors import invalid
from pie_control.models.tokenizer import codec_of

# A token is consumed on the control thread: with llguidance's own limits an ambiguous grammar could
# hold it up for a tenth of a second at each one, with these for a few milliseconds. Rows of JSON
# schemas have some dozens of items, those of an object with 200 optional members 800.
_LIMITS = LLParserLimits(
    max_items_in_row=800, step_max_items=10_000, max_lexer_states=50_000, max_grammar_size=200_000
)

_NO_END = "NoExtensionBias"  # of rules that lead to nothing but themselves
# White space between the parts of a JSON text, if there may be any: no more than a layout needs.
_ANY_SPACE = {"whitespace_flexible": True, "whitespace_pattern": r"[ \n\r\t]{1,64}"}
# As Python's json writes it: much of the text is then forced, and a weak model does not fill its
# tokens with white space.
_ONE_SPACE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_GBNF = re.compile(r"^\s*[\w-]+\s*::=", re.MULTILINE)
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|.)")
_OPTIONS = ("strict", "any_whitespace", "any_key_order")  # ours among those of `x-guidance`


def schema_grammar(text: str) -> str:
    """The grammar of a JSON schema, whose options are in its `x-guidance`.

    Raises:
        ApiError: `invalid-argument` if it is wrong, or asks for what no grammar can hold it to.
    """
    return _styled(text, LLMatcher.grammar_from_json_schema)


def lark_grammar(text: str) -> str:
    """The grammar of a text in Lark's syntax, whose schemas (`%json`) are as those alone, or of one
    as llama.cpp writes it (GBNF), from the rule `root`.

    Raises:
        ApiError: as `schema_grammar`.
    """
    text = _lark_of_gbnf(text) if _GBNF.search(text) else text
    parts, at = [], 0
    for place in (found.end() for found in re.finditer(r"%json\s*(?=\{)", text)):
        with suppress(ValueError, RecursionError):  # llguidance says what is wrong
            _, end = json.JSONDecoder().raw_decode(text, place)
            parts += [text[at:place], _styled(text[place:end], str)]
            at = end
    return str(LLMatcher.grammar_from_lark("".join([*parts, text[at:]])))


def _styled(text: str, finish: Callable[[str], str]) -> str:
    """Hands a schema to `finish` once llguidance knows it; see `schema_grammar`."""
    try:
        schema = json.loads(text)
        options = _taken_options(schema)
        style = _ANY_SPACE if options.get("any_whitespace") else _ONE_SPACE
        found = rewritten(schema, options.get("strict", False), options.get("any_key_order", False))
        if found is False:
            raise invalid("the grammar: no text satisfies it")
        found = {} if found is True else found
        found["x-guidance"] = {**style, **found.get("x-guidance", {})}
        return finish(json.dumps(found))
    except RecursionError:
        raise invalid("the JSON schema: nested too deep") from None
    except (TypeError, AttributeError):  # a keyword is not what it should be: llguidance says which
        return finish(text)
    except ValueError as error:
        raise invalid(f"the JSON schema: {error}") from None


def _lark_of_gbnf(text: str) -> str:
    try:
        return str(gbnf_to_lark(_ESCAPE.sub(_unescaped, text)))
    except RecursionError:
        raise invalid("the grammar: nested too deep") from None
    except Exception as error:  # noqa: BLE001  the converter has several
        raise invalid(f"the grammar: {error}") from None


def _unescaped(escape: re.Match[str]) -> str:
    """The character of a number, which the converter would write as llguidance does not read it."""
    code = int(escape[escape.lastindex], 16) if escape.lastindex else sys.maxunicode + 1
    if code < 0x80:
        return f"\\x{code:02x}"
    return escape[0] if code > sys.maxunicode or 0xD800 <= code < 0xE000 else chr(code)


def sequence_grammar(text: str) -> str:
    """The grammar of several ones, of which each follows the one before: a list in JSON of their
    kinds and texts.

    Raises:
        ApiError: as those of the kinds, and `invalid-argument` if it is no such list.
    """
    try:
        ready = [_SINGLE[kind](part) for kind, part in json.loads(text)]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise invalid("the grammar: no list of [kind, text] in JSON") from None
    found = [
        json.loads(each)["grammars"][0] if each.startswith("{") else {"lark_grammar": each}
        for each in ready
    ]
    parts = [{**each, "name": f"n{at}"} for at, each in enumerate(found)]
    row = " ".join(f"@{part['name']}" for part in parts)
    return json.dumps({"grammars": [{"lark_grammar": f"start: {row}"}, *parts]})


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


_SINGLE: dict[str, Callable[[str], str]] = {
    "json-schema": schema_grammar,
    "regex": LLMatcher.grammar_from_regex,
    "lark": lark_grammar,
    "ebnf": lark_grammar,
}
KINDS = {**_SINGLE, "sequence": sequence_grammar}


def probe(folder: str, vocab_size: int, stops: list[int], kind: str, text: str) -> str:
    """Compiles a grammar and computes its first mask, to see whether that goes well. Returns the
    grammar as `compiled` takes it.

    Raises:
        ApiError: as `compiled`; `unsupported` if the tokenizer does not work with grammars.
    """
    with uncharged():
        vocabulary = _vocabulary(folder, vocab_size, tuple(stops))
    ready = KINDS[kind](text.removeprefix("\ufeff"))  # as editors of Windows write it
    first = compiled(vocabulary, ready).deep_copy()
    first.compute_bitmask()
    if first.is_error() and first.get_error().startswith(_NO_END):
        raise invalid("the grammar: no text satisfies it")
    return ready


def compiled(vocabulary: Vocabulary, ready: str) -> LLMatcher:
    """A matcher at a grammar's start.

    Raises:
        ApiError: `invalid-argument` for a wrong grammar, or one that no text satisfies.
    """
    root = LLMatcher(vocabulary.tokenizer, ready, log_level=0, limits=_LIMITS)
    if root.is_error():
        raise invalid(f"the grammar: {first_lines(root.get_error())}")
    if root.is_stopped() and not root.is_accepting():
        raise invalid("the grammar: no text satisfies it")
    return root


@lru_cache(maxsize=8)
def _vocabulary(folder: str, size: int, stops: tuple[int, ...]) -> Vocabulary:
    return load_vocabulary(codec_of(folder), size, stops)
