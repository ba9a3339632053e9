"""Edits of contexts, memory and wrappers of the JavaScript SDK, on a real server."""

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


def test_trees_and_masks(wrapper: Wrapper) -> None:
    told = wrapper("tree")
    assert told["plain"] == [told["likely"]] * 2
    assert told["kept"] == told["path"]
    assert told["texts"][0] == told["texts"][1]
    parent, positions, path = told["wrong"]
    assert "it must be an earlier one or -1" in parent
    assert "are each for all of 2 tokens" in positions
    assert "have to rise" in path


def test_changes_of_what_later_tokens_attend_to(wrapper: Wrapper) -> None:
    told = wrapper("edits")
    assert told["plain"] == told["shown"] != told["hidden"]
    length, size = told["lengths"][0], told["pageSize"]
    assert told["lengths"] == [length, length - size, length - size, length - 2]
    assert told["positions"] == [length, length - size, length]
    assert told["evicted"]
    assert told["more"] == [6, 6, 6]
    whole, place, there = told["wrong"]
    assert "are no whole pages" in whole
    assert f"place {length} is not among" in place
    assert "are not among" in there


def test_forks_are_joined_and_opened_elsewhere(wrapper: Wrapper) -> None:
    told = wrapper("joined")
    assert told["text"].endswith("Draven is Holt. It is old.")
    assert told["opened"] == [0, 4]
    assert "forks of the context" in told["wrong"]


def test_contexts_leave_the_pool_and_come_back(wrapper: Wrapper) -> None:
    told = wrapper("memory")
    assert told["texts"] == [told["texts"][0]] * 3
    assert told["away"] == "swapped-out"
    assert told["empty"] == 0
    assert told["costs"] in ("", "unsupported")


def test_attention(wrapper: Wrapper) -> None:
    told = wrapper("attention")
    assert told["sums"] == [pytest.approx(2, abs=1e-3)]
    assert set(told["widths"]) == {told["length"]}
    assert "999 tokens can't be observed" in told["wrong"]


def test_calls_in_json_are_read_as_python_reads_them(wrapper: Wrapper) -> None:
    texts = [
        'Well.\n<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": "x}"}}\n</tool_call>',
        '[TOOL_CALLS] [{"name": "add", "arguments": {"a": [1]}}, {"name": "now", "arguments": {}}]',
        '<|python_tag|>{"name": "add", "parameters": {"a": 1.5e3, "b": null}}<|eom_id|>',
        '{"name": 3} {"name": "add", "arguments": {"a": 1, "b": "x"}',
        "a text (with a remark), f(not closed",
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
