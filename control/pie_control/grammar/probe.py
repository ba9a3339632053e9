"""Compiling a grammar: how, and the first time, in a confined process."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from llguidance import LLMatcher, LLParserLimits

from pie_control.errors import ApiError
from pie_control.grammar.kinds import ebnf_grammar, schema_grammar
from pie_control.grammar.matcher import first_lines
from pie_control.grammar.vocabulary import Vocabulary, load_vocabulary
from pie_control.models.tokenizer import codec_of

# A token is consumed on the control thread: with llguidance's own limits an ambiguous grammar could
# hold it up for a tenth of a second at each one, with these for a few milliseconds. Rows of JSON
# schemas have some dozens of items, those of an object with 200 optional members 800.
_LIMITS = LLParserLimits(
    max_items_in_row=800, step_max_items=10_000, max_lexer_states=50_000, max_grammar_size=200_000
)

KINDS: dict[str, Callable[[str], str]] = {
    "json-schema": schema_grammar,
    "regex": LLMatcher.grammar_from_regex,
    "lark": LLMatcher.grammar_from_lark,
    "ebnf": ebnf_grammar,
}


def probe(folder: str, vocab_size: int, stops: list[int], kind: str, text: str) -> str:
    """Compiles a grammar and computes its first mask, to see whether that goes well.

    Returns:
        The grammar as `compiled` takes it.

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
