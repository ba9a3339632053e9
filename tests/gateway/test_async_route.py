"""`/v1/chat/completions` with a model `async/NAME`, and programs of one's own for routes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openai
import pytest
from support.gateways import Gateway
from support.servers import Server

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "fetch_weather",
        "parameters": {"properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
    "seconds": 0.1,
    "run": {"kind": "simulated", "seconds": 0.05, "result": "mild"},
}
ASKED: list[Any] = [{"role": "user", "content": "- fetch weather with city Paris."}]


def ask(client: openai.OpenAI, **fields: Any) -> Any:
    fields = {"messages": ASKED, "tools": [WEATHER], "temperature": 0, **fields}
    return client.chat.completions.create(model="async/pie-tiny", **fields)


def test_functions_run_while_the_model_writes(client: openai.OpenAI, gateway: Gateway) -> None:
    answer = ask(client)
    [choice] = answer.choices
    assert "mild" in choice.message.content
    assert choice.finish_reason == "stop"
    assert "[CALL]" not in choice.message.content
    assert answer.usage.prompt_tokens > 10
    chunks = list(ask(client, stream=True, stream_options={"include_usage": True}))
    said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert said == choice.message.content
    # Where the results come, and so how many tokens are written around them, depends on the clock.
    usage = chunks[-1].usage
    assert usage.prompt_tokens == answer.usage.prompt_tokens
    assert usage.completion_tokens > len(said.split())
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    nothing = {
        "logprobs": False,
        "stop": [],
        "top_logprobs": 0,
        "response_format": {"type": "text"},
    }
    default = {"skip_special_tokens": True, "structured_outputs": {}}
    same = ask(client, **nothing, extra_body=default)
    assert same.choices[0].message.content == choice.message.content


def test_what_has_no_place_beside_asynchronous_calls_is_refused(client: openai.OpenAI) -> None:
    own = {key: value for key, value in WEATHER.items() if key != "run"}
    for field, value in {
        "tools": [],
        "tools[0].run": [own],
        "n": 2,
        "logprobs": True,
        "stop": "x",
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "messages[0]": [{"role": "assistant", "content": "I am not the user"}],
        "messages": [],
    }.items():
        name = field.partition("[")[0]
        with pytest.raises(openai.BadRequestError) as refused:
            ask(client, **{name: value})
        assert refused.value.param == field
    create: Any = client.chat.completions.create
    elsewhere: list[Any] = [WEATHER, {"type": "mcp", "server": "none"}]
    for tool in elsewhere:
        with pytest.raises(openai.BadRequestError) as refused:
            create(model="pie-tiny", messages=ASKED, tools=[tool])
        assert refused.value.param == "tools[0]"
    with pytest.raises(openai.BadRequestError, match="none"):
        ask(client, tools=[{"type": "mcp", "server": "none"}])
    with pytest.raises(openai.NotFoundError):
        create(model="async/none", messages=ASKED, tools=[WEATHER])


SHOUT = """
import json
from inferlet import Context, Model, session

async def main(args):
    job = json.loads(args[0])
    context = Context(Model.load(job["model"]))
    messages = json.loads(job["messages"])
    context.user(messages[-1]["content"])
    text = await context.generate(max_tokens=job["max_tokens"]).collect_text()
    session.send(json.dumps(["prompt", len(context)]))
    session.send(json.dumps(["piece", 0, text.upper(), job["max_tokens"]]))
    session.send(json.dumps(["end", 0, "length", None, job["max_tokens"]]))
"""


def test_an_operator_s_program_serves_a_route(server: Server, tmp_path: Path) -> None:
    with server.client() as uploader:
        uploader.upload(SHOUT.encode(), "shout")
    with (
        Gateway(server, tmp_path, programs={"chat": "shout"}) as gateway,
        openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as client,
    ):
        hi: list[Any] = [{"role": "user", "content": "Hi"}]
        answer = client.chat.completions.create(model="pie-tiny", messages=hi, max_tokens=8)
        assert answer.choices[0].message.content == "HELLO! I AM PIE"
        plain = client.completions.create(model="pie-tiny", prompt="Hi", max_tokens=2)
        assert plain.choices[0].text != plain.choices[0].text.upper()
        with server.client() as remover:
            remover.remove_program("shout")
        with pytest.raises(openai.NotFoundError, match="shout"):
            client.chat.completions.create(model="pie-tiny", messages=hi)
