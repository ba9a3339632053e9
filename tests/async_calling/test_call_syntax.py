"""Calls as text: read by syntax trees, never evaluated; and the prompts that ask for them."""

from __future__ import annotations

import json
import re
from keyword import iskeyword
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tokenizers_of_tests import FOLDER, codec, dialect

from asynclm.calling.prompts import system_prompt, task_text
from asynclm.choices import Mode, Style, Syntax
from asynclm.cml.calls import Call, CallError, parse_call, write_call
from asynclm.cml.interrupts import Interrupt, InterruptManager
from asynclm.cml.nesting import DEEPEST, is_too_deep
from asynclm.tools.evaluator import evaluate
from asynclm.tools.tool import Tool
from asynclm.tools.vocabulary import EvaluationError
from examples.pie_tiny.corpus.calls import PARALLEL, SEQUENTIAL
from examples.pie_tiny.corpus.cml import ASYNCHRONOUS
from examples.pie_tiny.corpus.cml import asynchronous as asynchronous_sample
from examples.pie_tiny.corpus.sample import Split
from examples.pie_tiny.corpus.tasks import Request
from examples.pie_tiny.corpus.tasks import system_prompt as trained_prompt
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


@pytest.mark.parametrize("syntax", list(Syntax))
@given(name=NAMES, arguments=st.dictionaries(NAMES, VALUES, max_size=4))
def test_what_is_written_is_read(syntax: Syntax, name: str, arguments: dict[str, Any]) -> None:
    call = Call(name, arguments)
    assert parse_call(write_call(call, syntax), syntax) == call


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ('f(a=1, b="x")', Call("f", {"a": 1, "b": "x"})),
        (" math.sqrt( 2 ) ", Call("math.sqrt", {}, (2,))),
        ("f(x=-1.5, y=[1, (2, 3)])", Call("f", {"x": -1.5, "y": [1, [2, 3]]})),
        ("f(z={'k': None})", Call("f", {"z": {"k": None}})),
        ("f(true, x=null)", Call("f", {"x": None}, (True,))),
        ("f('a' 'b')", Call("f", {}, ("ab",))),
        ('f("it\\u005bEND]")', Call("f", {}, ("it[END]",))),
    ],
)
def test_calls_in_python(text: str, call: Call) -> None:
    assert parse_call(text, Syntax.PYTHON) == call


@pytest.mark.parametrize(
    "text",
    [
        *("", "f", "f(", "f(x=g())", "f(x=y)", "f(*x)", "f(**x)", "f(x=1)(2)", "f(x=1); g()"),
        *("f(a=1, a=2)", "f(x=1j)", "f(x=b'a')", "f(x={1})", "f(x={1: 2})", "f(x=f'{1}')"),
        *("lambda: 1", "f(x=1 if 1 else 2)", "f(x=1e999)", "__import__('os').system('ls')"),
        *("f" + "(" * 1000, "f(" + "-" * 1000 + "1)", "f(" + "a" * 70000 + ")", "f(x=[1][0])"),
    ],
)
def test_what_is_no_call(text: str) -> None:
    with pytest.raises(CallError):
        parse_call(text, Syntax.PYTHON)


@pytest.mark.parametrize(
    "text",
    [*("", "{}", "[]", "1", '{"name": 1}', '{"name": "f", "arguments": []}', "[" * 1000)],
)
def test_what_is_no_call_in_json(text: str) -> None:
    with pytest.raises(CallError):
        parse_call(text, Syntax.JSON)


@given(st.integers(1, 400), st.sampled_from(["(", "[", "{", "-", "not ", "1+", "x.", "lambda: "]))
def test_depth_is_never_underestimated(count: int, piece: str) -> None:
    assert is_too_deep(piece * count) or count <= DEEPEST


# The sandbox


@pytest.mark.parametrize(
    ("program", "value"),
    [
        ("1 + 2 * 3", 7),
        ("x = 3\ny = x ** 2\ny", 9),
        ("result = [i * i for i in range(5) if i % 2]", [1, 9]),
        ("sorted({'b': 1, 'a': 2}.items())", [("a", 2), ("b", 1)]),
        ("n = 0\nwhile True:\n    n += 1\n    if n > 9:\n        break\nn", 10),
        ("total = 0\nfor a, b in [(1, 2), (3, 4)]:\n    total += a * b\ntotal", 14),
        ("'-'.join(w.upper() for w in 'a b'.split())", "A-B"),
        ("f'{3.14159:.2f}|{1:>4}'", "3.14|   1"),
        ("max(round(math.sqrt(n)), 2) if n > 1 else None", 5),
        ("d = {}\nd['a'] = [1]\nd['a'].append(2)\nd", {"a": [1, 2]}),
        ("1 < 2 < 3 and not (1 in [2])", True),
        ("[1, 2, 3, 4][1:3]", [2, 3]),
    ],
)
def test_programs(program: str, value: object) -> None:
    assert evaluate(program, {"n": 25}) == value


@pytest.mark.parametrize(
    "program",
    [
        *("().__class__", "import os", "open('/etc/passwd')", "__import__('os')", "eval('1')"),
        *("'{0.__class__}'.format(1)", "'%s' % 1", "(lambda: 1)()", "def f(): pass", "x", "n.real"),
        *("while True: pass", "9 ** 9 ** 9", "'x' * 10 ** 9", "[0] * 10 ** 9", "range(10 ** 9)"),
        *("[[0] * 1000 for _ in range(100000)]", "'a'.join(['b' * 99999] * 9)", "1 / 0", "("),
        "a = [1]\nfor i in range(60):\n    a = [a, a]\nstr(a)",
        "a = [1]\nfor i in range(60):\n    a = [a, a]\na == a",
        "a = []\na.append(a)\na",
        "a = 'x'\nwhile True:\n    a += a",
        "a = 1\nwhile True:\n    a = a * 3",
        "a = [0]\nwhile True:\n    a = a + [0]",
        "f'{1:999999999}'",
        "sum([[1]] * 9, [])",
        *("x = " + "(" * 500, "1" + "+1" * 5000, "if 1:\n" + " " * 60 + "1"),
    ],
)
def test_programs_that_are_refused(program: str) -> None:
    with pytest.raises(EvaluationError):
        evaluate(program, {"n": 1})


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
    [
        (Mode.ASYNC, ASYNCHRONOUS),
        (Mode.ASYNC_NAIVE, ASYNCHRONOUS),
        (Mode.SYNC, SEQUENTIAL),
        (Mode.SYNC_PARALLEL, PARALLEL),
    ],
)
def test_prompts_are_those_that_the_embedded_model_was_trained_on(mode: Mode, words: str) -> None:
    for seed in range(20):
        sample = asynchronous_sample(Random(seed), Split())
        request = sample.request
        assert isinstance(request, Request)
        prompt = system_prompt(Style.COMPACT, mode, _tools(request), Syntax.PYTHON, dialect(True))
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
                    assert write_call(parse_call(text, Syntax.PYTHON)) == text
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
