"""Calls as text: read by syntax trees, never evaluated; and the prompts that ask for them."""

from __future__ import annotations

import json
import re
from functools import cache
from keyword import iskeyword
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLMatcher
from support.tokenizers_of_tests import FOLDER, codec, dialect, stop_token

from asynclm.calling.options import Mode, Style
from asynclm.calling.prompts import system_prompt, task_text
from asynclm.cml.calls import Call, CallError, parse_call, write_call, write_value
from asynclm.cml.dialect import Marker
from asynclm.cml.grammars import Signature, block_grammar
from asynclm.cml.interrupts import Interrupt, InterruptManager
from asynclm.cml.nesting import DEEPEST, is_too_deep
from asynclm.tools.tool import Tool
from examples.pie_tiny.corpus.calls import PARALLEL, SEQUENTIAL
from examples.pie_tiny.corpus.cml import ASYNCHRONOUS
from examples.pie_tiny.corpus.cml import asynchronous as asynchronous_sample
from examples.pie_tiny.corpus.sample import Split
from examples.pie_tiny.corpus.tasks import Request
from examples.pie_tiny.corpus.tasks import system_prompt as trained_prompt
from pie_control.api.grammar.vocabulary import Vocabulary, load_vocabulary
from pie_control.models.tokenizer import TextCodec

NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True).filter(
    lambda name: not iskeyword(name)
)
VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(st.characters(codec="utf-8")),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(name=NAMES, arguments=st.dictionaries(NAMES, VALUES, max_size=4))
def test_what_is_written_is_read(name: str, arguments: dict[str, Any]) -> None:
    call = Call(name, arguments)
    assert parse_call(write_call(call)) == call


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ('f(a=1, b="x")', Call("f", {"a": 1, "b": "x"})),
        (" math.sqrt( x= 2 ) ", Call("math.sqrt", {"x": 2})),
        ("f(x=-1.5, y=[1, (2, 3)])", Call("f", {"x": -1.5, "y": [1, [2, 3]]})),
        ("f(z={'k': None})", Call("f", {"z": {"k": None}})),
        ("f(y=true, x=null)", Call("f", {"y": True, "x": None})),
        ("f(x='a' 'b')", Call("f", {"x": "ab"})),
        ('f(x="it\\u005bEND]")', Call("f", {"x": "it[END]"})),
    ],
)
def test_calls_in_python(text: str, call: Call) -> None:
    assert parse_call(text) == call


@pytest.mark.parametrize(
    "text",
    [
        *(f"f(x={value})" for value in ("g()", "y", "1j", "b'a'", "{1}", "{1: 2}", "f'{1}'")),
        *("", "f", "f(", "f(1)", "f(*x)", "f(**x)", "f(x=1)(2)", "f(x=1); g()", "f(a=1, a=2)"),
        *("lambda: 1", "f(x=1 if 1 else 2)", "f(x=1e999)", "__import__('os').system('ls')"),
        *("f" + "(" * 1000, "f(" + "-" * 1000 + "1)", "f(" + "a" * 70000 + ")", "f(x=[1][0])"),
    ],
)
def test_what_is_no_call(text: str) -> None:
    with pytest.raises(CallError):
        parse_call(text)


@pytest.mark.parametrize(
    ("given", "told"), [({"m": 1}, "typed has no argument m"), ({}, "typed lacks the argument n")]
)
def test_a_call_with_other_arguments_than_the_function_has(
    given: dict[str, Any], told: str
) -> None:
    typed = Tool("typed", _nothing, parameters={"n": {}}, required=("n",))
    with pytest.raises(CallError, match=f"^{told}$"):
        typed.arguments(Call("typed", given))


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ({(1, 2): 3}, '"{(1, 2): 3}"'),
        ([float("nan")], '"[nan]"'),
        ("x\ud800", r'"x\ud800"'),
        ({"ä": None}, '{"ä": null}'),
    ],
)
def test_results_that_json_has_not_are_texts(value: object, written: str) -> None:
    assert write_value(value) == written


@given(st.integers(1, 400), st.sampled_from(["(", "[", "{", "-", "not ", "1+", "x.", "lambda: "]))
def test_depth_is_never_underestimated(count: int, piece: str) -> None:
    assert is_too_deep(piece * count) or count <= DEEPEST


# What the embedded model was trained on


async def _nothing(arguments: dict[str, Any]) -> None:
    pass


def _tools(request: Request) -> list[Tool]:
    return [
        Tool(
            function.name,
            _nothing,
            parameters={name: {} for name in function.parameters},
            seconds=function.estimate / 100,
        )
        for function in request.functions
    ]


@pytest.mark.parametrize(
    ("mode", "words"),
    [(Mode.ASYNC, ASYNCHRONOUS), (Mode.SYNC, SEQUENTIAL), (Mode.SYNC_PARALLEL, PARALLEL)],
)
def test_prompts_are_those_that_the_embedded_model_was_trained_on(mode: Mode, words: str) -> None:
    for seed in range(20):
        sample = asynchronous_sample(Random(seed), Split())
        request = sample.request
        assert isinstance(request, Request)
        prompt = system_prompt(Style.COMPACT, mode, _tools(request), dialect(True))
        assert prompt == trained_prompt(words, request.functions)
        user = sample.prompt.partition("<|user|>\n")[2].partition("<|end|>")[0]
        messages = [{"role": "system", "content": prompt}, {"role": "user", "content": user}]
        rendered = TextCodec(FOLDER).apply_chat_template(json.dumps(messages), True)
        if words == ASYNCHRONOUS:
            assert codec(True).encode(rendered) == codec(True).encode(sample.prompt)


def test_interrupts_and_calls_are_those_that_it_was_trained_on() -> None:
    form = dialect(True)
    interrupts = 0
    for seed in range(40):
        sample = asynchronous_sample(Random(seed), Split())
        for piece in sample.pieces[1:]:
            if piece.learned:
                for text in re.findall(r"\[HEAD\](.*?)\[END\]", piece.text):
                    assert write_call(parse_call(text)) == text
                continue
            parts = piece.text.removesuffix("[END]").split("[END]")
            told = []
            for part in parts:
                identifier, _, value = part.removeprefix("[INTR]").partition("[HEAD]")
                if identifier == "user":
                    value = task_text(Style.COMPACT, value.removeprefix("also "))
                told.append(Interrupt(identifier, value))
                interrupts += 1
            assert InterruptManager(form).tokens(told) == form.codec.encode(piece.text)
    assert interrupts > 40


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
