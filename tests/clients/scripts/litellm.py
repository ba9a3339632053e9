"""LiteLLM: the server behind four of its providers, and its own adapters of APIs."""

import asyncio
from typing import Any, Literal

import litellm
from cases import BASE, MODEL, V1, case, run
from pydantic import BaseModel

litellm.telemetry = False
litellm.num_retries = 0
SAID = [{"role": "user", "content": "Say hello."}]
KEPT: dict[str, Any] = {"max_tokens": 60, "temperature": 0, "api_key": "none"}
PROVIDERS = {
    "openai": V1,
    "hosted_vllm": V1,
    "lm_studio": V1,
    "anthropic": BASE,
    "ollama_chat": BASE,
}
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Rome", "Oslo"]}},
            "required": ["city"],
        },
    },
}
FORCED = {"type": "function", "function": {"name": "weather"}}


class Verdict(BaseModel):
    points: Literal[1, 2, 3]


def cases_of(provider: str) -> None:
    """Adds the cases of one provider, whose names begin with it."""
    where = {"model": f"{provider}/{MODEL}", "api_base": PROVIDERS[provider], **KEPT}

    @case(provider)
    def text() -> None:
        found = litellm.completion(messages=SAID, **where)
        assert found.choices[0].finish_reason in ("stop", "length")
        assert found.usage.total_tokens == found.usage.prompt_tokens + found.usage.completion_tokens

    @case(provider)
    def stream_is_the_whole() -> None:
        whole = litellm.completion(messages=SAID, **where)
        chunks = list(litellm.completion(messages=SAID, stream=True, **where))
        built = litellm.stream_chunk_builder(chunks, messages=SAID)
        assert built.choices[0].message.content == whole.choices[0].message.content

    @case(provider)
    async def asynchronously_at_once() -> None:
        asked = [litellm.acompletion(messages=SAID, **where) for _ in range(4)]
        assert len({each.choices[0].message.content for each in await asyncio.gather(*asked)}) == 1

    @case(provider)
    def dumped_answer_goes_back_in() -> None:
        first = litellm.completion(messages=SAID, **where)
        more = [*SAID, first.choices[0].message.model_dump(), {"role": "user", "content": "More."}]
        assert litellm.completion(messages=more, **where).choices

    @case(provider)
    def effort_none() -> None:
        assert litellm.completion(
            messages=SAID, reasoning_effort="none", drop_params=True, **where
        ).choices

    if provider == "ollama_chat":  # its API forces no calls
        return

    @case(provider)
    def forced_call_and_its_result() -> None:
        kept = {**where, "tools": [TOOL]}
        first = litellm.completion(messages=SAID, tool_choice=FORCED, **kept).choices[0]
        [call] = first.message.tool_calls
        assert call.function.name == "weather"
        assert first.finish_reason in ("tool_calls", "stop"), first.finish_reason
        result = {"role": "tool", "tool_call_id": call.id, "content": "sunny", "name": "weather"}
        more = [*SAID, first.message.model_dump(), result]
        assert litellm.completion(messages=more, **kept).choices

    @case(provider)
    def forced_call_in_a_stream() -> None:
        chunks = litellm.completion(
            messages=SAID, tools=[TOOL], tool_choice=FORCED, stream=True, **where
        )
        built = litellm.stream_chunk_builder(list(chunks), messages=SAID)
        [call] = built.choices[0].message.tool_calls
        assert "city" in call.function.arguments

    @case(provider)
    def typed() -> None:
        found = litellm.completion(messages=SAID, response_format=Verdict, **where)
        Verdict.model_validate_json(found.choices[0].message.content)


for name in PROVIDERS:
    cases_of(name)
HERE: dict[str, Any] = {"model": f"openai/{MODEL}", "api_base": V1, **KEPT}


@case()
def responses() -> None:
    kept = {key: value for key, value in HERE.items() if key != "max_tokens"}
    found = litellm.responses(input="Say hello.", max_output_tokens=60, **kept)
    assert found.status in ("completed", "incomplete")


@case()
async def anthropics_messages_over_chat() -> None:
    found = await litellm.anthropic.messages.acreate(messages=SAID, **HERE)
    assert found["type"] == "message"


@case()
def completions() -> None:
    found = litellm.text_completion(prompt="Once", **{**HERE, "model": f"text-{HERE['model']}"[5:]})
    assert found.choices[0].text is not None


@case()
def settings() -> None:
    more = {"top_p": 0.9, "n": 2, "stop": ["never"], "seed": 1, "user": "ann", "logprobs": True}
    more |= {"top_logprobs": 2, "presence_penalty": 0.1, "extra_body": {"top_k": 20}}
    found = litellm.completion(messages=SAID, **more, **HERE)
    assert [each.index for each in found.choices] == [0, 1]
    assert found.choices[0].logprobs.content


@case(refused=(404, "no model"))
def unknown_model() -> None:
    litellm.completion(messages=SAID, **{**HERE, "model": "openai/no-such-model"})


run()
