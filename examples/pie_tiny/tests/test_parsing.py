"""The parser of CML: it reads what the generators write, however it is cut, and names what is
wrong.
"""

from __future__ import annotations

import re
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples.pie_tiny.corpus.calls import call_block
from examples.pie_tiny.corpus.functions import write_call
from examples.pie_tiny.corpus.sample import SPECIAL_TOKENS
from examples.pie_tiny.parsing import (
    CallBlock,
    CmlError,
    ParsedCall,
    Parser,
    TextBlock,
    TrapBlock,
    Violation,
    parse,
    parse_call,
)

names = st.from_regex(r"[a-z]{2,6}_[a-z]{2,6}", fullmatch=True)
values = st.integers(-999, 999) | st.from_regex(r"[a-zA-Z ]{0,9}", fullmatch=True)
calls = st.tuples(names, st.dictionaries(names, values, max_size=3))
plain_text = st.text(min_size=1).filter(
    lambda text: not any(token in text for token in SPECIAL_TOKENS)
)
written = st.lists(calls | st.just(None) | plain_text, max_size=6)


def _name(number: int) -> str:
    return f"a{number}" if number % 3 else ""  # which is optional


def as_text(items: list[object]) -> str:
    parts = []
    for number, item in enumerate(items):
        if isinstance(item, tuple):
            name, arguments = item
            parts.append(call_block(_name(number), write_call(name, list(arguments.items()))))
        else:
            parts.append("[TRAP][END]" if item is None else str(item))
    return "".join(parts)


def as_blocks(items: list[object]) -> list[object]:
    blocks: list[object] = []
    for number, item in enumerate(items):
        if isinstance(item, tuple):
            blocks.append(CallBlock(_name(number), ParsedCall(*item)))
        elif item is None:
            blocks.append(TrapBlock())
        elif blocks and isinstance(blocks[-1], TextBlock):
            blocks[-1] = TextBlock(blocks[-1].text + str(item))
        else:
            blocks.append(TextBlock(str(item)))
    return blocks


@settings(max_examples=40)
@given(written)
def test_reads_what_was_written(items: list[object]) -> None:
    assert parse(as_text(items)) == as_blocks(items)


@settings(max_examples=40)
@given(written, st.integers())
def test_is_the_same_however_it_is_cut(items: list[object], seed: int) -> None:
    random = Random(seed)
    parser, blocks = Parser(), []
    for part in _tokens(as_text(items)):
        if part in SPECIAL_TOKENS or random.random() < 0.5:
            blocks += parser.feed(part)
        else:
            for letter in part:
                blocks += parser.feed(letter)
    assert blocks + parser.finish() == as_blocks(items)


def _tokens(text: str) -> list[str]:
    return re.split("(" + "|".join(map(re.escape, SPECIAL_TOKENS)) + ")", text)


@pytest.mark.parametrize(
    ("text", "violation"),
    [
        ("[INTR]a1[HEAD]3[END]", Violation.INTERRUPT),
        ("[CALL]a1[INTR]", Violation.INTERRUPT),
        ("Done<|user|>", Violation.CHAT),
        ("[CALL]a1[HEAD]f()<|end|>", Violation.CHAT),
        ("[END]", Violation.STRAY),
        ("[HEAD]", Violation.STRAY),
        ("[CALL]a1[END]", Violation.CALL),
        ("[CALL]a1[HEAD][CALL]", Violation.STRAY),
        ("[TRAP][CALL]", Violation.STRAY),
        ("[CALL][HEAD]f()[END]", Violation.IDENTIFIER),
        ("[CALL]1a[HEAD]f()[END]", Violation.IDENTIFIER),
        ("[CALL]a 1[HEAD]f()[END]", Violation.IDENTIFIER),
        ("[CALL]for[HEAD]f()[END]", Violation.IDENTIFIER),
        ("[CALL]a1[HEAD]f()[END][CALL]a1[HEAD]g()[END]", Violation.REPEATED),
        ("[CALL]a1[HEAD][END]", Violation.CALL),
        ("[TRAP]a1[END]", Violation.TRAP),
        ("[CALL]a1[HEAD]f()", Violation.UNCLOSED),
        ("[TRAP]", Violation.UNCLOSED),
    ],
)
def test_names_the_violation(text: str, violation: Violation) -> None:
    with pytest.raises(CmlError) as caught:
        parse(text)
    assert caught.value.violation == violation


def test_calls_are_compared_by_name_and_typed_arguments() -> None:
    call = parse_call('f(a=1, b="x")')
    assert call.same(parse_call("f(b='x',a=1)"))
    for other in (
        'f(a=True, b="x")',
        'f(a=1.0, b="x")',
        'f(a="1", b="x")',
        "f(a=1)",
        'g(a=1, b="x")',
    ):
        assert not call.same(parse_call(other))
