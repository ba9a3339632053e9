"""A value that asks for nothing is taken by every API: clients send whole objects, mostly empty."""

from __future__ import annotations

from typing import Any

import anthropic
import httpx2
import openai
import pytest

HI: list[Any] = [{"role": "user", "content": "Hi"}]
APIS: dict[str, dict[str, Any]] = {
    "chat/completions": {"messages": HI, "max_tokens": 2},
    "completions": {"prompt": "Hi", "max_tokens": 2},
    "responses": {"input": HI, "max_output_tokens": 2},
    "messages": {"messages": HI, "max_tokens": 2},
    "messages/count_tokens": {"messages": HI},
}
EVERYWHERE: list[dict[str, Any]] = [
    {"metadata": None, "stream_options": None, "thinking": None, "no_such_field": None,
     "include": [], "functions": [], "tools": [], "mcp_servers": [], "audio": {},
     "reasoning_effort": "none", "reasoning": {}, "chat_template_kwargs": {}, "suffix": "",
     "prompt": None, "input": None, "messages": None, "context_management": {"edits": []},
     "verbose": False, "verbosity": "medium", "betas": ["x"], "client_metadata": {"a": "b"}},
    {"reasoning": {"effort": "none", "summary": None}, "thinking": {"type": "disabled"},
     "container": None, "speed": "standard", "inference_geo": "global", "user_profile_id": "u",
     "prompt_cache_options": {"mode": "explicit", "ttl": "12h"}, "cache_control": {"ttl": "1h"},
     "image": {"context_compression": "auto"}, "access_programs": {"cyber": "standard"},
     "prompt_cache_retention": "24h", "background_options": {"completion_window": "soonest"}},
]  # fmt: skip
KEEPS_THOUGHTS = {"type": "clear_thinking_20251015", "keep": "all"}
TOOL = {"name": "f", "input_schema": {}, "strict": True, "defer_loading": True}
TOOL |= {"input_examples": [{"x": 1}], "allowed_callers": ["direct"]}
OF_AN_API: list[tuple[str, dict[str, Any]]] = [
    (
        "chat/completions",
        {"store": False, "stream_options": {"include_usage": False}, "prediction": {}}
        | {"structured_outputs": {"regex": None, "json_object": False}, "function_call": "none"}
        | {"logprobs": False, "reasoning_effort": "medium", "service_tier": "default"}
        | {"echo": False, "best_of": 1, "top_n_sigma": -1, "dynatemp_exponent": 1, "stop": {}}
        | {"return_progress": False, "tfs_z": 1.0, "mirostat": 0, "response_format": {}}
        | {"tool_choice": "", "seed": "", "top_k": 40.0, "metadata": {"a": 1}, "sampler": ""},
    ),
    ("chat/completions", {"chat_template_kwargs": {"enable_thinking": False, "thinking": False}}),
    ("chat/completions", {"seed": 1.0, "request_id": "x", "dry_penalty_last_n": -1}),
    ("chat/completions", {"service_tier": "", "safe_prompt": False, "reasoning_format": "auto"}),
    ("chat/completions", {"post_sampling_probs": False, "backend_sampling": False}),
    ("completions", {"store": False, "stream_options": {}, "n": "", "user": []}),
    ("completions", {"service_tier": "auto", "modalities": ["text"]}),
    ("responses", {"reasoning": {"effort": "medium", "summary": "detailed", "context": "auto"}}),
    ("responses", {"reasoning": {"effort": "high"}}),  # Codex's users say so of any model
    ("responses", {"reasoning": {"summary": "auto", "generate_summary": "concise"}}),
    (
        "responses",
        {"include": ["web_search_call.action.sources"], "max_tool_calls": 3, "background": False}
        | {"text": {"verbosity": "medium"}, "truncation": "disabled", "top_logprobs": 0}
        | {"stream_options": {"include_obfuscation": False}, "conversation": None},
    ),
    ("responses", {"store": False, "include": ["reasoning.encrypted_content"]}),
    ("responses", {"text": {"format": {"type": "text"}, "verbosity": None}, "truncation": ""}),
    ("responses", {"previous_response_id": "", "tool_choice": {}, "n": 1, "metadata": {"a": [1]}}),
    ("responses", {"frequency_penalty": 0.0, "presence_penalty": 0}),
    ("messages", {"cache_control": {"type": "ephemeral"}, "output_config": {}, "container": None}),
    ("messages", {"context_management": {"edits": [KEEPS_THOUGHTS]}, "thread": {}}),
    ("messages", {"system": [{"type": "text", "text": "a", "citations": [], "x": None}]}),
    ("messages", {"tool_choice": {}, "service_tier": "", "metadata": {"a": "b"}}),
    *(
        (api, fields)
        for api in ("messages", "messages/count_tokens")
        for fields in (
            {"thinking": {"type": "adaptive"}, "output_config": {"effort": "max"}},
            {"thinking": {"type": "enabled", "budget_tokens": 9, "display": "omitted"}},
            {"thinking": {"type": "between_tools"}, "output_config": {"effort": "high"}},
            {"tools": [TOOL]},
        )
    ),
]


def post(http: httpx2.Client, api: str, fields: dict[str, Any]) -> Any:
    answer = http.post(f"/v1/{api}", json={"model": "pie-tiny", **fields, **APIS[api]})
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize(
    ("api", "fields"), [*((api, each) for api in APIS for each in EVERYWHERE), *OF_AN_API], ids=str
)
def test_it_is_taken(http: httpx2.Client, api: str, fields: dict[str, Any]) -> None:
    post(http, api, fields)


def test_a_response_says_it_back(http: httpx2.Client) -> None:
    usual = {"truncation": "disabled", "background": False, "store": True, "top_logprobs": 0}
    answer = post(http, "responses", usual)
    assert {name: answer[name] for name in usual} == usual


@pytest.mark.parametrize("api", ["chat", "generate"])
def test_it_is_taken_by_ollamas(http: httpx2.Client, api: str) -> None:
    loading = ("use_mmap", "use_mlock", "numa", "low_vram", "f16_kv")
    off = ("vocab_only", "logits_all", "embedding_only")
    mirostat = {"mirostat": 0, "mirostat_tau": 5.0, "mirostat_eta": 0.1}
    usual = {"tfs_z": 1.0, "typical_p": 1.0, "repeat_last_n": 64, "penalize_newline": True}
    options = {**dict.fromkeys(loading, True), **dict.fromkeys(off, False), **mirostat, **usual}
    asked = {"messages": HI} if api == "chat" else {"prompt": "Hi"}
    more: dict[str, Any] = {"logprobs": False, "top_logprobs": 0, "truncate": False, "shift": False}
    more |= {"think": "", "keep_alive": "", "tool_choice": "auto"}
    options |= {"seed": 1.0, "num_ctx": 4096.0}
    for wrong in ({}, {"logprobs": True}, {"options": {"mirostat": 2}}):
        body = {"model": "pie-tiny", "stream": False, "options": {**options, "num_predict": 2}}
        answer = http.post(f"/api/{api}", json={**body, **asked, **more, **wrong})
        assert answer.status_code == (400 if wrong else 200), answer.text


@pytest.mark.parametrize(
    ("api", "fields", "may"),
    [
        ("chat/completions", {"tool_choice": "must"}, '"none", "auto", "required", "any"'),
        ("chat/completions", {"store": True}, "false"),
        ("chat/completions", {"messages": [{"role": "function", "content": "x"}]},
         '"assistant", "developer", "system", "tool", "user"'),
        ("chat/completions", {"messages": [{"role": "user", "content": [{"type": "file"}]}]},
         '"image_url", "text"'),
        ("chat/completions", {"modalities": ["text", "audio"]}, '"text"'),
        ("responses", {"input": [{"role": "tool", "content": "x"}]},
         '"user", "assistant", "system", "developer"'),
        ("messages", {"messages": [{"role": "tool", "content": "x"}]},
         '"user", "assistant", "system"'),
    ],
    ids=str,
)  # fmt: skip
def test_what_a_field_may_say_is_told(
    http: httpx2.Client, api: str, fields: dict[str, Any], may: str
) -> None:
    answer = http.post(f"/v1/{api}", json={"model": "pie-tiny", **APIS[api], **fields})
    assert answer.status_code == 400, answer.text
    text = answer.json()["error"]["message"].partition("; it may be ")[2]
    assert sorted(text.split(", ")) == sorted(may.split(", "))


@pytest.mark.parametrize("place", ["field", "item"])
def test_a_deep_object_is_refused_by_name(http: httpx2.Client, place: str) -> None:
    deep: Any = 1
    for _ in range(600):
        deep = {"x": deep}
    item = {**HI[0], "foo": deep} if place == "item" else HI[0]
    fields = {"input": [item]} if place == "item" else {"input": HI, "foo": deep}
    answer = http.post("/v1/responses", json={"model": "pie-tiny", **fields})
    assert answer.status_code == 400, answer.text
    assert "foo`" in answer.json()["error"]["message"]


MESSAGES: list[dict[str, Any]] = [
    {"annotations": None, "audio": None, "function_call": None, "tool_calls": None},
    {"annotations": [], "refusal": "", "reasoning": None, "parsed": None},
    {"content": None, "tool_calls": [], "reasoning_content": "hm"},
    {"annotations": [{"type": "url_citation", "url_citation": {}}], "phase": "final_answer"},
    {"content": [{"type": "text", "text": "Hello", "cache_control": {"type": "ephemeral"}}]},
    {"reasoning_details": [{"text": "hm"}], "thinking_blocks": [{"thinking": "hm"}]},
    {"provider_specific_fields": {"citations": [1]}, "tool_calls": [
        {"id": "a", "type": "function", "extra_content": {"google": {"thought_signature": "x"}},
         "function": {"name": "f", "arguments": "{}"}}]},
]  # fmt: skip


@pytest.mark.parametrize("fields", MESSAGES, ids=str)
def test_an_answer_of_others_goes_back_in(http: httpx2.Client, fields: dict[str, Any]) -> None:
    told = {"role": "assistant", "content": "Hello", **fields}
    answer = post(http, "chat/completions", {})
    body = {"model": "pie-tiny", "messages": [*HI, told, *HI], "max_tokens": 2}
    again = http.post("/v1/chat/completions", json=body)
    assert again.status_code == 200, again.text
    assert again.json()["usage"]["prompt_tokens"] > answer["usage"]["prompt_tokens"]


ARGUMENTS: list[dict[str, Any]] = [{}, {"arguments": None}, {"arguments": {}}, {"arguments": ""}]


@pytest.mark.parametrize("model", ["pie-tiny", "tools"])
def test_messages_that_lack_what_openai_has(http: httpx2.Client, model: str) -> None:
    """vLLM and llama.cpp take them: a message without content, a call without an id."""
    body: dict[str, Any] = {"model": model, "max_tokens": 1, "return_token_ids": True}

    def prompt(*messages: dict[str, Any]) -> Any:
        answer = http.post("/v1/chat/completions", json={**body, "messages": [*messages, *HI]})
        assert answer.status_code == 200, answer.text
        return answer.json()["prompt_token_ids"]

    nothings: list[dict[str, Any]] = [{}, {"content": None}, {"content": []}]
    for role in ("system", "assistant"):
        for nothing in nothings:
            assert prompt({"role": role, **nothing}) == prompt({"role": role, "content": ""})
    calls = [{"type": "function", "function": {"name": "f", **each}} for each in ARGUMENTS]
    results = [{"role": "tool", "content": text} for text in ("a", None)]
    named = [{**each, "id": f"call_0_{at}"} for at, each in enumerate(calls)]
    known = [{**each, "tool_call_id": f"call_0_{at}"} for at, each in enumerate(results)]
    called = {"role": "assistant", "content": ""}
    without = prompt({**called, "tool_calls": calls}, *results)
    assert without == prompt({**called, "tool_calls": named}, *known)


@pytest.mark.parametrize("dumped", [True, False])
def test_items_of_a_response_go_back_in(client: openai.OpenAI, dumped: bool) -> None:
    said: list[Any] = list(HI)
    for _ in range(2):
        answer = client.responses.create(model="pie-tiny", input=said, max_output_tokens=4)
        said += [item.model_dump() if dumped else item for item in answer.output]
        said += HI
    with client.responses.stream(model="pie-tiny", input=said, temperature=0) as stream:
        said += [item.model_dump() for item in stream.get_final_response().output]
    refused = {"type": "refusal", "refusal": "No."}
    others: list[Any] = [
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"},
        {"type": "message", "role": "assistant", "content": [refused], "phase": "commentary"},
    ]
    tokens = client.responses.input_tokens.count
    less = tokens(model="pie-tiny", input=said).input_tokens
    assert tokens(model="pie-tiny", input=[*said, *others, *HI]).input_tokens > less
    assert tokens(model="pie-tiny", input=[*others, *HI]).input_tokens > 0  # a thought comes first


@pytest.mark.parametrize("dumped", [True, False])
def test_blocks_of_a_message_go_back_in(claude: anthropic.Anthropic, dumped: bool) -> None:
    ask: dict[str, Any] = {"model": "pie-tiny", "max_tokens": 4}
    answer = claude.messages.create(messages=HI, **ask)
    content: list[Any] = [each.model_dump() if dumped else each for each in answer.content]
    content = [*content, {"type": "redacted_thinking", "data": "x"}]
    call = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
    content.append({**call, "caller": {"type": "direct"}})  # as Anthropic's own answers say
    told: list[Any] = [*HI, {"role": "assistant", "content": content}, *HI]
    again = claude.messages.create(messages=told, **ask)
    read = [
        each.usage.input_tokens + (each.usage.cache_read_input_tokens or 0)
        for each in (answer, again)
    ]
    assert read[0] < read[1]
