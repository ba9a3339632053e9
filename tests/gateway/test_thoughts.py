"""A text that is held to a form: the model thinks before it, freely, and then the form holds."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from support.gateways import Gateway
from support.servers import Server
from support.told_models import make_told

THOUGHT = {"<think>": "hm {", "hm {": "well", "well": "</think>", "</think>": "\n\n"}
SAYS = {"\n\n": "Sure! ", "Sure! ": "not a form"}
TURN = "{% for m in messages %}{{ m.content }}{% endfor %}"
ASKED = "{% if add_generation_prompt %}?{% endif %}"
OFF = "{% if enable_thinking is false %}<think>{{ '\n' }}</think>{% endif %}"
TOOLS = "{% if tools %}{{ tools | tojson }}{% endif %}"
KEPT = "{% if thoughts is defined %}<|START_THINKING|>{{ thoughts }}<|END_THINKING|>{% endif %}"
COMMAND = [f"<|{name}|>" for name in ("START_THINKING", "END_THINKING", "START_RESPONSE")]
HARMONY = [f"<|{name}|>" for name in ("channel", "message", "start", "end", "constrain", "call")]
CHANNEL, MESSAGE, START, STOP, *_ = HARMONY
MODELS: dict[str, Any] = {
    # It begins its thoughts itself, or the template does; markers are special tokens or not.
    "own": (
        {"?": "<think>", **THOUGHT, **SAYS},
        TURN + TOOLS + ASKED + OFF,
        ["<think>", "</think>"],
    ),
    "open": (
        {**THOUGHT, **SAYS},
        TURN + TOOLS + "<think>{{ '\n' }}",
        ["<think>", "</think>"],
        True,
    ),
    "told": ({**THOUGHT, **SAYS}, TURN + "<think>{{ '\n' }}", ["<think>", "</think>"]),
    "command": (
        {"?": COMMAND[0], COMMAND[0]: "hm {", "hm {": "well", "well": COMMAND[1]}
        | {COMMAND[1]: COMMAND[2], COMMAND[2]: "Sure! ", "Sure! ": "not a form"},
        TURN + TOOLS + KEPT + ASKED,
        [*COMMAND, "<|START_ACTION|>", "<|END_ACTION|>"],
        True,
    ),
    "harmony": (
        {"assistant": CHANNEL, CHANNEL: ["analysis", "final"], "analysis": MESSAGE}
        | {START: "assistant", "final": MESSAGE, MESSAGE: ["hm {", "Sure! "]}
        | {"hm {": "well", "well": STOP, STOP: START},
        TURN + TOOLS + "{{ reasoning_effort }}" + START + "assistant",
        HARMONY,
        True,
    ),
}
MODELS["open"][0]["\n"] = MODELS["told"][0]["\n"] = "hm {"
SCHEMA = {
    "type": "object",
    "properties": {"x": {"const": 1}},
    "required": ["x"],
    "additionalProperties": False,
}
JSON_SCHEMA = {"type": "json_schema", "json_schema": {"name": "p", "schema": SCHEMA}}
FORM = '{"x": 1}'
TOOL = {"name": "w", "parameters": SCHEMA}
ASK: dict[str, Any] = {"messages": [{"role": "user", "content": "a"}], "temperature": 0}
ASK |= {"max_tokens": 60, "presence_penalty": 2}


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx2.Client]:
    folder: Path = tmp_path_factory.mktemp("thoughts")
    for name, (follows, template, markers, *special) in MODELS.items():
        make_told(folder / name, follows, template, markers, special=bool(special))
    models = [{"source": str(folder / name)} for name in MODELS]
    with (
        Server(folder, models=models) as server,
        Gateway(server, folder) as gateway,
        gateway.http() as http,
    ):
        yield http


def post(http: httpx2.Client, path: str, **body: Any) -> Any:
    answer = http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def chat(http: httpx2.Client, model: str, **more: Any) -> tuple[str, str, str]:
    """The thought, the content and the reason of the only choice, the same whole and streamed."""
    [choice] = post(http, "/v1/chat/completions", model=model, **ASK | more)["choices"]
    message = choice["message"]
    told = message.get("reasoning_content", ""), message["content"], choice["finish_reason"]
    parts: dict[str, str] = {"reasoning_content": "", "content": ""}
    body = {"model": model, "stream": True, **ASK, **more}
    lines = http.post("/v1/chat/completions", json=body).text.split("\n\n")
    order = []
    for line in lines[:-2]:
        [chunk] = json.loads(line.removeprefix("data: "))["choices"]
        for key, text in chunk["delta"].items():
            if key in parts and text:
                parts[key] += text
                order.append(key)
    assert order == sorted(order, reverse=True)  # thoughts come first
    assert (parts["reasoning_content"], parts["content"], chunk["finish_reason"]) == told
    return told


@pytest.mark.parametrize("model", MODELS)
def test_a_thought_precedes_every_form(http: httpx2.Client, model: str) -> None:
    thought, said, _ = chat(http, model)
    assert (thought, said[:5]) == ("hm {well", "Sure!")  # freely, and against the form
    forms: list[tuple[dict[str, Any], str]] = [
        ({"response_format": JSON_SCHEMA}, FORM),
        ({"guided_json": SCHEMA, "top_logprobs": 2, "logprobs": True}, FORM),
        ({"guided_regex": "[0-9]{3}"}, "[0-9]{3}"),
        ({"guided_choice": ["yes/no", "yes/"]}, "yes/(no)?"),
        ({"grammar": 'root ::= "ab" | "ac"'}, "ab|ac"),
        ({"structured_outputs": {"grammar": 'start: "ab" WORD\nWORD: /c|d/'}}, "ab[cd]"),
    ]
    for asked, form in forms:
        thought, said, reason = chat(http, model, **asked)
        assert (thought, reason) == ("hm {well", "stop"), (asked, said)
        assert re.fullmatch(form, said) or said == form


@pytest.mark.parametrize("model", MODELS)
def test_a_thought_precedes_calls(http: httpx2.Client, model: str) -> None:
    tools = [{"type": "function", "function": TOOL}]
    for choice in ("required", {"type": "function", "function": {"name": "w"}}):
        asked = {"tools": tools, "tool_choice": choice, "parallel_tool_calls": False}
        [found] = post(http, "/v1/chat/completions", model=model, **ASK | asked)["choices"]
        [call] = found["message"]["tool_calls"]
        assert call["function"]["name"] == "w"
        assert json.loads(call["function"]["arguments"]) == {"x": 1}
        assert found["message"]["reasoning_content"] == "hm {well"
        assert (found["message"]["content"], found["finish_reason"]) == (None, "tool_calls")
    thought, said, _ = chat(http, model, tools=tools)  # it may call, and does not
    assert (thought, said[:5]) == ("hm {well", "Sure!")


@pytest.mark.parametrize("model", MODELS)
def test_other_apis(http: httpx2.Client, model: str) -> None:
    messages, few = ASK["messages"], {"max_tokens": 60, "temperature": 0}
    harmony = model == "harmony"  # whose table needs a penalty, which these APIs have not
    form = {"type": "json_schema", "schema": SCHEMA}
    if not harmony:
        claude = {"messages": messages, "output_config": {"format": form}, **few}
        blocks = post(http, "/v1/messages", model=model, **claude)["content"]
        assert [each.get("thinking", each.get("text")) for each in blocks] == ["hm {well", FORM]
        text = {"format": {**form, "name": "p"}}
        asked = {"input": "a", "text": text, "max_output_tokens": 60, "temperature": 0}
        items = post(http, "/v1/responses", model=model, **asked)["output"]
        assert [each["type"] for each in items] == ["reasoning", "message"]
        assert items[1]["content"][0]["text"] == FORM
    options = {"num_predict": 60, "temperature": 0, "presence_penalty": 2}
    ollama = {"messages": messages, "format": SCHEMA, "stream": False, "options": options}
    message = post(http, "/api/chat", model=model, **ollama)["message"]
    assert (message["thinking"], message["content"]) == ("hm {well", FORM)


def test_ends_within_a_thought(http: httpx2.Client) -> None:
    for model in MODELS:
        few = 5 if model == "harmony" else 2
        thought, said, reason = chat(http, model, response_format=JSON_SCHEMA, max_tokens=few)
        assert ("hm {well".startswith(thought), said, reason) == (True, "", "length")
        thought, said, reason = chat(http, model, response_format=JSON_SCHEMA, stop=["{we"])
        assert (thought, said, reason) == ("hm ", "", "stop")


def test_several_choices_each_think(http: httpx2.Client) -> None:
    for model in MODELS:
        asked = ASK | {"n": 3, "response_format": JSON_SCHEMA}
        choices = post(http, "/v1/chat/completions", model=model, **asked)["choices"]
        said = [each["message"] for each in choices]
        assert [one["reasoning_content"] for one in said] == ["hm {well"] * 3
        assert [one["content"] for one in said] == [FORM] * 3


def test_without_thoughts_the_form_begins_at_once(http: httpx2.Client) -> None:
    for model in MODELS:
        thought, said, _ = chat(http, model, response_format=JSON_SCHEMA, reasoning_effort="none")
        assert (thought, said) == ("", FORM), model
    off = {"chat_template_kwargs": {"enable_thinking": False}}
    assert chat(http, "own", response_format=JSON_SCHEMA, **off)[:2] == ("", FORM)


@pytest.mark.parametrize(
    ("begun", "thought", "said"),
    [("<think>so", "hm {well", FORM), ("<think>so</think>", "", FORM), ('{"x"', "", FORM)],
)
def test_a_message_that_is_continued(
    http: httpx2.Client, begun: str, thought: str, said: str
) -> None:
    messages = [*ASK["messages"], {"role": "assistant", "content": begun}]
    more = {"continue_final_message": True, "add_generation_prompt": False}
    asked = {"messages": messages, "response_format": JSON_SCHEMA, **more}
    found = chat(http, "own", **asked)
    assert found[1] == said
    assert bool(found[0]) == bool(thought)
