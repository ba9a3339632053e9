"""OpenAI's official client in Python: every endpoint that it has and a text model can serve."""

import asyncio
from enum import StrEnum

import openai
from cases import MODEL, V1, case, run
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel

client = OpenAI(base_url=V1, api_key="none", timeout=120)
chat, responses = client.chat.completions, client.responses
HI = [{"role": "user", "content": "What is the capital of Thessel?"}]
ASK = {"model": MODEL, "messages": HI, "max_tokens": 24, "temperature": 0}
WIDE = {**ASK, "max_tokens": 200}
INPUT = {"model": MODEL, "input": HI, "max_output_tokens": 24, "temperature": 0}
LONG = [{"role": "user", "content": "word " * 20_000}]


class Kind(StrEnum):
    a = "a"
    b = "b"


class Point(BaseModel):
    """Puts a point on the map."""

    kind: Kind
    after: Kind | None


class Pair(BaseModel):
    first: Point
    second: Point | None


TOOL = openai.pydantic_function_tool(Point)
FLAT = {"type": "function", **TOOL["function"]}
NAMED = {"type": "function", "function": {"name": "Point"}}
FORCED = {**WIDE, "tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False}


def outputs(calls):
    return [{"role": "tool", "tool_call_id": call.id, "content": "done"} for call in calls]


def fails(kind, code, act):
    try:
        act()
    except kind as error:
        assert error.code == code, error.code
        assert error.request_id
        return error
    raise AssertionError(f"no {kind.__name__}")


@case()
def models():
    assert MODEL in [model.id for model in client.models.list().data]
    assert client.models.retrieve(MODEL).id == MODEL
    fails(openai.NotFoundError, "model_not_found", lambda: client.models.retrieve("x/y"))


@case()
def embeddings():
    found = client.embeddings.create(model=MODEL, input=["x", "y"], dimensions=8)
    assert [each.index for each in found.data] == [0, 1]
    assert {len(each.embedding) for each in found.data} == {8}
    assert found.usage.prompt_tokens > 0


@case()
def chat_and_stream():
    whole = chat.create(**ASK)
    [choice] = whole.choices
    assert (whole.model, choice.message.role) == (MODEL, "assistant")
    used = whole.usage
    assert used.total_tokens == used.prompt_tokens + used.completion_tokens
    chunks = list(chat.create(**ASK, stream=True, stream_options={"include_usage": True}))
    assert chunks[-1].usage.completion_tokens == used.completion_tokens
    parts = [chunk.choices[0] for chunk in chunks[:-1]]
    assert "".join(part.delta.content or "" for part in parts) == choice.message.content
    reasons = [part.finish_reason for part in parts]
    assert (reasons[-1], any(reasons[:-1])) == (choice.finish_reason, False)
    with chat.stream(**ASK) as stream:
        assert {"chunk", "content.delta", "content.done"} <= {event.type for event in stream}
        last = stream.get_final_completion().choices[0].message
    assert last.content == choice.message.content
    for message in (choice.message, choice.message.model_dump(), last, last.to_dict()):
        chat.create(**{**ASK, "messages": [*HI, message, *HI]})


@case()
def chat_parse():
    message = chat.parse(**WIDE, response_format=Pair).choices[0].message
    assert isinstance(message.parsed, Pair)
    with chat.stream(**WIDE, response_format=Point) as stream:
        last = stream.get_final_completion().choices[0].message
    assert isinstance(last.parsed, Point)
    chat.create(**{**ASK, "messages": [*HI, message, *HI, last.model_dump(), *HI]})


@case(long=True)
def chat_parse_cut():
    try:
        chat.parse(**{**ASK, "max_tokens": 12}, response_format=Pair)
    except openai.LengthFinishReasonError:
        return
    raise AssertionError("not cut")


@case()
def calls_go_back_in():
    told = list(HI)
    for choice in ("required", NAMED):
        ask = {**FORCED, "messages": told, "tool_choice": choice}
        whole = chat.create(**ask).choices[0]
        assert whole.finish_reason == "tool_calls"
        parsed = chat.parse(**ask).choices[0].message
        with chat.stream(**ask) as stream:
            kinds = {event.type for event in stream}
            last = stream.get_final_completion().choices[0].message
        assert "tool_calls.function.arguments.done" in kinds
        for message in (whole.message, parsed, last):
            [call] = message.tool_calls
            Point.model_validate_json(call.function.arguments)
            told += [message, *outputs([call]), *HI]
        told += [last.to_dict(), *outputs(last.tool_calls), *HI]
    chat.create(**{**ASK, "messages": told[:-1], "tools": [TOOL]})
    chat.create(**{**ASK, "messages": told})


@case()
def calls_put_together():
    message = {"role": "assistant", "content": None, "tool_calls": []}
    for chunk in chat.create(**FORCED, stream=True):
        for delta in chunk.choices[0].delta.tool_calls or []:
            if delta.index == len(message["tool_calls"]):
                message["tool_calls"].append(delta.model_dump(exclude_none=True))
            else:
                function = message["tool_calls"][delta.index]["function"]
                function["arguments"] += delta.function.arguments
    assert chunk.choices[0].finish_reason == "tool_calls"
    [call] = message["tool_calls"]
    Point.model_validate_json(call["function"]["arguments"])
    result = {"role": "tool", "tool_call_id": call["id"], "content": [
        {"type": "text", "text": "done"}]}  # fmt: skip
    chat.create(**{**ASK, "tools": [TOOL], "messages": [*HI, message, result]})


@case(refused=(400, "reads no images"))
def image():
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    chat.create(**{**ASK, "messages": [{"role": "user", "content": [part]}]})


@case()
def errors():
    wrong = {**ASK, "messages": [{"role": "user", "content": "x", "foo": 1}]}
    for kind, code, act in (
        (openai.NotFoundError, "model_not_found", lambda: chat.create(**{**ASK, "model": "no"})),
        (openai.BadRequestError, "unknown_parameter", lambda: chat.create(**wrong)),
        (openai.BadRequestError, "invalid_value", lambda: chat.create(**{**ASK, "top_p": 2})),
    ):
        error = fails(kind, code, act)
        assert error.param in ("model", "messages[0].foo", "top_p")
    for act in (
        lambda: chat.create(**{**ASK, "messages": LONG}),
        lambda: list(chat.create(**{**ASK, "messages": LONG}, stream=True)),
        lambda: responses.create(**{**INPUT, "input": LONG}),
    ):
        fails(openai.BadRequestError, "context_length_exceeded", act)


@case(long=True)
def raw_responses():
    raw = chat.with_raw_response.create(**ASK)
    assert raw.headers["x-request-id"]
    assert raw.parse().choices
    with chat.with_streaming_response.create(**ASK, stream=True) as raw:
        assert [line for line in raw.iter_lines() if line][-1] == "data: [DONE]"


@case()
def left_and_timed_out():
    long = {**ASK, "max_tokens": 1500, "extra_body": {"ignore_eos": True}}
    with chat.create(**long, stream=True) as stream:
        next(iter(stream))
    try:
        client.with_options(timeout=0.2, max_retries=0).chat.completions.create(**long)
    except openai.APITimeoutError:
        chat.create(**ASK)
        return
    raise AssertionError("no timeout")


@case()
async def asynchronous():
    async with AsyncOpenAI(base_url=V1, api_key="none") as many:
        create = many.chat.completions.create
        answers = await asyncio.gather(*(create(**ASK) for _ in range(5)))
        task = asyncio.create_task(create(**{**ASK, "max_tokens": 1500}))
        async with many.chat.completions.stream(**ASK) as stream:
            last = await stream.get_final_completion()
        task.cancel()
        assert {each.choices[0].message.content for each in [*answers, last]} == {
            last.choices[0].message.content
        }
        parts = [part async for part in await many.responses.create(**INPUT, stream=True)]
        assert parts[-1].response.output_text == (await many.responses.create(**INPUT)).output_text


@case()
def completions():
    ask = {"model": MODEL, "prompt": "The capital of", "max_tokens": 8, "temperature": 0}
    whole = client.completions.create(**ask).choices[0]
    parts = list(client.completions.create(**ask, stream=True))
    assert "".join(part.choices[0].text for part in parts) == whole.text
    echoed = client.completions.create(**ask, echo=True, logprobs=2).choices[0]
    assert echoed.text == ask["prompt"] + whole.text
    found = echoed.logprobs
    assert found.text_offset == sorted(found.text_offset)
    assert len(found.tokens) == len(found.token_logprobs) == len(found.top_logprobs)
    many = client.completions.create(**{**ask, "prompt": ["a", "b"]}, n=2, best_of=3, stop="x")
    assert [choice.index for choice in many.choices] == [0, 1, 2, 3]
    ids, lists = (client.completions.create(**{**ask, "prompt": p}) for p in ([5, 6], [[5, 6]]))
    assert ids.choices[0].text == lists.choices[0].text


@case()
def responses_and_stream():
    ask = {**INPUT, "instructions": "Be brief."}
    whole = responses.create(**ask)
    used = whole.usage
    assert used.total_tokens == used.input_tokens + used.output_tokens
    assert (whole.instructions, whole.max_output_tokens) == ("Be brief.", 24)
    events = list(responses.create(**ask, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert (events[0].type, events[-1].type) == ("response.created", f"response.{whole.status}")
    text = "".join(each.delta for each in events if each.type == "response.output_text.delta")
    assert text == whole.output_text == events[-1].response.output_text
    for output in (whole.output, [item.model_dump() for item in events[-1].response.output]):
        responses.create(**{**INPUT, "input": [*HI, *output, *HI]})


@case(long=True)
def responses_parse():
    ask = {**INPUT, "max_output_tokens": 200}
    answer = responses.parse(**ask, text_format=Pair)
    assert isinstance(answer.output_parsed, Pair)
    assert answer.text.format.name == "Pair"
    with responses.stream(**ask, text_format=Point) as stream:
        last = stream.get_final_response()
    assert isinstance(last.output_parsed, Point)
    for output in (answer.output, last.output, [item.model_dump() for item in last.output]):
        responses.create(**{**INPUT, "input": [*HI, *output, *HI]})


@case()
def response_calls_go_back_in():
    ask = {**INPUT, "tools": [FLAT], "max_output_tokens": 200, "parallel_tool_calls": False}
    said = list(HI)
    for choice in ("required", {"type": "function", "name": "Point"}):
        with responses.stream(**{**ask, "input": said}, tool_choice=choice) as stream:
            kinds = {event.type for event in stream}
            last = stream.get_final_response()
        assert "response.function_call_arguments.done" in kinds
        answer = responses.create(**{**ask, "input": said}, tool_choice=choice)
        for output in (answer.output, last.output, [i.model_dump() for i in last.output]):
            said += output
            for call in answer.output if output is answer.output else last.output:
                Point.model_validate_json(call.arguments)
                told = [{"type": "input_text", "text": "done"}]
                result = {"type": "function_call_output", "call_id": call.call_id}
                said.append({**result, "output": "done" if choice == "required" else told})
        result = {**result, "call_id": answer.output[0].call_id, "output": "done"}
        responses.create(**{**ask, "input": [result]}, previous_response_id=answer.id)
    responses.create(**{**ask, "input": said})
    allowed = {"mode": "required", "tools": [{"type": "function", "name": "stop"}]}
    both = {**ask, "tools": [FLAT, {"type": "function", "name": "stop", "parameters": None}]}
    [call] = responses.create(**both, tool_choice={"type": "allowed_tools", **allowed}).output
    assert call.name == "stop"


@case(refused=(400, "tool_choice"))
def web_search():
    tools = [{"type": "web_search"}, {"type": "custom", "name": "patch"}, FLAT]
    assert responses.create(**INPUT, tools=tools).tools[0].type == "function"
    responses.create(**INPUT, tools=tools, tool_choice={"type": "web_search_preview"})


@case(refused=(400, "conversation"))
def conversation():
    responses.create(**INPUT, conversation="conv_1")


@case(refused=(404, "/v1/moderations"))
def moderations():
    client.moderations.create(input="x")


run()
