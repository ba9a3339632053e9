"""Calls of tools in what models write, and options from the parameters of `main`."""

# ruff: noqa: E501 - what models write

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
from support.sdk_rig import Rig

from inferlet import tools
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
    for wrong in ({"name": "add", "arguments": {}}, {"name": "mul", "arguments": {"a": 1}}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema)


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
    ],
)
def test_options(rig: Rig, args: list[str], answer: str) -> None:
    assert rig.run(PROGRAM, *args).text == answer


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
