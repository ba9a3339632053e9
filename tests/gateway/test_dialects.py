"""Calls and thoughts in a model's text: found whatever the text's parts, and never shown."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from random import Random

import pytest

from pie_gateway.backend.vocabulary import Vocabulary
from pie_gateway.dialects.dialect import THOUGHT, Dialect, dialect_of
from pie_gateway.dialects.splitter import Call, Said, Splitter, Thought, Words

CALL = '{"name": "weather", "arguments": {"city": "Pargos"}}'
WEATHER = Call("weather", '{"city":"Pargos"}')


def vocabulary(*markers: str) -> Vocabulary:
    return Vocabulary([], [marker.encode() for marker in markers])


HERMES = dialect_of(vocabulary("<think>"), calls=True)
MISTRAL = dialect_of(vocabulary("[TOOL_CALLS]"), calls=True)
LLAMA = dialect_of(vocabulary("<|python_tag|>"), calls=True)
PLAIN = dialect_of(vocabulary("<tool_call>"), calls=False)

CASES = [
    (HERMES, "Hello <b>", [Words("Hello <b>")]),
    (HERMES, f"<tool_call>\n{CALL}\n</tool_call>", [WEATHER]),
    (HERMES, f"So: <tool_call>{CALL}</tool_call><tool_call>{CALL}</tool_call>",
     [Words("So: "), WEATHER, WEATHER]),
    (HERMES, "<think>well</think>\n\nYes", [Thought("well"), Words("Yes")]),
    (HERMES, "<tool_call>no JSON</tool_call>.", [Words("<tool_call>no JSON</tool_call>.")]),
    *(
        (HERMES, text, [Words(text)])
        for text in (
            r'<tool_call>{"name": "f", "arguments": {"a": "\ud800"}}</tool_call>',
            r'<tool_call>{"name": "\udfff", "arguments": {}}</tool_call>',
            '<tool_call>{"name": "f", "arguments": "no JSON"}</tool_call>',
        )
    ),
    (HERMES, f"<tool_call>{CALL}", [WEATHER]),
    (HERMES, "<think>cut off", [Thought("cut off")]),
    (HERMES, "a <tool", [Words("a <tool")]),
    (MISTRAL, f"[TOOL_CALLS][{CALL}, {CALL}]", [WEATHER, WEATHER]),
    (LLAMA, '{"name": "weather", "parameters": {"city": "Pargos"}}', [WEATHER]),
    (LLAMA, f"<|python_tag|>{CALL}; {CALL}", [WEATHER, WEATHER]),
    (LLAMA, '{"temperature": 3}', [Words('{"temperature": 3}')]),
    (LLAMA, 'A {"name": "x"}', [Words('A {"name": "x"}')]),
    (PLAIN, f"<tool_call>{CALL}", [Words(f"<tool_call>{CALL}")]),
]  # fmt: skip
BEGUN = '{"name": "weather", "arg'
CUT = [
    (HERMES, f"So: <tool_call>{CALL}</tool_call><tool_call>{BEGUN}", [Words("So: "), WEATHER]),
    (HERMES, f"<tool_call>{CALL}\n{BEGUN}", [WEATHER]),
    (HERMES, f"<tool_call>{CALL}</tool_call><tool", [WEATHER]),
    (HERMES, f"<tool_call>{CALL}</tool_call>So <b", [WEATHER, Words("So <b")]),
    (HERMES, f"<tool_call>{BEGUN}", [Words(f"<tool_call>{BEGUN}")]),
    (MISTRAL, f"[TOOL_CALLS][{CALL}, {BEGUN}", [WEATHER]),
    (MISTRAL, f"[TOOL_CALLS][{CALL}, ", [WEATHER]),
    (MISTRAL, f"[TOOL_CALLS][{CALL}, {CALL}", [WEATHER, WEATHER]),
    (MISTRAL, f"[TOOL_CALLS][{CALL}]", [WEATHER]),
    (LLAMA, f"{CALL}; {BEGUN}", [WEATHER]),
    (LLAMA, f"<|python_tag|>{CALL}; {BEGUN}", [WEATHER]),
    (LLAMA, '{"name": "Bob"} is an ', [Words('{"name": "Bob"} is an ')]),
    (LLAMA, '{"temperature": 3, "wi', [Words('{"temperature": 3, "wi')]),
    (PLAIN, f"<tool_call>{CALL}{BEGUN}", [Words(f"<tool_call>{CALL}{BEGUN}")]),
]  # fmt: skip


def joined(said: list[Said]) -> list[Said]:
    found: list[Said] = []
    for one in said:
        if found and isinstance(one, Words) and isinstance(found[-1], Words):
            found[-1] = Words(found[-1].text + one.text)
        elif found and isinstance(one, Thought) and isinstance(found[-1], Thought):
            found[-1] = Thought(found[-1].text + one.text)
        else:
            found.append(one)
    return found


def partitions(text: str) -> Iterator[list[str]]:
    """In parts of each size, in two at each place, and at random."""
    for size in range(1, len(text) + 1):
        yield [text[at : at + size] for at in range(0, len(text), size)]
        yield [text[:size], text[size:]]
    random = Random(1)
    for _ in range(20):
        cuts = sorted(random.sample(range(len(text)), random.randint(2, min(9, len(text) - 1))))
        yield [text[start:end] for start, end in pairwise([0, *cuts, len(text)])]


@pytest.mark.parametrize(
    ("dialect", "text", "wanted", "cut"),
    [*((*case, False) for case in CASES), *((*case, True) for case in CUT)],
)
def test_parts_make_no_difference(
    dialect: Dialect, text: str, wanted: list[Said], cut: bool
) -> None:
    certain = "".join(one.text for one in wanted if isinstance(one, Words))
    for parts in partitions(text):
        splitter = Splitter(dialect)
        told: list[Said] = []
        for part in parts:
            told += splitter.feed(part)
            shown = "".join(one.text for one in told if isinstance(one, Words))
            assert certain.startswith(shown), "nothing is shown that later is part of a call"
        assert joined(told + splitter.finish(cut)) == wanted, parts


def test_a_text_may_begin_within_a_thought() -> None:
    splitter = Splitter(HERMES, THOUGHT)
    assert joined([*splitter.feed("hm"), *splitter.feed("m</think>\nYes"), *splitter.finish()]) == [
        Thought("hmm"),
        Words("Yes"),
    ]


def test_special_tokens_of_a_vocabulary() -> None:
    words = Vocabulary([("<a>", 1), ("<b>", 2), ("[TOOL_CALLS]", 3), ("<c>", 9)], [])
    assert words.hidden() == [(1, 3), (9, 9)]
    assert words.hidden(["[TOOL_CALLS]"]) == [(1, 2), (9, 9)]
    assert Vocabulary([], []).hidden() == []
    assert json.loads(WEATHER.arguments) == {"city": "Pargos"}
