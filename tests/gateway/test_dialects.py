"""Calls and thoughts in a model's text: found whatever the text's parts, and never shown."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pie_gateway.backend.job import MARK
from pie_gateway.backend.vocabulary import Vocabulary
from pie_gateway.dialects import Dialect, dialect_of
from pie_gateway.dialects.channels import splitter_of
from pie_gateway.dialects.families import FAMILIES, TOLD
from pie_gateway.dialects.forms import Call, Functions, read_calls
from pie_gateway.dialects.prompted import as_plain_text
from pie_gateway.dialects.splitter import Said, Thought, Words
from pie_gateway.dialects.written import Arguments

CALL = '{"name": "weather", "arguments": {"city": "Pargos"}}'
WEATHER = Call("weather", '{"city":"Pargos"}')
TIME = Call("time", "{}")
CITY = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
FUNCTIONS: Functions = {"weather": CITY, "time": {}}


def vocabulary(*markers: str) -> Vocabulary:
    return Vocabulary([], [marker.encode() for marker in markers])


def family(*markers: str) -> Dialect:
    """How a model with these tokens writes, whose program marks none."""
    return dialect_of(vocabulary(*markers), FUNCTIONS, marked=False)


HERMES = family("<think>", "<tool_call>")
MISTRAL = family("[TOOL_CALLS]")
LLAMA = family("<|python_tag|>")
PHI = family("<|tool_call|>")
GLM = family("<|observation|>")
DEEPSEEK = family("<｜tool▁calls▁begin｜>", "<think>")
COHERE = family("<|START_ACTION|>", "<|START_THINKING|>")
PLAIN = dialect_of(vocabulary("<tool_call>"))
V3 = "<｜tool▁call▁begin｜>{}<｜tool▁call▁end｜>"
CITY_TAG = "<parameter=city>\nPargos\n</parameter>"

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
            r'<tool_call>{"name": "time", "arguments": {"a": "\ud800"}}</tool_call>',
            r'<tool_call>{"name": "\udfff", "arguments": {}}</tool_call>',
            '<tool_call>{"name": "time", "arguments": "no JSON"}</tool_call>',
            '<tool_call>{"name": "time", "arguments": [1]}</tool_call>',
            '<tool_call>{"name": "unknown", "arguments": {}}</tool_call>',
        )
    ),
    (HERMES, f"<tool_call>{CALL}", [WEATHER]),
    (HERMES, '<tool_call>{"name": "weather", "arguments": {"city": "a</tool_call>b"}}</tool_call>',
     [Call("weather", '{"city":"a</tool_call>b"}')]),
    (HERMES, "<think>cut off", [Thought("cut off")]),
    (HERMES, "a <tool", [Words("a <tool")]),
    (HERMES, f"<tool_call>\n<function=weather>\n{CITY_TAG}\n<parameter=days>\n3\n</parameter>\n"
     "</function>\n</tool_call>", [Call("weather", '{"city":"Pargos","days":3}')]),
    (HERMES, "<tool_call><function=time></function></tool_call>", [TIME]),
    (HERMES, "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>7</arg_value>\n"
     "<arg_key>days</arg_key><arg_value>3</arg_value></tool_call>",
     [Call("weather", '{"city":"7","days":3}')]),
    (HERMES, "<tool_call>time</tool_call>", [TIME]),
    (MISTRAL, f"[TOOL_CALLS][{CALL}, {CALL}]", [WEATHER, WEATHER]),
    (MISTRAL, '[TOOL_CALLS]weather[ARGS]{"city": "Pargos"}[TOOL_CALLS]time[CALL_ID]a1[ARGS]{}',
     [WEATHER, TIME]),
    (LLAMA, '{"name": "weather", "parameters": {"city": "Pargos"}}', [WEATHER]),
    (LLAMA, f"<|python_tag|>{CALL}; {CALL}", [WEATHER, WEATHER]),
    (LLAMA, "[weather(city='Pargos'), time()]", [WEATHER, TIME]),
    (LLAMA, "[os.system('x')]", [Words("[os.system('x')]")]),
    (LLAMA, '{"temperature": 3}', [Words('{"temperature": 3}')]),
    (LLAMA, '{"name": "time"}', [Words('{"name": "time"}')]),
    (LLAMA, '{"name": "Bob", "age": 3}', [Words('{"name": "Bob", "age": 3}')]),
    (LLAMA, 'A {"name": "x"}', [Words('A {"name": "x"}')]),
    (PHI, f"<|tool_call|>[{CALL}]<|/tool_call|>", [WEATHER]),
    (PHI, f"<|tool_call|>[{CALL}]", [WEATHER]),
    (GLM, 'weather\n{"city": "Pargos"}', [WEATHER]),
    (GLM, "weather is fine", [Words("weather is fine")]),
    (DEEPSEEK, "<think>a</think>So.<｜tool▁calls▁begin｜>"
     + V3.format('function<｜tool▁sep｜>weather\n```json\n{"city": "Pargos"}\n```') + "\n"
     + V3.format("time<｜tool▁sep｜>{}") + "<｜tool▁calls▁end｜>",
     [Thought("a"), Words("So."), WEATHER, TIME]),
    (COHERE, "<|START_THINKING|>a<|END_THINKING|><|START_ACTION|>["
     '{"tool_call_id": "0", "tool_name": "weather", "parameters": {"city": "Pargos"}}'
     "]<|END_ACTION|>", [Thought("a"), WEATHER]),
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


EACH = pytest.mark.parametrize(
    ("dialect", "text", "wanted", "cut"),
    [*((*case, False) for case in CASES), *((*case, True) for case in CUT)],
)


def test_a_number_of_thousands_of_digits_is_no_call() -> None:
    text = f'<tool_call>{{"name": {"1" * 5000}}}</tool_call>'
    splitter = splitter_of(HERMES, "")
    assert joined(splitter.feed(text) + splitter.finish(False)) == [Words(text)]


def joined(said: list[Said]) -> list[Said]:
    found: list[Said] = []
    for one in said:
        if found and isinstance(one, Words) and isinstance(found[-1], Words):
            found[-1] = Words(found[-1].text + one.text)
        elif found and isinstance(one, Thought) and isinstance(found[-1], Thought):
            found[-1] = Thought(found[-1].text + one.text)
        elif isinstance(one, Arguments):
            last = found[-1]
            assert isinstance(last, Call), "pieces follow their call"
            found[-1] = Call(last.name, last.arguments + one.text)
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


@EACH
def test_parts_make_no_difference(
    dialect: Dialect, text: str, wanted: list[Said], cut: bool
) -> None:
    certain = "".join(one.text for one in wanted if isinstance(one, Words))
    for parts in partitions(text):
        splitter = splitter_of(dialect, "")
        told: list[Said] = []
        for part in parts:
            told += splitter.feed(part)
            shown = "".join(one.text for one in told if isinstance(one, Words))
            assert certain.startswith(shown), "nothing is shown that later is part of a call"
        assert joined(told + splitter.finish(cut)) == wanted, parts


CALLED: Functions = {
    "f": {
        "type": "object",
        "properties": {
            "text": {"type": "string"},
            "some": {"enum": ["1", "x"]},
            "number": {"type": "integer"},
            "list": {"type": "array"},
            "any": {},
        },
    }
}


def tagged(begin: str, key: str, end: str, last: str) -> Any:
    """Arguments between tags, as texts."""

    def write(given: dict[str, Any]) -> str:
        texts = {
            name: value if isinstance(value, str) else json.dumps(value)
            for name, value in given.items()
        }
        return begin + "".join(key.format(name) + text + end for name, text in texts.items()) + last

    return write


def in_json(form: str) -> Any:
    return lambda given: form.replace("GIVEN", json.dumps(given, ensure_ascii=False))


NAMED = in_json('{"name": "f", "arguments": GIVEN}')
CODER = tagged("<function=f>", "<parameter={}>\n", "\n</parameter>\n", "</function>")
KEYED = tagged("f\n", "<arg_key>{}</arg_key>\n<arg_value>", "</arg_value>\n", "")
INSIDE_OUT = in_json('{"arguments": GIVEN, "name": "f"}')


def marked(text: str) -> str:
    for marker in CHANNELS:
        text = text.replace(marker, MARK + marker)
    return text


def channel(write: Any) -> Any:
    form = marked("<|channel|>commentary to=functions.f<|message|>{}<|call|>")
    return lambda given: form.replace("{}", write(given))


def called(*markers: str, marks: bool = False) -> Dialect:
    return dialect_of(vocabulary(*markers), CALLED, marked=marks)


CHANNELS = ("<|channel|>", "<|message|>", "<|constrain|>", "<|start|>", "<|end|>", "<|call|>")
# How each family writes a call, of its dialect; whether the arguments come as they are written;
# what stands between calls, before and after them.
WRITTEN: dict[str, tuple[Dialect, Any, bool, tuple[str, str, str]]] = {
    name: (called(*markers, marks=name == "gpt-oss"), write, pieces, around)
    for name, markers, write, pieces, around in [
        ("Hermes", ["<tool_call>"], NAMED, True,
         ("So <tool_call>\n", "\n</tool_call>\n<tool_call>", "</tool_call>")),
        ("Coder", ["<tool_call>"], CODER, True,
         ("<tool_call>\n", "</tool_call><tool_call>", "\n</tool_call>.")),
        ("GLM 4.5", ["<tool_call>"], KEYED, True,
         ("<tool_call>", "</tool_call><tool_call>", "</tool_call>")),
        ("Mistral", ["[TOOL_CALLS]"], NAMED, True, ("[TOOL_CALLS][", ", ", "]")),
        ("Mistral, newer", ["[TOOL_CALLS]"], in_json("f[CALL_ID]a1[ARGS]GIVEN"),
         True, ("[TOOL_CALLS]", "[TOOL_CALLS]", "")),
        ("Llama", ["<|python_tag|>"], in_json('{"name": "f", "parameters": GIVEN}'), True,
         ("", "; ", "")),
        ("Phi", ["<|tool_call|>"], NAMED, True, ("<|tool_call|>[", ",", "]<|/tool_call|>")),
        ("GLM 4", ["<|observation|>"], in_json("f\nGIVEN"), True, ("", "\n", "")),
        ("DeepSeek", ["<｜tool▁calls▁begin｜>"],
         in_json("<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\nGIVEN\n```<｜tool▁call▁end｜>"),
         True, ("<｜tool▁calls▁begin｜>", "\n", "<｜tool▁calls▁end｜>")),
        ("Command", ["<|START_ACTION|>"],
         in_json('{"tool_call_id": "0", "tool_name": "f", "parameters": GIVEN}'), True,
         ("<|START_ACTION|>[", ",\n", "]<|END_ACTION|>")),
        ("gpt-oss", [*CHANNELS], channel(in_json("GIVEN")), True, ("", MARK + "<|start|>", "")),
        ("arguments first", ["<tool_call>"], INSIDE_OUT, False,
         ("<tool_call>", "\n", "</tool_call>")),
        ("JSON in JSON", ["<tool_call>"],
         lambda given: NAMED(json.dumps(given)), False, ("<tool_call>", "\n", "</tool_call>")),
        ("Python", ["<|python_tag|>"],
         lambda given: f"f({', '.join(f'{key}={value!r}' for key, value in given.items())})",
         False, ("[", ", ", "]")),
    ]
}  # fmt: skip
TEXTS = st.text(
    st.characters(codec="utf-8", exclude_characters=MARK), max_size=12
) | st.sampled_from(
    ["</tool_call>", "a\n", '"', "\\", "}", "{[", "</para", "\n</", "1", "x", "\u2028"]
)
GIVEN = st.fixed_dictionaries(
    {},
    optional={
        "text": TEXTS,
        "some": st.sampled_from(["1", "x"]),
        "number": st.integers(),
        "list": st.lists(st.integers() | TEXTS, max_size=3),
        "any": st.booleans() | st.lists(st.none()),
    },
)


@pytest.mark.parametrize("name", WRITTEN)
@given(calls=st.lists(GIVEN, min_size=1, max_size=3), cuts=st.lists(st.integers(0, 400)))
def test_pieces_of_arguments_joined_are_what_whole_calls_have(
    name: str, calls: list[dict[str, Any]], cuts: list[int]
) -> None:
    dialect, write, _, (begin, between, end) = WRITTEN[name]
    text = begin + between.join(map(write, calls)) + end
    whole = spoken(dialect, text)
    assume(sum(isinstance(each, Call) for each in whole) == len(calls))
    splitter = splitter_of(dialect, "", pieces=True)
    found: list[Said] = []
    for start, stop in pairwise([0, *sorted(cuts), len(text)]):
        found += splitter.feed(text[start:stop])
    found += splitter.finish()
    assert with_values(joined(found)) == with_values(whole)


@pytest.mark.parametrize("name", WRITTEN)
def test_arguments_come_as_they_are_written_where_the_form_allows_it(name: str) -> None:
    dialect, write, pieces, (begin, _, _) = WRITTEN[name]
    before, text, _ = (begin + write({"text": "word " * 40})).partition("word " * 20)
    splitter = splitter_of(dialect, "", pieces=True)
    told = [said for part in (before, text) for said in splitter.feed(part)]
    calls = [each for each in told if isinstance(each, Call)]
    shown = "".join(each.text for each in told if isinstance(each, Arguments))
    assert calls == ([Call("f", "")] if pieces else [])
    assert ("word " * 15 in shown) == pieces


@EACH
def test_a_stream_shows_the_words_and_thoughts_of_a_whole_answer(
    dialect: Dialect, text: str, wanted: list[Said], cut: bool
) -> None:
    """And its calls; more only where one had begun that never became whole."""
    splitter = splitter_of(dialect, "", pieces=True)
    told = joined([*(said for each in text for said in splitter.feed(each)), *splitter.finish(cut)])
    begun = [each for each in told if isinstance(each, Call) and not is_json(each.arguments)]
    wrong = [Words(text)] == wanted and "arguments" in text
    assert begun == [] or cut or wrong
    if not wrong:
        assert with_values([each for each in told if each not in begun]) == with_values(wanted)


def is_json(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def with_values(said: list[Said]) -> list[Any]:
    return [
        (each.name, json.loads(each.arguments)) if isinstance(each, Call) else each for each in said
    ]


ARGUMENTS = {
    "text": {"anyOf": [{"type": "null"}, {"oneOf": [{"type": "string"}]}]},
    "code": {"type": ["string", "null"]},
    "digit": {"enum": ["1", "2"]},
    "level": {"enum": [1, 2, True]},
    "one": {"const": "1"},
    "flag": {"$ref": "#/$defs/flag"},
    "number": {"allOf": [{"$ref": "#/$defs/a~1b"}, {"minimum": 5}]},
    "object": {"type": "object", "properties": {"a": {"type": "string"}}},
    "open": {},
    "far": {"$ref": "https://example.com/schema"},
    "round": {"$ref": "#/$defs/round"},
}
DEFINITIONS = {
    "flag": {"type": "boolean"},
    "a/b": {"type": ["number", "string"]},
    "round": {"anyOf": [{"$ref": "#/$defs/round"}] * 2},
    "arguments": {"properties": ARGUMENTS, "additionalProperties": {"type": "string"}},
}


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        *(("text", each, each) for each in ("12345", "true", "[1]", "NaN", "1e999", '"a"', "x\ny")),
        *(("text", each, None) for each in ("null", "None")),
        ("code", "00123", "00123"),
        ("other", "7", "7"),
        ("digit", "1", "1"),
        ("digit", '"2"', "2"),
        ("level", "1", 1),
        ("level", "True", True),
        ("one", "1", "1"),
        *(("flag", each, True) for each in ("true", "True")),
        ("flag", "perhaps", "perhaps"),
        ("number", "7.5", 7.5),
        ("number", "seven", "seven"),
        ("number", "1e999", "1e999"),
        *(("object", each, {"a": "b"}) for each in ('{"a": "b"}', "{'a': 'b'}")),
        *(("open", each, each) for each in ("7 apples", "(1, 2)", "b'x'", "{1}", "...", "1j")),
        *((name, "[7]", [7]) for name in ("open", "far", "round")),
        ("open", "12345678901234567890123", 12345678901234567890123),
    ],
)
def test_the_schema_says_what_the_text_of_an_argument_is(name: str, text: str, value: Any) -> None:
    schema = {"$ref": "#/$defs/arguments", "$defs": DEFINITIONS}
    for form in (
        "<function=f><parameter={}>\n{}\n</parameter></function>",
        "f<arg_key>{}</arg_key><arg_value>{}</arg_value>",
    ):
        [call] = read_calls(form.format(name, text), {"f": schema})
        assert json.loads(call.arguments) == {name: value}
        assert type(json.loads(call.arguments)[name]) is type(value)


def test_what_no_value_of_json_is_makes_no_call() -> None:
    values = ["1j", "...", 'b"x"', "{1}", "{[1]: 2}", "{1: 2}", "(1, 2)", "1e999", "f'{a}'"]
    for value in (*values, "[" * 99 + "]" * 99 + "[0]", "-" * 9999 + "1", "'\\ud83d'", "1" * 5000):
        assert read_calls(f"[time(n={value})]", FUNCTIONS, bare=True) == [], value
    for text in ("NaN", "-Infinity", "1e999", '"\\ud83d"', "[" * 9999):
        call = CALL.replace('"Pargos"', text)
        assert read_calls(call, FUNCTIONS) == [], text


def test_a_text_may_begin_within_a_thought() -> None:
    splitter = splitter_of(HERMES, "<|assistant|>\n<think>\n")
    assert joined([*splitter.feed("hm"), *splitter.feed("m</think>\nYes"), *splitter.finish()]) == [
        Thought("hmm"),
        Words("Yes"),
    ]


def spoken(dialect: Dialect, text: str) -> list[Said]:
    splitter = splitter_of(dialect, "")
    return joined([*splitter.feed(text), *splitter.finish()])


def test_a_marker_that_is_a_token_counts_as_a_token_alone() -> None:
    words = vocabulary("<think>", "</think>", "<tool_call>", "</tool_call>")
    dialect = dialect_of(words, FUNCTIONS)
    assert dialect.marks == {0: "<think>", 1: "</think>", 2: "<tool_call>", 3: "</tool_call>"}
    said = "The tag <think> opens a thought, <tool_call> a call."
    assert spoken(dialect, said) == [Words(said)]
    real = f"{MARK}<think><think>?{MARK}</think>{MARK}<tool_call>{CALL}{MARK}</tool_call>"
    assert spoken(dialect, real) == [Thought("<think>?"), WEATHER]


TALKS = [
    ("<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Hello!",
     [Thought("hm"), Words("Hello!")]),
    ("<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>commentary"
     ' to=functions.weather <|constrain|>json<|message|>{"city": "Pargos"}',
     [Words("I look."), WEATHER]),
    (" to=functions.time<|channel|>commentary<|message|>{}<|call|>", [TIME]),
    ("<|channel|>final<|message|>cut", [Words("cut")]),
    ("no channel", [Words("no channel")]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "wanted"), TALKS)
def test_what_is_said_in_channels(text: str, wanted: list[Said]) -> None:
    dialect = dialect_of(vocabulary(*CHANNELS), FUNCTIONS)
    for parts in partitions(marked(text)):
        splitter = splitter_of(dialect, "")
        told = [said for part in parts for said in splitter.feed(part)]
        assert joined(told + splitter.finish()) == wanted, parts


def test_a_text_that_is_held_to_a_form_has_neither_calls_nor_thoughts() -> None:
    words = vocabulary("<|python_tag|>", "<think>")
    assert spoken(dialect_of(words, FUNCTIONS, held=True), CALL) == [Words(CALL)]


def test_the_documentation_has_a_row_for_each_family() -> None:
    page = (Path(__file__).parents[2] / "docs/http.md").read_text()
    rows = re.findall(r"^\| (.+?) \| (.+?) \|$", page, re.MULTILINE)
    assert {each.name for each in (*FAMILIES, TOLD)} <= {name for name, _ in rows}


def test_special_tokens_of_a_vocabulary() -> None:
    words = Vocabulary([("<a>", 1), ("<b>", 2), ("[TOOL_CALLS]", 3), ("<c>", 9)], [])
    assert words.hidden() == [(1, 3), (9, 9)]
    assert words.hidden(["[TOOL_CALLS]"]) == [(1, 2), (9, 9)]
    assert Vocabulary([], []).hidden() == []
    assert json.loads(WEATHER.arguments) == {"city": "Pargos"}


def test_results_in_a_row_are_one_message_of_the_user() -> None:
    results = [{"role": "tool", "content": text} for text in ("rain", "noon")]
    asked = {"role": "user", "content": "And?"}
    first, second = (f"<tool_response>\n{text}\n</tool_response>" for text in ("rain", "noon"))
    assert as_plain_text([*results, asked, *results[:1]], []) == [
        {"role": "user", "content": f"{first}\n{second}"},
        asked,
        {"role": "user", "content": first},
    ]
