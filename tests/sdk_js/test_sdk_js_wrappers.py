"""What the JavaScript SDK has beside generations, on a real server; where it can, against Python's."""

# ruff: noqa: E501 - what models write

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from inferlet import tools, watermark
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
    assert told["texts"] == [told["texts"][0]] * 7
    assert told["away"] == "swapped-out"
    assert told["empty"] == 0
    assert told["choices"] == ["preserve", "swap", "discard", "swap"]
    assert told["failed"] == "Error: no answer"
    assert told["costs"] in ("", "unsupported")


def test_attention(wrapper: Wrapper) -> None:
    told = wrapper("attention")
    assert told["sums"] == [pytest.approx(2, abs=1e-3)]
    assert set(told["widths"]) == {told["length"]}
    assert "999 tokens can't be observed" in told["wrong"]


def test_chats_by_hand(wrapper: Wrapper) -> None:
    told = wrapper("chat")
    assert told["events"] == [
        {"kind": "delta", "text": "Once upon"},
        {"kind": "done", "text": "Once upon"},
    ]
    assert told["again"] == {"kind": "done", "text": ""}
    assert told["same"]
    assert told["stops"]


def test_calls_are_read_as_python_reads_them(wrapper: Wrapper) -> None:
    texts = [
        'Well.\n<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": "x}"}}\n</tool_call>',
        '[TOOL_CALLS] [{"name": "add", "arguments": {"a": [1]}}, {"name": "now", "arguments": {}}]',
        '<|python_tag|>{"name": "add", "parameters": {"a": 1.5e3, "b": null}}<|eom_id|>',
        '[add(a=-1, b="x"), now()]',
        "[CALL]a1[HEAD]add(a=True, b={'k': [1, None]})[END][CALL]b1[HEAD]now()[END]",
        "Thought: I know.\nAction: lookup(\"Rena (the fox)\", 'it\\'s\\n\\u00e9')",
        'f(")", [1, (2, 3), (4,)]) and g(x=f) and h((5))',
        '{"name": 3} {"name": "add", "arguments": {"a": 1, "b": "x"}',
        "a text (with a remark), f(not closed",
        "f(a=1, 2) g(1_000, .5,)",
        "",
    ]
    told = wrapper("tools", texts)
    wanted = [[asdict(call) for call in tools.parse(text)] for text in texts]
    assert told == json.loads(json.dumps(wanted))


def test_watermarks_are_pythons(wrapper: Wrapper) -> None:
    tokens = [number * number % 4093 for number in range(60)]
    green, found, half = wrapper("watermark", tokens)
    given: dict[str, Any] = {"key": 7, "share": 0.25}
    pairs = pairwise(tokens)
    assert green == [watermark.is_green(*pair, **given) for pair in pairs]
    assert found == pytest.approx(watermark.z_score(tokens, **given))
    assert half == pytest.approx(watermark.z_score(tokens))


def test_the_rest(wrapper: Wrapper) -> None:
    joined, cookies, schema, listed, image = wrapper("rest")
    assert joined == "a, b"
    assert cookies == ["a", "b"]
    assert schema == listed == tools.schema({"now": {"type": "object"}})
    assert image in ("unsupported", "invalid-argument")
