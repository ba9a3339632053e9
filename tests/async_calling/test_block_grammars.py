"""The grammar of a block, in the engine that the server uses: which calls it lets through."""

from __future__ import annotations

from functools import cache

import pytest
from llguidance import LLMatcher
from support.tokenizers_of_tests import FOLDER, dialect, stop_token

from asynclm.cml.dialect import Marker
from asynclm.cml.grammars import Signature, block_grammar
from pie_control.api.grammar.vocabulary import Vocabulary, load_vocabulary
from pie_control.models.tokenizer import TextCodec

FUNCTIONS = [
    Signature("f", {"a": {}, "b": {"type": "integer"}, "c": {"enum": ["x", 'y"']}}, ("b",)),
    Signature("m.g", {}),
]
CALLS = {
    "f(b=2)": True,
    'f(a=1, b=2, c="x")': True,
    'f(a=[1, {"k": (-2.5e3, None)}],b=2)': True,
    'f(b=2, c="y\\"")': True,
    "m.g()": True,
    "f(a=1)": False,
    "f()": False,
    "f(b=1, a=2)": False,
    "f(b=1, b=2)": False,
    'f(b="2")': False,
    'f(b=2, c="z")': False,
    "m.g(a=1)": False,
    "h()": False,
}


@cache
def vocabulary() -> Vocabulary:
    return load_vocabulary(TextCodec(FOLDER), 2304, [stop_token()])


def lets_through(markers: bool, call: str, *, identifier: str = "a1", named: bool = False) -> bool:
    form = dialect(markers)
    grammar = block_grammar(form, FUNCTIONS, named=named)
    assert grammar.kind == "lark"
    matcher = LLMatcher(vocabulary().tokenizer, LLMatcher.grammar_from_lark(grammar.text))
    assert not matcher.is_error(), matcher.get_error()
    head = (identifier, Marker.HEAD) if identifier else ()
    tokens = form.encode_block((*head, call, Marker.END))
    if matcher.validate_tokens(tokens) < len(tokens):
        return False
    matcher.consume_tokens(tokens)
    return bool(matcher.is_accepting())


@pytest.mark.parametrize("markers", [True, False])
def test_calls_of_the_tools_with_an_identifier_or_without(markers: bool) -> None:
    for call, valid in CALLS.items():
        for identifier in ("", "a1", "f", "f1", "m", "h"):  # also those that functions are called
            assert lets_through(markers, call, identifier=identifier) is valid, (call, identifier)
        assert not lets_through(markers, call, identifier="", named=True)
    for wrong in ("1", "a b", "a" * 33):
        assert not lets_through(markers, "m.g()", identifier=wrong)
