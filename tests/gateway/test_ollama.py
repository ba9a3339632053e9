"""Ollama's API, as its clients speak it."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest

ASK = [{"role": "user", "content": "How is the weather in Argon?"}]
CITY = {"type": "object", "properties": {"city": {"enum": ["Pargos", "Argon"]}}}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": CITY}}


def post(http: httpx2.Client, path: str, **body: Any) -> list[dict[str, Any]]:
    """The lines of an answer."""
    body = {"model": "pie-tiny:latest", "options": {"temperature": 0, "num_predict": 8}, **body}
    answer = http.post(f"/api/{path}", json=body)
    assert answer.status_code == 200, answer.text
    return [json.loads(line) for line in answer.text.splitlines()]


def test_a_chat_comes_in_lines_or_at_once(http: httpx2.Client) -> None:
    *parts, last = post(http, "chat", messages=ASK)
    [whole] = post(http, "chat", messages=ASK, stream=False)
    said = "".join(part["message"]["content"] for part in parts)
    assert last["message"]["content"] == ""
    assert whole["message"] == {"role": "assistant", "content": said}
    assert len(parts) > 1
    assert not any(part["done"] for part in parts)
    for end in (last, whole):
        assert (end["done"], end["done_reason"], end["eval_count"]) == (True, "length", 8)
        assert end["prompt_eval_count"] > 4
        assert end["total_duration"] >= end["eval_duration"] > 0
    body = {"model": "pie-tiny", "messages": ASK, "temperature": 0, "max_tokens": 8}
    openai = http.post("/v1/chat/completions", json=body).json()
    assert openai["choices"][0]["message"]["content"] == said


def test_a_prompt_goes_on(http: httpx2.Client) -> None:
    [raw] = post(http, "generate", prompt="The capital of Thessel is", raw=True, stream=False)
    assert raw["response"].startswith(" Argon")
    *parts, _ = post(http, "generate", prompt="Hi", system="Be kind.")
    assert "".join(part["response"] for part in parts)
    [loaded] = post(http, "generate", prompt="")
    assert (loaded["done_reason"], loaded["response"]) == ("load", "")
    schema = {"type": "object", "properties": {"n": {"const": 7}}, "required": ["n"]}
    [held] = post(http, "generate", prompt="Hi", format=schema, stream=False)
    assert json.loads(held["response"]) == {"n": 7}


def test_calls_and_their_results(http: httpx2.Client) -> None:
    call = {"function": {"name": "weather", "arguments": {"city": "Argon"}}}
    said = {"role": "assistant", "content": "", "tool_calls": [call, call]}
    results = [{"role": "tool", "content": text, "tool_name": "weather"} for text in ("a", "b")]
    for model in ("pie-tiny", "tools"):
        [more] = post(
            http,
            "chat",
            model=model,
            messages=[*ASK, said, *results],
            tools=[WEATHER],
            stream=False,
        )
        [less] = post(http, "chat", model=model, messages=ASK, tools=[WEATHER], stream=False)
        assert more["prompt_eval_count"] > less["prompt_eval_count"]
    [thinking] = post(http, "chat", model="tools", messages=ASK, think=True, stream=False)
    [plain] = post(http, "chat", model="tools", messages=ASK, stream=False)
    assert thinking["prompt_eval_count"] > plain["prompt_eval_count"]


def test_options_may_stand_beside_the_messages(http: httpx2.Client) -> None:
    """Where Vercel's provider of Ollama's writes them; those of `options` come first."""
    beside = {"max_output_tokens": 3, "temperature": 0.0, "top_p": 0.9, "tool_choice": "auto"}
    for options, count in ({}, 3), ({"num_predict": 2}, 2):
        [said] = post(http, "chat", messages=ASK, options=options, stream=False, **beside)
        assert said["eval_count"] == count


def test_what_is_served(http: httpx2.Client) -> None:
    for path in ("tags", "ps"):
        names = [each["model"] for each in http.get(f"/api/{path}").json()["models"]]
        assert names == ["pie-tiny", "tools", "gpt-4o", "caller"]
    shown = http.post("/api/show", json={"model": "tools"}).json()
    assert shown["capabilities"] == ["completion", "tools", "thinking"]
    assert shown["model_info"]["llama.context_length"] > 100
    version = http.get("/api/version").json()["version"]
    assert [*map(int, version.split("."))] >= [0, 6, 4], "too old for Copilot"


@pytest.mark.parametrize(
    ("path", "body", "told"),
    [
        ("chat", {"model": "nothing", "messages": ASK}, "no model is called"),
        ("chat", {"messages": ASK, "options": {"mirostat": 1}}, "mirostat"),
        ("chat", {"messages": ASK, "think": True}, "`think`"),
        ("generate", {"prompt": "x", "suffix": "y"}, "suffix"),
        ("embed", {"input": "x", "dimensions": 4096}, "`dimensions`"),
        ("push", {"model": "x"}, "there is nothing at"),
    ],
)
def test_errors_are_of_ollamas_form(
    http: httpx2.Client, path: str, body: dict[str, Any], told: str
) -> None:
    answer = http.post(f"/api/{path}", json={"model": "pie-tiny", **body})
    assert answer.status_code in (400, 404)
    assert told in answer.json()["error"]
