"""Calls of tools in what models write, and options from the parameters of `main`."""

# ruff: noqa: E501 - what models write

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from support.sdk_rig import Rig

from inferlet import mcp, tools
from inferlet.tools import ToolCall

ADD = ToolCall("add", {"a": 1, "b": "x"})


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        (
            'Well.\n<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": "x"}}\n</tool_call>',
            [ADD],
        ),
        (
            '[TOOL_CALLS] [{"name": "add", "arguments": {"a": 1, "b": "x"}}, {"name": "now", "arguments": {}}]',
            [ADD, ToolCall("now")],
        ),
        ('<|python_tag|>{"name": "add", "parameters": {"a": 1, "b": "x"}}<|eom_id|>', [ADD]),
        ('[add(a=1, b="x"), now()]', [ADD, ToolCall("now")]),
        ('[CALL]a1[HEAD]add(a=1, b="x")[END][CALL]b1[HEAD]now()[END]', [ADD, ToolCall("now")]),
        (
            'Thought: I know.\nAction: lookup("Rena (the fox)", "city")',
            [ToolCall("lookup", {}, ("Rena (the fox)", "city"))],
        ),
        ('f(")", [1, (2, 3)]) and g(x=f)', [ToolCall("f", {}, (")", [1, (2, 3)]))]),
        ("open(path).read(), then f(x)(1) and f(**{'a': 1}) or not(1)", []),
        ("g(x=f) and h(5)", [ToolCall("h", {}, (5,))]),
        ('{"name": 3} {"name": "add", "arguments": {"a": 1, "b": "x"}', []),
        ("a text (with a remark), f(not closed", []),
        ("", []),
    ],
)
def test_parse(text: str, calls: list[ToolCall]) -> None:
    assert tools.parse(text) == calls


def test_schema() -> None:
    schema = tools.schema(
        {"now": {"type": "object", "additionalProperties": False}, "add": {"required": ["a"]}}
    )
    jsonschema.validate({"name": "add", "arguments": {"a": 1}}, schema)
    own = {"$defs": {"N": {"const": 2}}, "properties": {"n": {"$ref": "#/$defs/N"}}}
    jsonschema.validate({"name": "f", "arguments": {"n": 2}}, tools.schema({"f": own}))
    for wrong in ({"name": "add", "arguments": {}}, {"name": "mul", "arguments": {"a": 1}}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema)
    listed: list[Any] = [
        {"type": "function", "function": {"name": "add", "parameters": own}},
        {"type": "function", "name": "sub", "parameters": own},
        {"name": "mul", "input_schema": own},
        {"name": "div", "inputSchema": own},
        mcp.Tool("now", None, None, own, None),
    ]
    names = ("add", "sub", "mul", "div", "now")
    assert tools.schema(listed) == tools.schema(dict.fromkeys(names, own))
    assert tools.schema([{"name": "f"}]) == tools.schema({"f": {"type": "object"}})
    wrong_lists: list[list[Any]] = [[{"type": "function"}], ["f"], [{"function": "f"}]]
    for bad in wrong_lists:
        with pytest.raises(ValueError, match="a tool is"):
            tools.schema(bad)


PROGRAM = '''
"""Does something.

More of it.
"""
async def main(prompt: str, width: int = 4, scale: float = 1.5, loud: bool = False,
               words: list[str] = [], name: str | None = None):
    """Returns them.

    Args:
        prompt: what to continue,
            and so on.
        width: 100 % of it.
    """
    return [prompt, width, scale, loud, words, name]
'''


@pytest.mark.parametrize(
    ("args", "answer"),
    [
        (["--prompt", "a"], '["a", 4, 1.5, false, [], null]'),
        (
            ["--prompt=a", "--loud", "--words", "x", "y", "--scale", "2"],
            '["a", 4, 2.0, true, ["x", "y"], null]',
        ),
        (
            [
                "--words",
                "x",
                "--prompt",
                "- oh",
                "--words",
                "y",
                "z",
                "--width",
                "-5",
                "--words=-w",
            ],
            '["- oh", -5, 1.5, false, ["x", "y", "z", "-w"], null]',
        ),
        (["--prompt", "-h", "--name", "--help"], '["-h", 4, 1.5, false, [], "--help"]'),
        (["--name", "--loud", "--prompt", "--x y"], '["--x y", 4, 1.5, false, [], "--loud"]'),
        (["--prompt", "--", "--name="], '["--", 4, 1.5, false, [], ""]'),
        (["--name", "--width=9", "--prompt=-p"], '["-p", 4, 1.5, false, [], "--width=9"]'),
    ],
)
def test_options(rig: Rig, args: list[str], answer: str) -> None:
    assert rig.run(PROGRAM, *args).text == answer


def test_what_a_form_is_made_from(rig: Rig) -> None:
    told = json.loads(rig.run(PROGRAM, "--pie-options").text)
    assert told["description"] == "Does something.\n\nMore of it."
    prompt, width, scale, loud, words, name = told["options"]
    assert prompt == {
        "option": "--prompt",
        "type": "str",
        "choices": [],
        "many": False,
        "required": True,
        "default": None,
        "help": "what to continue, and so on.",
    }
    assert (width["type"], width["default"], width["required"]) == ("int", "4", False)
    assert (scale["type"], loud["type"], loud["default"]) == ("float", "bool", "False")
    assert (words["type"], words["many"], name["default"]) == ("str", True, None)
    choice = "from typing import Literal\ndef main(way: Literal['fast', 'good'] = 'good'): pass"
    [way] = json.loads(rig.run(choice, "--pie-options").text)["options"]
    assert (way["choices"], way["default"]) == (["fast", "good"], "good")
    raw = json.loads(rig.run("def main(args): return 'ran'", "--pie-options").text)
    assert raw == {"description": "", "options": None}


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (
            ["--help"],
            [
                "Does something.\n\nMore of it.",
                "--width WIDTH",
                "what to continue, and so on.",
                "100 % of it. (default: 4)",
            ],
        ),
        ([], ["usage: ", "required: --prompt"]),
        (["--prompt", "a", "--width", "x"], ["usage: ", "invalid int value: 'x'"]),
    ],
)
def test_options_that_are_asked_for_or_wrong(rig: Rig, args: list[str], told: list[str]) -> None:
    outcome: Any = rig.run(PROGRAM, *args)
    assert outcome.ok == (args == ["--help"])
    assert all(part in outcome.text for part in told), outcome.text


@pytest.mark.parametrize(
    ("parameter", "args", "answer"),
    [
        ("args: list[str]", ["--help", "x"], ["--help", "x"]),
        ("args", ["--texts", "x"], ["--texts", "x"]),
        ("args: list[str] = ['a', 'b']", [], ["a", "b"]),
        ("args: list[str] = ['a', 'b']", ["--args", "c"], ["c"]),
        ("texts: list[str] = ['a', 'b']", [], ["a", "b"]),
        ("texts: list[str] = ['a', 'b']", ["--texts", "x", "--texts", "y", "z"], ["x", "y", "z"]),
        ("texts: list[str] = ['a', 'b']", ["--texts"], []),
        ("texts: list[str]", ["--texts", "x", "y"], ["x", "y"]),
        ("texts: list", ["--texts", "xy"], ["xy"]),
        ("texts=['a', 'b']", [], ["a", "b"]),
        ("texts=['a', 'b']", ["--texts", "cd"], ["cd"]),
        ("texts: list[int] | None = None", ["--texts", "1", "-2"], [1, -2]),
        ("texts: tuple[str, ...] = ('a',)", ["--texts", "cd", "e"], ["cd", "e"]),
        ("text='a', n=3", ["--text", "b", "--n", "4"], ["b", 4]),
        ("text", ["--text", "b"], ["b"]),
        ("*words", ["--a", "b"], ["--a", "b"]),
        ("x: int, _x: int", ["---x", "1", "--x", "2"], [2, 1]),
        ("help: str", ["--help", "x"], ["x"]),
        ("n: int, *words: int", ["--n", "1", "2", "3"], [1, [2, 3]]),
        ("n: int = 1, /, *, m: 'int', **rest", ["--m", "2"], [1, 2, {}]),
    ],
)
def test_a_list_of_words_or_an_option(
    rig: Rig, parameter: str, args: list[str], answer: list[Any]
) -> None:
    """Raw arguments are a single parameter `args` without a default; all else is an option."""
    outcome = rig.run(f"def main({parameter}): return [*locals().values()]", *args)
    assert outcome.ok, outcome.text
    told = json.loads(outcome.text)
    assert told in (answer, [answer])


TYPES = """
import datetime, decimal, enum, pathlib, typing
from typing import TYPE_CHECKING, Annotated, Any, Literal, NewType, TypedDict
if TYPE_CHECKING:
    from elsewhere import Unknown
class Colour(enum.Enum):
    red = 1
    blue = 2
Count = NewType("Count", int)
class Point(TypedDict):
    x: int
def main(it: KIND) -> "Unknown": return repr(it)
"""


@pytest.mark.parametrize("early", ["", "from __future__ import annotations\n"])
@pytest.mark.parametrize(
    ("kind", "words", "value"),
    [
        ("dict", ['{"a": 1}'], "{'a': 1}"),
        ("dict[str, int] | None", ['{"a": 1}'], "{'a': 1}"),
        ("Point", ['{"x": 1}'], "{'x': 1}"),
        ("list[dict]", ['{"a": 1}', "{}"], "[{'a': 1}, {}]"),
        ("list[list[int]]", ["[1, 2]"], "[[1, 2]]"),
        ("Any", ["5"], "'5'"),
        ("object", ["5"], "'5'"),
        ("Unknown", ["5"], "'5'"),
        ("int | str", ["5"], "5"),
        ("str | int", ["x"], "'x'"),
        ("tuple[int, str]", ["1", "b"], "(1, 'b')"),
        ("Literal[1, 'a']", ["1"], "1"),
        ("Colour", ["blue"], "<Colour.blue: 2>"),
        ("list[Colour]", ["red", "blue"], "[<Colour.red: 1>, <Colour.blue: 2>]"),
        ("list[bool]", ["true", "false"], "[True, False]"),
        ("Count", ["5"], "5"),
        ("'int'", ["5"], "5"),
        ("Annotated[int, 'how many']", ["5"], "5"),
        ("bytes", ["a"], "b'a'"),
        ("datetime.date", ["2026-01-02"], "datetime.date(2026, 1, 2)"),
        ("pathlib.Path", ["a/b"], "PosixPath('a/b')"),
        ("decimal.Decimal", ["1.5"], "Decimal('1.5')"),
    ],
)
def test_words_become_values_of_many_types(
    rig: Rig, early: str, kind: str, words: list[str], value: str
) -> None:
    outcome = rig.run(early + TYPES.replace("KIND", kind), "--it", *words)
    assert (outcome.ok, outcome.text) == (True, value)


@pytest.mark.parametrize(
    ("kind", "word", "told"),
    [
        ("dict", "[1]", "invalid JSON object value: '[1]'"),
        ("dict", "{", "invalid JSON object value: '{'"),
        ("int | float", "x", "invalid int or float value: 'x'"),
        ("Literal[1, 2]", "3", "invalid choice (one of 1, 2) value: '3'"),
        ("Colour", "green", "invalid choice (one of red, blue) value: 'green'"),
        ("decimal.Decimal", "x", "invalid Decimal value: 'x'"),
        ("typing.Callable[[], int]", "x", "invalid Callable value: 'x'"),
    ],
)
def test_words_that_are_no_value_of_their_type(rig: Rig, kind: str, word: str, told: str) -> None:
    outcome = rig.run(TYPES.replace("KIND", kind), "--it", word)
    assert not outcome.ok
    assert outcome.text.startswith("usage: ")
    assert outcome.text.endswith(told)


def test_options_of_a_list_have_help(rig: Rig) -> None:
    outcome = rig.run("def main(texts: list[str] = ['a']): return texts", "--help")
    assert "--texts" in outcome.text
    missing = rig.run("def main(texts: list[str]): return texts")
    assert "required: --texts" in missing.text
