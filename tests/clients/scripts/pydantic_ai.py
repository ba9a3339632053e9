"""Pydantic AI: texts, streams and outputs of types, by chat, Responses and Anthropic's API."""

from typing import Any, Literal

from cases import BASE, MODEL, V1, case, run
from pydantic import BaseModel
from pydantic_ai import Agent, BinaryContent, NativeOutput, ToolOutput
from pydantic_ai.messages import (
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.profiles import ModelProfile
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

KEPT: dict[str, Any] = {"max_tokens": 300, "temperature": 0}
OPENAI = OpenAIProvider(base_url=V1, api_key="none")
MODELS = {
    "chat": OpenAIChatModel(MODEL, provider=OPENAI),
    "responses": OpenAIResponsesModel(MODEL, provider=OPENAI),
    "anthropic": AnthropicModel(
        MODEL,
        provider=AnthropicProvider(base_url=BASE, api_key="none"),
        profile=ModelProfile(supports_json_schema_output=True),
    ),
}


class Verdict(BaseModel):
    good: bool
    points: Literal[1, 2, 3]


class Place(BaseModel):
    where: Literal["Rome", "Oslo"]


def cases_of(api: str) -> None:
    """Adds the cases of one API, whose names begin with it."""

    def agent(**more: Any) -> Agent[None, Any]:
        settings = {**KEPT, **more.pop("settings", {})}
        return Agent(MODELS[api], instructions="Be brief.", model_settings=settings, **more)

    @case(api)
    async def text() -> None:
        found = await agent().run("Say hello.")
        assert isinstance(found.output, str)
        assert found.usage.input_tokens > 0
        assert found.usage.output_tokens > 0
        assert found.response.finish_reason in ("stop", "length")

    @case(api)
    async def streamed_text_is_the_whole() -> None:
        async with agent().run_stream("Say hello.") as found:
            deltas = "".join([each async for each in found.stream_text(delta=True)])
            assert deltas == await found.get_output()

    @case(api)
    async def history_goes_back_in() -> None:
        first = await agent().run("My name is Ann.")
        kept = ModelMessagesTypeAdapter.validate_json(first.all_messages_json())
        second = await agent().run("Who am I?", message_history=kept)
        assert isinstance(second.output, str)
        assert len(second.all_messages()) == 4

    @case(api)
    async def output_by_tool() -> None:
        assert isinstance(
            (await agent(output_type=ToolOutput(Verdict)).run("Good?")).output, Verdict
        )

    @case(api)
    async def output_by_one_of_several_tools() -> None:
        found = await agent(output_type=[Verdict, Place]).run("Good?")
        assert isinstance(found.output, Verdict | Place)

    @case(api)
    async def output_by_schema() -> None:
        found = await agent(output_type=NativeOutput(Verdict)).run("Good?")
        assert isinstance(found.output, Verdict)

    @case(api)
    async def streamed_output_by_tool() -> None:
        async with agent(output_type=ToolOutput(Verdict)).run_stream("Good?") as found:
            parts = [each async for each in found.stream_output(debounce_by=None)]
            assert isinstance(parts[-1], Verdict)

    @case(api)
    async def streamed_output_by_schema() -> None:
        async with agent(output_type=NativeOutput(Verdict)).run_stream("Good?") as found:
            parts = [each async for each in found.stream_output(debounce_by=None)]
            assert isinstance(parts[-1], Verdict)

    @case(api)
    async def calls_and_results_go_back_in() -> None:
        call = ToolCallPart("weather", {"city": "Oslo"}, "call_1")
        kept = [
            ModelRequest([UserPromptPart("How is the weather?")]),
            ModelResponse([TextPart("I look."), call]),
            ModelRequest([ToolReturnPart("weather", "rainy", "call_1")]),
        ]
        first = await agent(output_type=ToolOutput(Verdict)).run("Good?", message_history=kept)
        again = await agent(output_type=ToolOutput(Verdict)).run(
            "And?", message_history=first.all_messages()
        )
        assert again.output is not None

    @case(api)
    async def settings() -> None:
        kept = {"top_p": 0.9, "timeout": 60.0, "parallel_tool_calls": False}
        if api == "chat":
            kept |= {"seed": 1, "presence_penalty": 0.1, "stop_sequences": ["never"]}
            kept |= {"logit_bias": {"5": 1}, "openai_logprobs": True, "openai_user": "ann"}
        if api == "responses":
            kept |= {"openai_store": False, "openai_truncation": "disabled"}
            kept |= {"openai_reasoning_effort": "none", "openai_previous_response_id": None}
        if api == "anthropic":
            kept |= {"stop_sequences": ["never"], "anthropic_metadata": {"user_id": "ann"}}
            kept |= {"anthropic_thinking": {"type": "disabled"}, "anthropic_cache": True}
        assert isinstance((await agent(settings=kept).run("Say hello.")).output, str)

    @case(api, refused=(400, "reads no images"))
    async def picture_for_a_model_that_reads_none() -> None:
        await agent().run(["See", BinaryContent(b"\x89PNG", media_type="image/png")])


for name in MODELS:
    cases_of(name)
run()
