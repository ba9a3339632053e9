"""Tools, by a model whose chat template knows of them; and Anthropic's messages."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import httpx2
import msgspec
import openai
import pytest

from pie_gateway.openai.responses import chat_request, items_of
from pie_gateway.schemas.messages import AssistantMessage, PlacedMessage, ToolMessage
from pie_gateway.schemas.responses import ResponsesRequest

CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Pargos", "Argon"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "weather", "parameters": CITY}},
    {"type": "function", "function": {"name": "time", "parameters": CITY}},
]
ASK: list[Any] = [{"role": "user", "content": "How is the weather in Argon?"}]
NAMED: Any = {"type": "function", "function": {"name": "time"}}  # the tool that is to be called
RESPONSE: dict[str, Any] = {
    "model": "tools",
    "input": ASK,
    "tools": [{"type": "function", "name": "time", "parameters": CITY}],
    "tool_choice": {"type": "function", "name": "time"},
    "temperature": 0,
}
MESSAGE: dict[str, Any] = {
    "model": "tools",
    "messages": ASK,
    "tools": [{"name": "time", "input_schema": CITY, "eager_input_streaming": True}],
    "tool_choice": {"type": "tool", "name": "time"},
    "max_tokens": 200,
    "extra_body": {"temperature": 0},
}


def ask(client: openai.OpenAI, **fields: Any) -> Any:
    fields = {"temperature": 0, "max_tokens": 60, "messages": ASK, "tools": TOOLS, **fields}
    return client.chat.completions.create(model="tools", **fields)


def test_a_call_that_has_to_be_made(client: openai.OpenAI) -> None:
    any_name = {"weather", "time"}
    for choice, names in (("required", any_name), ("any", any_name), (NAMED, {"time"})):
        answer = ask(client, tool_choice=choice, parallel_tool_calls=False).choices[0]
        assert answer.finish_reason == "tool_calls"
        assert answer.message.content is None
        [call] = answer.message.tool_calls
        assert call.function.name in names
        assert json.loads(call.function.arguments)["city"] in ("Pargos", "Argon")
    deltas = [
        part.choices[0].delta
        for part in ask(client, tool_choice=NAMED, parallel_tool_calls=False, stream=True)
    ]
    first, *more = [call for delta in deltas for call in delta.tool_calls or []]
    assert (first.index, first.function.name, first.function.arguments) == (0, "time", "")
    assert len(more) > 1, "arguments come as they are written"
    assert all((each.index, each.id, each.function.name) == (0, None, None) for each in more)
    assert "city" in json.loads("".join(each.function.arguments for each in more))
    assert not any(delta.content for delta in deltas)


def test_a_named_function_is_called_once(
    client: openai.OpenAI, claude: anthropic.Anthropic
) -> None:
    """Also where the model would go on: the bias is for the comma."""
    bias = dict.fromkeys(tokens_with(client, ","), 100)
    answer = ask(client, tool_choice=NAMED, logit_bias=bias, max_tokens=200).choices[0]
    assert (answer.finish_reason, len(answer.message.tool_calls)) == ("tool_calls", 1)
    response = client.responses.create(max_output_tokens=200, **RESPONSE)
    assert [(each.type, each.name) for each in response.output] == [("function_call", "time")]
    message = claude.messages.create(**MESSAGE)
    assert [(each.type, each.name) for each in message.content] == [("tool_use", "time")]


def test_all_apis_stream_arguments(client: openai.OpenAI, claude: anthropic.Anthropic) -> None:
    events: list[Any] = list(client.responses.create(stream=True, **RESPONSE))
    name = "response.function_call_arguments"
    pieces = [each.delta for each in events if each.type == f"{name}.delta"]
    [done] = [each for each in events if each.type == f"{name}.done"]
    [call] = events[-1].response.output
    assert len(pieces) > 1
    assert "".join(pieces) == done.arguments == call.arguments
    assert "city" in json.loads(call.arguments)
    parts: list[Any] = list(claude.messages.create(stream=True, **MESSAGE))
    deltas = [each.delta for each in parts if each.type == "content_block_delta"]
    assert {each.type for each in deltas} == {"input_json_delta"}
    assert len(deltas) > 1
    assert "city" in json.loads("".join(each.partial_json for each in deltas))


def test_what_a_form_forces_is_no_part_of_the_prompt(
    client: openai.OpenAI, claude: anthropic.Anthropic
) -> None:
    """The prefix cache has the beginning of the call, too."""
    for _ in range(2):
        used = ask(client, tool_choice=NAMED).usage
        message = claude.messages.create(**MESSAGE)
    assert 0 < used.prompt_tokens_details.cached_tokens <= used.prompt_tokens
    assert message.usage.input_tokens >= 0


def test_a_forced_call_goes_with_a_form_of_what_is_said(client: openai.OpenAI) -> None:
    answer = ask(client, tool_choice=NAMED, response_format={"type": "json_object"}).choices[0]
    assert [call.function.name for call in answer.message.tool_calls] == ["time"]


def test_a_model_that_goes_on_calling_ends_all_the_same(client: openai.OpenAI) -> None:
    """The bias is for the comma."""
    bias = dict.fromkeys(tokens_with(client, ","), 100)
    answer = ask(client, tool_choice="required", logit_bias=bias, max_tokens=600).choices[0]
    assert (answer.finish_reason, len(answer.message.tool_calls)) == ("tool_calls", 8)


def test_finished_calls_survive_a_cut(client: openai.OpenAI) -> None:
    bias: Any = dict.fromkeys(tokens_with(client, ","), 100)
    fields: dict[str, Any] = {"tool_choice": "required", "logit_bias": bias, "max_tokens": 100}
    whole = ask(client, **fields).choices[0]
    assert whole.finish_reason == "length"
    assert whole.message.content is None
    calls = [call.function for call in whole.message.tool_calls]
    assert len(calls) > 1
    for call in calls:
        assert json.loads(call.arguments)["city"] in ("Pargos", "Argon")
    parts = [part.choices[0] for part in ask(client, stream=True, **fields)]
    told: list[str] = []
    for call in (call for part in parts for call in part.delta.tool_calls or []):
        told += [] if call.function.name is None else [""]
        told[call.index] += call.function.arguments
    given = [json.loads(call.arguments) for call in calls]
    assert [json.loads(arguments) for arguments in told[: len(calls)]] == given
    assert len(told) <= len(calls) + 1, "one may have begun"
    assert not any(part.delta.content for part in parts)
    assert parts[-1].finish_reason == "length"


def test_calls_go_back_in(client: openai.OpenAI, claude: anthropic.Anthropic) -> None:
    whole = ask(client, tool_choice=NAMED).choices[0].message
    [call] = whole.tool_calls
    result: Any = {"role": "tool", "tool_call_id": call.id, "name": "time", "content": "now"}
    assembled = {**whole.model_dump(), "tool_calls": [{"index": 0, **call.model_dump()}]}
    parsed = {**call.model_dump(), "function": {**call.function.model_dump()}}
    parsed["function"]["parsed_arguments"] = {"city": "Argon"}
    for message in (whole, whole.model_dump(), assembled, {**assembled, "tool_calls": [parsed]}):
        again = ask(client, messages=[*ASK, message, result], max_tokens=4)
    unnamed = {key: value for key, value in result.items() if key != "name"}
    less = ask(client, messages=[*ASK, message, unnamed], max_tokens=4)
    alone = ask(client, max_tokens=4)
    lengths = [each.usage.prompt_tokens for each in (alone, less, again)]
    assert lengths == sorted(set(lengths)), "templates get the call, and the name"

    tool: Any = {"name": "time", "input_schema": CITY, "cache_control": None}
    fields: dict[str, Any] = {"model": "tools", "max_tokens": 200, "tools": [tool]}
    one: Any = {"type": "any", "disable_parallel_tool_use": True}
    answer = claude.messages.create(messages=ASK, tool_choice=one, **fields)
    [used] = [block.model_dump() for block in answer.content]
    assert (answer.stop_reason, used["type"], used["name"]) == ("tool_use", "tool_use", "time")
    outcome: Any = {"type": "tool_result", "tool_use_id": used["id"], "content": None}
    said: Any = [{"role": "assistant", "content": [used]}, {"role": "user", "content": [outcome]}]
    again = claude.messages.create(messages=[*ASK, *said], **fields)
    before, after = (
        each.usage.input_tokens + (each.usage.cache_read_input_tokens or 0)
        for each in (answer, again)
    )
    assert before < after


def tokens_with(client: openai.OpenAI, text: str, model: str = "tools") -> list[str]:
    """The ids of the tokens of a text, but for the one that begins each prompt."""
    answer: Any = client.completions.create(
        model=model, prompt=text, max_tokens=1, extra_body={"return_token_ids": True}
    )
    return [str(token) for token in answer.choices[0].prompt_token_ids[1:]]


def test_who_may_not_call_is_told_the_same_and_does_not(client: openai.OpenAI) -> None:
    """So what was computed of a conversation is found, whatever the choice."""
    bias = dict.fromkeys(tokens_with(client, "<tool_call>"), 100)
    may, never = (
        ask(client, logit_bias=bias, max_tokens=8, tool_choice=choice)
        for choice in ("auto", "none")
    )
    assert never.usage.prompt_tokens == may.usage.prompt_tokens
    assert "<tool_call>" not in never.choices[0].message.content


def test_what_does_not_go_together(client: openai.OpenAI) -> None:
    unknown = {"type": "function", "function": {"name": "nothing"}}
    for fields, param in (
        ({"tool_choice": unknown}, "tool_choice"),
        ({"tool_choice": "required", "tools": openai.omit}, "tool_choice"),
        ({"tool_choice": "required", "extra_body": {"guided_regex": "a+"}}, "tool_choice"),
    ):
        with pytest.raises(openai.BadRequestError) as raised:
            ask(client, **fields)
        assert raised.value.param == param


def test_functions_have_nothing_but_their_parameters(client: openai.OpenAI) -> None:
    tools: Any = [{"type": "function", "function": {"name": "now"}}]
    answer = ask(client, tools=tools, tool_choice="required", parallel_tool_calls=False)
    assert [call.function.arguments for call in answer.choices[0].message.tool_calls] == ["{}"]
    schema = {"type": "object", "properties": {"a": {"const": 1}}}
    form: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    shut = ask(client, tools=openai.omit, response_format=form)
    assert json.loads(shut.choices[0].message.content) in ({}, {"a": 1})


def test_definitions_in_a_functions_schema_are_its_own(client: openai.OpenAI) -> None:
    """Also where a model is told of the tools by the gateway, and the text begins a call."""

    def tool(name: str, value: int) -> Any:
        schema: dict[str, Any] = {"$defs": {"N": {"const": value}}, "type": "object"}
        schema |= {"properties": {"n": {"$ref": "#/$defs/N"}}, "required": ["n"], "$id": "same"}
        return {"type": "function", "function": {"name": name, "parameters": schema}}

    tools = [tool("one", 1), tool("two", 2)]
    bias: Any = dict.fromkeys(tokens_with(client, "<", "pie-tiny"), 100)
    for fields in ({"tool_choice": "required"}, {"logit_bias": bias, "model": "pie-tiny"}):
        ask: dict[str, Any] = {"model": "tools", "messages": ASK, "tools": tools, **fields}
        answer: Any = client.chat.completions.create(**ask, max_tokens=200, temperature=0)
        calls = [call.function for call in answer.choices[0].message.tool_calls]
        assert calls
        for call in calls:
            assert json.loads(call.arguments) == {"n": {"one": 1, "two": 2}[call.name]}


def test_only_allowed_functions_are_called(client: openai.OpenAI) -> None:
    def choice(mode: str, name: str) -> Any:
        tools = [{"type": "function", "function": {"name": name}}]
        return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}

    for name in ("time", "weather"):
        answer = ask(client, tool_choice=choice("required", name), parallel_tool_calls=False)
        assert [call.function.name for call in answer.choices[0].message.tool_calls] == [name]
        flat: Any = [{"type": "function", **tool["function"]} for tool in TOOLS]
        allowed: Any = {"type": "allowed_tools", "mode": "required"}
        allowed["tools"] = [{"type": "function", "name": name}]
        response: Any = client.responses.create(
            model="tools", input=ASK, tools=flat, tool_choice=allowed, parallel_tool_calls=False
        )
        assert [call.name for call in response.output] == [name]
        assert response.tool_choice.tools == allowed["tools"]
    free = ask(client, tool_choice=choice("auto", "time"), max_tokens=1)
    assert free.usage.prompt_tokens == ask(client, max_tokens=1).usage.prompt_tokens
    with pytest.raises(openai.BadRequestError, match="no function is called 'other'"):
        ask(client, tool_choice=choice("auto", "other"))


def test_more_tokens_than_the_context_has(
    client: openai.OpenAI, claude: anthropic.Anthropic
) -> None:
    """Clients of Anthropic's always name a bound, and a large one."""
    fields: dict[str, Any] = {"model": "pie-tiny", "messages": ASK}
    whole: Any = claude.messages.create(max_tokens=32000, timeout=60, **fields)
    assert whole.stop_reason in ("end_turn", "max_tokens")
    with pytest.raises(openai.BadRequestError, match="are to follow"):
        client.chat.completions.create(max_tokens=32000, **fields)


@pytest.mark.parametrize("choice", ["auto", "required"])
@pytest.mark.parametrize("strict", [None, True])
def test_what_no_grammar_has_refuses_strict_tools_alone(
    http: httpx2.Client, choice: str, strict: bool | None
) -> None:
    """A keyword of one tool of a stranger's would cost a client all of its tools."""
    email = {"type": "string", "format": "email", "pattern": r"^(?!\.)(?!.*\.\.)[a-z.]+@[a-z.]+$"}
    for schema in (
        {"properties": {"to": email}},
        {"properties": {"to": {"type": "array", "items": {"type": "string"}, "uniqueItems": True}}},
        {"properties": {"to": {"type": "any"}, "count": {"type": "INTEGER"}}},
    ):
        function = {"name": "f", "strict": strict, "parameters": {"type": "object", **schema}}
        body = {"model": "pie-tiny", "messages": ASK, "max_tokens": 40, "tool_choice": choice}
        body["tools"] = [{"type": "function", "function": function}]
        answer = http.post("/v1/chat/completions", json=body)
        assert answer.status_code == (400 if strict else 200), answer.text


@pytest.mark.parametrize("model", ["pie-tiny", "tools"])
def test_calls_by_a_model_whose_template_may_tell_of_no_tools(
    client: openai.OpenAI, model: str
) -> None:
    """`pie-tiny` is told by a prompt of the gateway's."""
    create: Any = client.chat.completions.create
    fields: dict[str, Any] = {"temperature": 0, "max_tokens": 60}
    answer: Any = create(model=model, messages=ASK, tools=TOOLS, tool_choice="required", **fields)
    calls = answer.choices[0].message.tool_calls
    assert {call.function.name for call in calls} <= {"weather", "time"}
    results = [{"role": "tool", "tool_call_id": call.id, "content": "rain"} for call in calls]
    told: Any = [*ASK, answer.choices[0].message, *results]
    free: Any = create(model=model, messages=told, tools=TOOLS, **fields)
    assert free.usage.prompt_tokens > answer.usage.prompt_tokens
    assert free.choices[0].message.content or free.choices[0].message.tool_calls
    system: Any = [{"role": "system", "content": "Be kind."}, *ASK]
    create(model=model, messages=system, tools=TOOLS, max_tokens=1)
    create(model=model, messages=told, max_tokens=1)  # a history alone


def test_a_last_message_of_the_assistant_is_continued(
    client: openai.OpenAI, claude: anthropic.Anthropic
) -> None:
    begun = "The capital of Thessel is"
    messages: Any = [{"role": "user", "content": "What?"}, {"role": "assistant", "content": begun}]
    fields: dict[str, Any] = {"model": "pie-tiny", "max_tokens": 4}
    prefilled: Any = claude.messages.create(
        messages=messages, extra_body={"temperature": 0}, **fields
    )
    more = {"continue_final_message": True, "add_generation_prompt": False}
    chat: Any = client.chat.completions.create(
        messages=messages, temperature=0, extra_body=more, **fields
    )
    assert prefilled.content[0].text == chat.choices[0].message.content
    assert chat.choices[0].message.content.startswith(" Argon")
    with pytest.raises(openai.BadRequestError, match="no text of the assistant"):
        client.chat.completions.create(messages=ASK, extra_body=more, **fields)
    thinking: Any = [*ASK, {"role": "assistant", "content": "<think>"}]
    more |= {"ignore_eos": True}
    answer: Any = ask(client, messages=thinking, tools=openai.omit, max_tokens=5, extra_body=more)
    message = answer.choices[0].message
    assert message.reasoning_content
    assert not message.content


def test_a_template_gets_its_arguments(client: openai.OpenAI, claude: anthropic.Anthropic) -> None:
    def tokens(**fields: Any) -> int:
        return int(ask(client, tools=openai.omit, max_tokens=1, **fields).usage.prompt_tokens)

    plain = tokens()
    off = tokens(extra_body={"chat_template_kwargs": {"enable_thinking": False}})
    assert off > plain
    assert tokens(reasoning_effort="none") == off
    assert tokens(reasoning_effort="high") == tokens(
        extra_body={"chat_template_kwargs": {"enable_thinking": True}}
    )
    thinking: Any = {"type": "enabled", "budget_tokens": 1024}
    thought = claude.messages.create(model="tools", max_tokens=1, messages=ASK, thinking=thinking)
    used = thought.usage
    assert used.input_tokens + (used.cache_read_input_tokens or 0) > plain
    for wrong in ("no_such", "tools", "messages"):
        with pytest.raises(openai.BadRequestError, match="reads enable_thinking") as raised:
            tokens(extra_body={"chat_template_kwargs": {wrong: 1}})
        assert raised.value.param == f"chat_template_kwargs.{wrong}"


def test_messages(claude: anthropic.Anthropic, client: openai.OpenAI) -> None:
    hi: list[Any] = [{"role": "user", "content": "Hi"}]
    fields: dict[str, Any] = {"model": "pie-tiny", "messages": hi, "extra_body": {"temperature": 0}}
    answer: Any = claude.messages.create(max_tokens=8, **fields)
    assert (answer.type, answer.role, answer.stop_reason) == ("message", "assistant", "max_tokens")
    assert answer.usage.output_tokens == 8
    same = client.chat.completions.create(
        model="pie-tiny", messages=hi, temperature=0, max_tokens=8
    )
    assert answer.content[0].text == same.choices[0].message.content
    counted = claude.messages.count_tokens(model="pie-tiny", messages=hi)
    assert counted.input_tokens == answer.usage.input_tokens
    told = claude.messages.count_tokens(model="pie-tiny", messages=hi, system="Be kind.")
    assert told.input_tokens > counted.input_tokens
    with claude.messages.stream(max_tokens=8, **fields) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == answer.content[0].text
    assert (final.usage, final.stop_reason) == (answer.usage, "max_tokens")
    word = text.split()[1]
    cut: Any = claude.messages.create(max_tokens=8, stop_sequences=[word], **fields)
    assert (cut.stop_reason, cut.stop_sequence) == ("stop_sequence", word)


def test_errors_are_of_anthropics_form(claude: anthropic.Anthropic) -> None:
    hi: list[Any] = [{"role": "user", "content": "Hi"}]
    with pytest.raises(anthropic.NotFoundError) as missing:
        claude.messages.create(model="claude", messages=hi, max_tokens=1)
    assert missing.value.body["error"]["type"] == "not_found_error"  # type: ignore[index]
    assert missing.value.request_id
    [first, *_] = claude.models.list()
    assert first.created_at.year > 2000


def test_images_of_a_result_are_read_as_the_users(claude: anthropic.Anthropic) -> None:
    source = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
    used = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}}
    seen = [{"type": "text", "text": "x"}, {"type": "image", "source": source}]
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": seen}
    told: list[Any] = [*ASK, {"role": "assistant", "content": [used]}]
    told.append({"role": "user", "content": [result]})
    with pytest.raises(anthropic.BadRequestError, match="reads no images"):
        claude.messages.create(model="tools", max_tokens=1, messages=told)
    calls = [
        {"type": "function_call", "call_id": name, "name": "look", "arguments": "{}"}
        for name in ("a", "b")
    ]
    image = f"data:image/png;base64,{source['data']}"
    parts = [{"type": "input_text", "text": "x"}, {"type": "input_image", "image_url": image}]
    results = [{"type": "function_call_output", "call_id": "a", "output": parts}]
    results.append({"type": "function_call_output", "call_id": "b", "output": "y"})
    given = msgspec.convert({"input": [*calls, *results]}, ResponsesRequest)
    found = chat_request(given, items_of(given)).messages
    kinds = [AssistantMessage, ToolMessage, ToolMessage, PlacedMessage]
    assert [type(each) for each in found] == kinds


def test_responses(client: openai.OpenAI) -> None:
    fields: dict[str, Any] = {"model": "pie-tiny", "temperature": 0, "max_output_tokens": 4}
    answer = client.responses.create(input="Hi", **fields)
    assert (answer.status, answer.object) == ("incomplete", "response")
    assert answer.incomplete_details.reason == "max_output_tokens"
    same = client.chat.completions.create(
        model="pie-tiny", messages=[{"role": "user", "content": "Hi"}], temperature=0, max_tokens=4
    )
    assert answer.output_text == same.choices[0].message.content
    said: list[Any] = [{"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}]
    whole = client.responses.create(model="pie-tiny", input="Hi", temperature=0)
    assert whole.status == "completed"
    with client.responses.stream(model="pie-tiny", input=said, temperature=0) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert final.output_text == whole.output_text
    assert final.usage == whole.usage
    assert kinds[0] == "response.created"
    assert kinds.count("response.output_text.delta") > 1
    assert kinds[-1] == "response.completed"
    told: Any = client.responses.create(input="Hi", instructions="Be kind.", **fields)
    assert told.usage.input_tokens > final.usage.input_tokens  # type: ignore[union-attr]


def test_a_kept_response_is_streamed_again(client: openai.OpenAI, http: httpx2.Client) -> None:
    fields: dict[str, Any] = {"model": "pie-tiny", "input": "Hi", "max_output_tokens": 5}
    first: list[Any] = list(client.responses.create(**fields, stream=True))
    name = first[0].response.id
    assert list(client.responses.retrieve(name, stream=True)) == first
    rest = client.responses.retrieve(name, stream=True, starting_after=3, include_obfuscation=False)
    assert list(rest) == first[4:]
    assert list(client.responses.retrieve(name, stream=True, starting_after=10**9)) == []
    whole = client.responses.create(**fields)
    last: Any = list(client.responses.retrieve(whole.id, stream=True))[-1]
    assert last.response == whole == client.responses.retrieve(whole.id)
    for wrong in (
        {"starting_after": 1},
        {"stream": "maybe"},
        {"include_obfuscation": "true"},
        {"include[]": "message.output_text.logprobs"},
        {"starting_after": "x"},
    ):
        answer = http.get(f"/v1/responses/{name}", params=wrong)
        param = next(iter(wrong)).removesuffix("[]")
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text


def test_a_response_goes_on_from_an_earlier_one(client: openai.OpenAI) -> None:
    fields: dict[str, Any] = {"model": "tools", "temperature": 0, "max_output_tokens": 6}
    first = client.responses.create(input="How is the weather?", **fields)
    then = client.responses.create(input="And now?", previous_response_id=first.id, **fields)
    whole: Any = [{"role": "user", "content": "How is the weather?"}, *first.output]
    whole.append({"role": "user", "content": "And now?"})
    same = client.responses.create(input=whole, store=False, **fields)
    assert (then.output_text, then.usage.input_tokens) == (
        same.output_text,
        same.usage.input_tokens,
    )
    assert client.responses.retrieve(first.id).output_text == first.output_text
    again = client.responses.create(input="Now?", previous_response_id=then.id, **fields)
    assert again.usage.input_tokens > then.usage.input_tokens
    items: Any = list(client.responses.input_items.list(then.id, limit=2))
    assert [item.role for item in items] == ["user", "assistant", "user"]
    assert [item.content[0].text for item in items][::2] == ["And now?", "How is the weather?"]
    oldest: Any = client.responses.input_items.list(then.id, limit=1, order="asc")
    assert (oldest.data[0].content[0].text, oldest.has_more) == ("How is the weather?", True)
    whole[1] = {"type": "item_reference", "id": first.output[0].id}
    named = client.responses.create(input=whole, **fields)
    assert named.usage.input_tokens == then.usage.input_tokens
    count: Any = client.responses.input_tokens.count
    assert count(model="tools", input=whole).input_tokens == then.usage.input_tokens
    with pytest.raises(openai.NotFoundError, match="has an item 'msg_x'"):
        client.responses.create(input=[{"type": "item_reference", "id": "msg_x"}], **fields)
    client.responses.delete(first.id)
    for name in (first.id, same.id, "x"):
        with pytest.raises(openai.NotFoundError, match="is kept"):
            client.responses.retrieve(name)
        with pytest.raises(openai.NotFoundError) as missing:
            client.responses.create(input="x", previous_response_id=name, **fields)
        assert missing.value.param == "previous_response_id"


def test_thoughts_go_back_in(client: openai.OpenAI) -> None:
    """A reasoning item is what the template is told that the next message, or call, came of."""
    said: Any = {"type": "message", "role": "assistant", "content": "Hello", "phase": None}
    call: Any = {"type": "function_call", "call_id": "c", "name": "time", "arguments": "{}"}
    thought: Any = {"type": "reasoning_text", "text": "well, well"}
    item: Any = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [thought]}
    item |= {"status": "completed", "encrypted_content": None}

    def tokens(*items: Any) -> int:
        fields: dict[str, Any] = {"model": "tools", "max_output_tokens": 1}
        answer: Any = client.responses.create(input=[*ASK, *items, *ASK], **fields)
        return int(answer.usage.input_tokens)

    more = tokens(item, said) - tokens(said)
    assert more > 0
    assert tokens(item, call) - tokens(call) == more
    assert tokens(item, said, call) - tokens(said, call) == more
    turn = tokens(said) - tokens()
    assert tokens(item) - tokens() > turn - more, "a thought alone is a turn"
    for name in ("reasoning", "reasoning_content"):
        told = {"role": "assistant", "content": "Hello", name: "well, well"}
        chat = ask(client, messages=[*ASK, told, *ASK], tools=openai.omit, max_tokens=1)
        assert chat.usage.prompt_tokens == tokens(item, said)
