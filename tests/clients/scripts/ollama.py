"""Ollama's client in Python."""

import asyncio
import json
from typing import Literal

import ollama
from cases import BASE, MODEL, case, run
from pydantic import BaseModel

client = ollama.Client(host=BASE)
HI = [{"role": "user", "content": "What is the capital of Thessel?"}]
COOL = {"temperature": 0, "num_predict": 24, "num_ctx": 2048}
ASK = {"model": MODEL, "messages": HI, "options": COOL}
LONG = {**ASK, "options": {**COOL, "num_predict": 200}}


class Inner(BaseModel):
    kind: Literal["a", "b"]


class Point(BaseModel):
    first: Inner
    second: Inner | None


def point(kind: Literal["a", "b"], x: int = 0) -> str:
    """Puts a point.

    Args:
        kind: what
        x: where
    """
    return f"{kind} at {x}"


@case()
def chat_and_stream():
    whole = client.chat(**ASK)
    assert (whole.model, whole.done, whole.message.role) == (MODEL, True, "assistant")
    assert whole.done_reason in ("stop", "length")
    assert whole.eval_count <= 24
    assert whole.total_duration > 0
    parts = list(client.chat(**ASK, stream=True))
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    assert "".join(part.message.content for part in parts) == whole.message.content
    for message in (whole.message, whole["message"].model_dump(), dict(whole.message)):
        again = client.chat(**{**ASK, "messages": [*HI, message, *HI]})
    assert again.prompt_eval_count > whole.prompt_eval_count


@case()
def generate():
    ask = {"model": MODEL, "prompt": "The capital of", "options": COOL}
    whole = client.generate(**ask, system="Be brief.", keep_alive="5m")
    parts = list(client.generate(**ask, system="Be brief.", stream=True))
    assert "".join(part.response for part in parts) == whole.response
    raw = client.generate(**ask, raw=True)
    assert raw.prompt_eval_count < whole.prompt_eval_count
    assert client.generate(model=MODEL, prompt="").done_reason == "load"


@case()
def context_goes_back_in():
    ask = {"model": MODEL, "prompt": "The capital of", "options": COOL}
    first = client.generate(**ask)
    again = client.generate(**ask, context=first.context)
    assert first.context is None or again.prompt_eval_count > first.prompt_eval_count


@case()
def formats():
    assert Point.model_validate_json(
        client.chat(**LONG, format=Point.model_json_schema()).message.content
    )
    whole = client.chat(**LONG, format="json")
    assert whole.done_reason == "length" or isinstance(json.loads(whole.message.content), dict)
    ask = {"model": MODEL, "prompt": "A point", "options": LONG["options"]}
    made = client.generate(**ask, format=Point.model_json_schema())
    assert Point.model_validate_json(made.response)


@case()
def tools():
    told = list(HI)
    for _ in range(2):
        answer = client.chat(**{**LONG, "messages": told}, tools=[point])
        told.append(answer.message)
        for call in answer.message.tool_calls or []:
            assert call.function.arguments["kind"] in ("a", "b")
            told.append({"role": "tool", "content": "ok", "tool_name": call.function.name})
    list(client.chat(**{**LONG, "messages": told}, tools=[point], stream=True))
    called = ollama.Message.ToolCall.Function(name="point", arguments={"kind": "a"})
    made = ollama.Message(role="assistant", tool_calls=[ollama.Message.ToolCall(function=called)])
    result = {"role": "tool", "content": "ok", "name": "point"}
    client.chat(**{**ASK, "messages": [*HI, made, result, *HI]})


@case()
def think_off():
    assert client.chat(**ASK, think=False).message.thinking is None


@case(refused=(400, "think"))
def think_on():
    client.chat(**ASK, think=True)


@case()
def parameters():
    options = ollama.Options(
        seed=1, top_k=5, top_p=0.9, min_p=0.1, typical_p=1, num_predict=8, stop=["x", "\n\n"],
        repeat_penalty=1.1, presence_penalty=0.1, frequency_penalty=0.1, temperature=1,
        num_ctx=2048, num_gpu=0, num_thread=1, use_mmap=True, num_keep=0, num_batch=8,
    )  # fmt: skip
    first, second = (client.chat(model=MODEL, messages=HI, options=options) for _ in range(2))
    assert first.message.content == second.message.content


@case()
def models():
    assert MODEL in [each.model for each in client.list().models]
    assert MODEL in [each.model for each in client.ps().models]
    shown = client.show(MODEL)
    assert "completion" in shown.capabilities
    assert shown.details.family


@case(refused=(400, "`logprobs` is not supported"))
def logprobs():
    client.chat(**ASK, logprobs=True)


@case()
def errors():
    for status, word, wrong in (
        (404, "no model", {"model": "llama9"}),
        (400, "temperature", {"options": {"temperature": -1}}),
        (400, "messages[0]", {"messages": [{"role": "user", "content": "x", "images": ["!"]}]}),
    ):
        for streams in (False, True):
            try:
                list(client.chat(**{**ASK, **wrong}, stream=streams))
            except ollama.ResponseError as error:
                assert (error.status_code, word in error.error) == (status, True), error
            else:
                raise AssertionError(wrong)


@case()
def embed():
    first, second = client.embed(model=MODEL, input=["x", "y"]).embeddings
    assert len(first) == len(second) > 1
    assert abs(sum(each * each for each in first) - 1) < 1e-3


@case(refused=(404, "/api/pull"))
def pull():
    client.pull("llama3")


@case(refused=(404, "/api/delete"))
def delete():
    client.delete(MODEL)


@case()
async def asynchronous():
    many = ollama.AsyncClient(host=BASE)
    first, *rest = await asyncio.gather(*(many.chat(**ASK) for _ in range(4)))
    assert {each.message.content for each in rest} == {first.message.content}
    text = ""
    async for part in await many.chat(**ASK, stream=True):
        text += part.message.content
    assert text == first.message.content
    async for _ in await many.generate(model=MODEL, prompt="A long story", stream=True):
        break
    assert (await many.chat(**ASK)).message.content == text


run()
