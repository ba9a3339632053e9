"""The grammar of a block, in the engine that the server uses: which calls it lets through."""

from __future__ import annotations

from functools import cache

import pytest
from llguidance import LLMatcher
from support.tokenizers_of_tests import FOLDER, dialect, stop_token

from asynclm.choices import Strictness, Syntax
from asynclm.cml.dialect import Marker
from asynclm.cml.grammars import Signature, block_grammar
from pie_control.api.grammar.vocabulary import Vocabulary, load_vocabulary
from pie_control.models.tokenizer import TextCodec

FUNCTIONS = [
    Signature("f", {"a": {}, "b": {"type": "integer"}, "c": {"enum": ["x", 'y"']}}, ("b",)),
    Signature("m.g", {}),
]
PYTHON = {
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
JSON = {
    '{"name": "m.g", "arguments": {}}': True,
    '{"name": "f", "arguments": {"b": 2}}': True,
    '{"name": "f", "arguments": {"a": null, "b": 2, "c": "x"}}': True,
    '{"name": "f", "arguments": {}}': False,
    '{"name": "f", "arguments": {"b": "2"}}': False,
    '{"name": "h", "arguments": {}}': False,
}
SHAPES = {"f(": False, "g(1, x=2)": True, "g(x=y)": False, "g(x=1) + 1": False, "a.b.c()": True}


@cache
def vocabulary() -> Vocabulary:
    return load_vocabulary(TextCodec(FOLDER), 2304, [stop_token()])


def lets_through(
    markers: bool,
    syntax: Syntax,
    strictness: Strictness,
    call: str,
    *,
    identifier: str = "a1",
    named: bool = False,
) -> bool:
    form = dialect(markers)
    grammar = block_grammar(form, syntax, FUNCTIONS, strictness, named=named)
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
def test_calls_of_the_tools(markers: bool) -> None:
    for call, valid in PYTHON.items():
        assert lets_through(markers, Syntax.PYTHON, Strictness.TOOLS, call) is valid, call
    for call, valid in JSON.items() if markers else ():
        assert lets_through(markers, Syntax.JSON, Strictness.TOOLS, call) is valid, call


@pytest.mark.parametrize("markers", [True, False])
def test_any_call_and_anything(markers: bool) -> None:
    for call, valid in SHAPES.items():
        assert lets_through(markers, Syntax.PYTHON, Strictness.CALLS, call) is valid, call
        assert lets_through(markers, Syntax.PYTHON, Strictness.MARKERS, call), call
    for call in JSON:
        assert lets_through(markers, Syntax.JSON, Strictness.CALLS, call), call
    assert not lets_through(markers, Syntax.JSON, Strictness.CALLS, "g()")


@pytest.mark.parametrize("markers", [True, False])
@pytest.mark.parametrize("strictness", list(Strictness))
def test_an_identifier_is_optional(markers: bool, strictness: Strictness) -> None:
    forms = [(Syntax.PYTHON, call, valid) for call, valid in PYTHON.items()]
    forms += [(Syntax.JSON, call, valid) for call, valid in JSON.items() if markers]
    for syntax, call, valid in forms:
        wanted = valid or strictness is not Strictness.TOOLS
        for identifier in ("", "f", "f1", "m", "h"):  # also those that functions are called
            found = lets_through(markers, syntax, strictness, call, identifier=identifier)
            assert found is wanted, (call, identifier)
        assert not lets_through(markers, syntax, strictness, call, identifier="", named=True)
    for wrong in ("1", "a b", "a" * 33):
        call = "m.g()"
        assert not lets_through(markers, Syntax.PYTHON, strictness, call, identifier=wrong)
