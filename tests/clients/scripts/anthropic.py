"""Anthropic's official client in Python, and traffic of Claude Code's shape."""

import asyncio
import json
from typing import Literal

import anthropic
from anthropic import AsyncAnthropic, beta_tool
from cases import BASE, MODEL, case, run
from pydantic import BaseModel

client = anthropic.Anthropic(base_url=BASE, api_key="none", timeout=120)
create, stream = client.messages.create, client.messages.stream
HI = [{"role": "user", "content": "What is the capital of Thessel?"}]
ASK = {"model": MODEL, "messages": HI, "max_tokens": 24, "extra_body": {"temperature": 0}}
SCHEMA = {
    "type": "object",
    "properties": {"kind": {"$ref": "#/$defs/Kind"}, "x": {"type": "integer", "maximum": 9}},
    "required": ["kind"],
    "$defs": {"Kind": {"type": "string", "enum": ["a", "b"]}},
}
TOOL = {"name": "point", "description": "Puts a point.", "input_schema": SCHEMA}
FORCED = {**ASK, "tools": [TOOL], "max_tokens": 120, "tool_choice": {"type": "any"}}
CACHED = {"cache_control": {"type": "ephemeral"}}
IMAGE = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}


class Inner(BaseModel):
    kind: Literal["a", "b"]


class Point(BaseModel):
    first: Inner
    second: Inner | None


@case()
def whole_and_stream():
    whole = create(**ASK)
    assert (whole.type, whole.role, whole.model) == ("message", "assistant", MODEL)
    assert whole.stop_reason in ("end_turn", "max_tokens")
    events = list(create(**ASK, stream=True))
    kinds = [event.type for event in events]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert events[0].message.usage.input_tokens > 0
    assert events[-2].usage.output_tokens == whole.usage.output_tokens
    with stream(**ASK) as s:
        text = "".join(s.text_stream)
        last = s.get_final_message()
    assert text == whole.content[0].text == last.content[0].text
    assert last.stop_reason == whole.stop_reason


@case()
def tools_and_back():
    told = list(HI)
    for choice in ({"type": "any"}, {"type": "tool", "name": "point"}):
        answer = create(**{**FORCED, "messages": told, "tool_choice": choice})
        assert answer.stop_reason in ("tool_use", "max_tokens")
        calls = [block for block in answer.content if block.type == "tool_use"]
        assert calls
        assert all(call.input["kind"] in ("a", "b") for call in calls)
        results = [
            {"type": "tool_result", "tool_use_id": calls[0].id, "content": "ok"},
            *({"type": "tool_result", "tool_use_id": call.id, "is_error": False, **CACHED,
               "content": [{"type": "text", "text": "ok"}]} for call in calls[1:]),
        ]  # fmt: skip
        told.append({"role": "assistant", "content": answer.content})
        told.append({"role": "user", "content": [*results, {"type": "text", "text": "Go on."}]})
    assert len(calls) == 1
    create(**{**FORCED, "messages": told, "tool_choice": {"type": "auto"}})
    create(**{**FORCED, "messages": told, "tool_choice": {"type": "none"}})


@case()
def tools_streamed():
    inputs, parts = [], ""
    for event in create(**FORCED, stream=True):
        if event.type == "content_block_start" and event.content_block.type == "tool_use":
            assert event.content_block.input == {}
            parts = ""
        elif event.type == "content_block_delta" and event.delta.type == "input_json_delta":
            parts += event.delta.partial_json
        elif event.type == "content_block_stop":
            inputs.append(json.loads(parts))
    with stream(**FORCED) as s:
        kinds = {event.type for event in s}
        last = s.get_final_message()
    assert "input_json" in kinds
    assert inputs == [block.input for block in last.content]
    told = [*HI, {"role": "assistant", "content": [b.model_dump() for b in last.content]}]
    results = [{"type": "tool_result", "tool_use_id": b.id} for b in last.content]
    create(**{**FORCED, "messages": [*told, {"role": "user", "content": results}]})


@case(long=True)
def parse():
    answer = client.messages.parse(**{**ASK, "max_tokens": 300}, output_format=Point)
    assert answer.stop_reason == "max_tokens" or isinstance(answer.parsed_output, Point)
    told = [*HI, {"role": "assistant", "content": answer.content}, *HI]
    create(**{**ASK, "messages": told})
    with stream(**{**ASK, "max_tokens": 300}, output_format=Point) as s:
        s.until_done()


@case()
def tool_runner():
    @beta_tool
    def lookup(name: Literal["a", "b"]) -> str:
        """Looks something up.

        Args:
            name: what
        """
        return f"{name} is there"

    runner = client.beta.messages.tool_runner(
        model=MODEL, max_tokens=100, messages=HI, tools=[lookup], max_iterations=3,
        tool_choice={"type": "tool", "name": "lookup"},
    )  # fmt: skip
    messages = list(runner)
    assert len(messages) == 3
    assert messages[0].content[0].name == "lookup"


@case(long=True)
def tool_runner_streams():
    @beta_tool
    def lookup() -> str:
        """Looks something up."""
        return "there"

    runner = client.beta.messages.tool_runner(
        model=MODEL, max_tokens=60, messages=HI, tools=[lookup], max_iterations=2, stream=True,
        tool_choice={"type": "any"},
    )  # fmt: skip
    assert all([event.type for event in each][-1] == "message_stop" for each in runner)


@case()
def prefill():
    start = "The capital of Thessel is"
    told = [*HI, {"role": "assistant", "content": start}]
    answer = create(**{**ASK, "messages": told})
    assert not answer.content or not answer.content[0].text.startswith(start)


@case()
def count():
    counted = client.messages.count_tokens(model=MODEL, messages=HI, system="Hi", tools=[TOOL])
    used = create(**{**ASK, "tools": [TOOL], "tool_choice": {"type": "auto"}}, system="Hi").usage
    assert counted.input_tokens == used.input_tokens + used.cache_read_input_tokens
    client.beta.messages.count_tokens(model=MODEL, messages=HI)


CODE = {
    "model": MODEL,
    "max_tokens": 32000,
    "system": [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.0; cch=00000;"},
        {"type": "text", "text": "You are Claude Code.", **CACHED},
        {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral", "ttl": "1h"}},
    ],
    "tools": [
        {**TOOL, "input_schema": {**SCHEMA, "$schema": "http://json-schema.org/draft-07/schema#"},
         "eager_input_streaming": True},
        {"name": "Bash", "description": "Runs.", "input_schema": {
            "type": "object", "properties": {"command": {"type": "string"}},
            "required": ["command"], "additionalProperties": False}, **CACHED},
    ],
    "metadata": {"user_id": "user_x_account__session_y"},
    "extra_headers": {"anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14",
                      "x-app": "cli", "user-agent": "claude-cli/2.1.0 (external, cli)"},
    "extra_query": {"beta": "true"},
}  # fmt: skip


@case()
def claude_code():
    reminder = {"type": "text", "text": "<system-reminder>\nNo.\n</system-reminder>"}
    told = [{"role": "user", "content": [reminder, {"type": "text", "text": "Hi", **CACHED}]}]
    for number in range(3):
        ask = {**CODE, "messages": told, "max_tokens": 200 if number < 2 else 32000}
        if number < 2:
            ask["tool_choice"] = {"type": "tool", "name": "point"}
        with stream(**ask) as s:
            last = s.get_final_message()
        calls = [block for block in last.content if block.type == "tool_use"]
        results = [
            {"tool_use_id": call.id, "type": "tool_result", "content": "<error>no</error>",
             "is_error": True, **CACHED}
            for call in calls
        ]  # fmt: skip
        told += [{"role": "assistant", "content": [b.to_dict() for b in last.content]},
                 {"role": "user", "content": [*results, reminder]}]  # fmt: skip
    thinking = {"type": "adaptive"}
    edits = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}
    client.beta.messages.create(**CODE | {"max_tokens": 30}, messages=told, thinking=thinking,
                                betas=["context-management-2025-06-27"],
                                context_management=edits)  # fmt: skip


@case(long=True)
def claude_code_small_asks():
    """The quota's check, a title with a schema, a count."""
    create(**{**ASK, "max_tokens": 1, "messages": [{"role": "user", "content": "quota"}]})
    form = {"type": "json_schema", "schema": {
        "type": "object", "properties": {"title": {"type": "string", "maxLength": 9}},
        "required": ["title"], "additionalProperties": False}}  # fmt: skip
    answer = create(**{**ASK, "max_tokens": 200}, output_config={"format": form}, tools=[],
                    thinking={"type": "disabled"})  # fmt: skip
    assert "title" in json.loads(answer.content[0].text)
    counted = {key: CODE[key] for key in ("model", "system", "tools")}
    assert client.beta.messages.count_tokens(**counted, messages=HI, betas=["x"]).input_tokens


@case()
def thinking():
    create(**{**ASK, "max_tokens": 2000}, thinking={"type": "enabled", "budget_tokens": 1024})


@case(refused=(400, "reads no images"))
def image():
    content = [{"type": "image", "source": IMAGE, **CACHED}]
    create(**{**ASK, "messages": [{"role": "user", "content": content}]})


@case(refused=(400, "document"))
def document():
    source = {"type": "text", "media_type": "text/plain", "data": "x"}
    content = [{"type": "document", "source": source}]
    create(**{**ASK, "messages": [{"role": "user", "content": content}]})


@case(refused=(400, "tool_choice"))
def web_search():
    tools = [{"type": "web_search_20250305", "name": "web_search"}, TOOL]
    create(**ASK, tools=tools)
    create(**ASK, tools=tools, tool_choice={"type": "tool", "name": "web_search"})


@case(refused=(400, "mcp_servers"))
def mcp():
    server = {"type": "url", "url": "https://x.example", "name": "x"}
    client.beta.messages.create(**ASK, mcp_servers=[server], betas=["mcp-client-2025-04-04"])


@case(refused=(404, "/v1/messages/batches"))
def batches():
    client.messages.batches.list()


@case()
def errors():
    for kind, word, wrong in (
        (anthropic.NotFoundError, "not_found_error", {"model": "claude"}),
        (anthropic.BadRequestError, "invalid_request_error", {"max_tokens": -5}),
        (anthropic.BadRequestError, "invalid_request_error", {"messages": []}),
        (anthropic.BadRequestError, "invalid_request_error",
         {"messages": [{"role": "user", "content": "word " * 20000}]}),
    ):  # fmt: skip
        for streams in (False, True):
            try:
                create(**{**ASK, **wrong}, stream=streams)
            except kind as error:
                assert error.body["type"] == "error"
                assert error.body["error"]["type"] == word
                assert error.request_id, "no request-id"
            else:
                raise AssertionError(wrong)


@case()
def left_and_timed_out():
    long = {**ASK, "max_tokens": 1500, "system": "Write a long story."}
    with stream(**long) as s:
        next(iter(s))
    try:
        client.with_options(timeout=0.005, max_retries=0).messages.create(**long)
    except anthropic.APITimeoutError:
        create(**ASK)
        return
    raise AssertionError("no timeout")


@case()
async def asynchronous():
    async with AsyncAnthropic(base_url=BASE, api_key="none") as many:
        answers = await asyncio.gather(*(many.messages.create(**ASK) for _ in range(5)))
        async with many.messages.stream(**ASK) as s:
            last = await s.get_final_message()
        assert {a.content[0].text for a in answers} == {last.content[0].text}
        raw = await many.messages.with_raw_response.create(**ASK)
        assert raw.headers["request-id"]


run()
