"""Default tools of applications, of which no model here can be told: they refuse no request."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest
from support.gateways import Gateway

HI: list[Any] = [{"role": "user", "content": "Hi"}]
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages?beta=true"
FIELDS: dict[str, dict[str, Any]] = {
    CHAT: {"messages": HI, "max_tokens": 2},
    RESPONSES: {"input": HI, "max_output_tokens": 2},
    "/v1/responses/input_tokens": {"input": HI},
    MESSAGES: {"messages": HI, "max_tokens": 2},
    "/v1/messages/count_tokens?beta=true": {"messages": HI},
}
FUNCTION: dict[str, Any] = {"name": "f", "parameters": {"type": "object", "properties": {}}}
FLAT = {"type": "function", **FUNCTION}
CUSTOM = {"type": "custom", "name": "apply_patch", "format": {"type": "text"}}
OTHERS: dict[str, list[Any]] = {
    CHAT: [
        {"type": "custom", "custom": {"name": "apply_patch"}},
        {"type": "web_search"},
        {"type": "mcp", "server_label": "x", "server_url": "https://x.example"},
    ],
    RESPONSES: [
        {"type": "namespace", "name": "n", "description": "d", "tools": [FLAT]},
        {"type": "web_search", "external_web_access": False},
        {"type": "web_search_preview"},
        {"type": "mcp", "server_label": "x", "server_url": "https://x.example"},
        {"type": "code_interpreter", "container": {"type": "auto"}},
        {"type": "file_search", "vector_store_ids": ["x"]},
        {"type": "local_shell"},
        CUSTOM,
    ],
    MESSAGES: [
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 5},
        {"type": "bash_20250124", "name": "bash"},
        {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool"},
        {"type": "computer_20250124", "name": "computer", "display_width_px": 1},
        {"type": "mcp_toolset", "mcp_server_name": "x"},
    ],
}
OWN = {
    CHAT: {"type": "function", "function": FUNCTION},
    RESPONSES: FLAT,
    MESSAGES: {"name": "f", "input_schema": {"type": "object", "properties": {}}},
}


def api_of(path: str) -> str:
    """The API of whose tools a path takes a list."""
    return next(api for api in OWN if path.startswith(api.partition("?")[0]))


def post(http: httpx2.Client, path: str, **fields: Any) -> httpx2.Response:
    return http.post(path, json={"model": "tools", **FIELDS[path], **fields})


def prompt_of(answer: httpx2.Response) -> int:
    found = answer.json()
    used = found.get("usage", found)
    tokens = used.get("prompt_tokens") or used["input_tokens"]
    return int(tokens + used.get("cache_read_input_tokens", 0))


@pytest.mark.parametrize("path", FIELDS)
def test_tools_that_are_no_functions(http: httpx2.Client, gateway: Gateway, path: str) -> None:
    """The model is told of the others, and the log says what is left out."""
    api = api_of(path)
    own, others = OWN[api], OTHERS[api]
    without, with_them = (
        post(http, path, tools=tools) for tools in ([own], [*others[:1], own, *others[1:]])
    )
    assert (without.status_code, with_them.status_code) == (200, 200), with_them.text
    assert prompt_of(without) == prompt_of(with_them)
    left = {tool["type"] for tool in others}
    lines = [json.loads(line) for line in gateway.log.splitlines()]
    assert left in [{*line["types"]} for line in lines if "types" in line]


@pytest.mark.parametrize(
    ("path", "choice"),
    [
        (CHAT, {"type": "custom", "custom": {"name": "apply_patch"}}),
        (CHAT, {"type": "function", "function": {"name": "apply_patch"}}),
        (RESPONSES, {"type": "web_search_preview"}),
        (RESPONSES, {"type": "custom", "name": "apply_patch"}),
        (RESPONSES, {"type": "mcp", "server_label": "x"}),
        (RESPONSES, {"type": "allowed_tools", "mode": "required", "tools": [{"type": "mcp"}]}),
        (MESSAGES, {"type": "tool", "name": "web_search"}),
        *((path, "required") for path in (CHAT, RESPONSES)),
        (MESSAGES, {"type": "any"}),
    ],
)
def test_a_tool_that_is_left_out_cannot_be_forced(
    http: httpx2.Client, path: str, choice: Any
) -> None:
    own = [] if choice in ("required", {"type": "any"}) else [OWN[path]]
    answer = post(http, path, tools=[*own, *OTHERS[path]], tool_choice=choice)
    assert answer.status_code == 400, answer.text
    assert "`tool_choice" in answer.json()["error"]["message"]


def test_what_is_no_tool_at_all_is_refused(http: httpx2.Client) -> None:
    for path, wrong in (
        (CHAT, {"type": 1}),
        (RESPONSES, "web_search"),
        (MESSAGES, {"type": None}),
        (MESSAGES, OWN[CHAT]),  # a function, in another API's words
    ):
        answer = post(http, path, tools=[wrong])
        assert answer.status_code == 400, answer.text
        assert "`tools[0]" in answer.json()["error"]["message"]


def test_instructions_in_the_middle_are_merged_up(http: httpx2.Client) -> None:
    """The same tokens as those of one system prompt."""
    said = {"role": "assistant", "content": "Yes?"}
    later = [{"type": "text", "text": "Be kind."}]
    for path, one, several in (
        (
            "/v1/messages/count_tokens?beta=true",
            {"system": "Be brief.\n\nBe kind.", "messages": [*HI, said, *HI]},
            {
                "system": "Be brief.",
                "messages": [
                    *HI,
                    {"role": "system", "content": later},
                    said,
                    *HI,
                    {"role": "system", "content": ""},
                ],
            },
        ),
        (
            "/v1/responses/input_tokens",
            {"instructions": "Be brief.\n\nBe kind.", "input": [*HI, said, *HI]},
            {
                "instructions": "Be brief.",
                "input": [*HI, {"role": "developer", "content": "Be kind."}, said, *HI],
            },
        ),
    ):
        counts = [post(http, path, **fields).json()["input_tokens"] for fields in (one, several)]
        assert counts[0] == counts[1]
    wrong = {"role": "system", "content": [{"type": "tool_result", "tool_use_id": "x"}]}
    answer = post(http, MESSAGES, messages=[*HI, wrong])
    assert (answer.status_code, "messages[1]" in answer.text) == (400, True)


def test_a_request_is_counted_as_it_will_be_sent(http: httpx2.Client) -> None:
    path = "/v1/messages/count_tokens?beta=true"
    more = {"max_tokens": 9, "temperature": 1, "stream": True, "metadata": {"user_id": "x"}}
    assert post(http, path, **more).json() == post(http, path).json()


def test_methods_that_ask_what_there_is(http: httpx2.Client) -> None:
    assert http.head("/").status_code == 200
    assert http.head("/v1/models").status_code == 200
    answer = http.options("/v1/messages")
    assert (answer.status_code, answer.headers["allow"]) == (204, "POST")
