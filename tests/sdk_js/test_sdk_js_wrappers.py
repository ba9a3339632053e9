"""Joined contexts and wrappers of the JavaScript SDK, on a real server."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from inferlet import tools
from pie_py.client.sync import Client

GUESTS = Path(__file__).parent / "guests"
Wrapper = Callable[..., Any]


@pytest.fixture(scope="module")
def wrapper(client: Client) -> Wrapper:
    """Runs one of `wrappers.ts`; its result."""
    program = client.upload(GUESTS / "wrappers.ts")

    def run(name: str, given: Any = None) -> Any:
        return json.loads(client.launch(program, [name, json.dumps(given)]).result())

    return run


def test_a_saved_context_is_opened_elsewhere(wrapper: Wrapper) -> None:
    assert wrapper("saved") == [0, 4]


def test_a_line_of_the_log_may_end_within_a_character(wrapper: Wrapper) -> None:
    assert wrapper("log") is True


def test_a_context_takes_many_tokens_at_once(wrapper: Wrapper) -> None:
    assert wrapper("many", 600_000) == 600_000


def test_calls_in_json_are_read_as_python_reads_them(wrapper: Wrapper) -> None:
    texts = [
        'Well.\n<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": "x}"}}\n</tool_call>',
        '[TOOL_CALLS] [{"name": "add", "arguments": {"a": [1]}}, {"name": "now", "arguments": {}}]',
        '<|python_tag|>{"name": "add", "parameters": {"a": 1.5e3, "b": null}}<|eom_id|>',
        '{"name": 3} {"name": "add", "arguments": {"a": 1, "b": "x"}',
        "a text (with a remark), f(not closed",
        '{"a":' * 20_000 + ' {"name": "now"} {"}{": "\\"}{"',
        "",
    ]
    told = wrapper("tools", texts)
    wanted = [
        [{"name": call.name, "arguments": call.arguments} for call in tools.parse(text)]
        for text in texts
    ]
    assert told == wanted


def test_the_rest(wrapper: Wrapper) -> None:
    joined, cookies, schema, listed, image = wrapper("rest")
    assert joined == "a, b"
    assert cookies == ["a", "b"]
    assert schema == listed == tools.schema({"now": {"type": "object"}})
    assert image in ("unsupported", "invalid-argument")
