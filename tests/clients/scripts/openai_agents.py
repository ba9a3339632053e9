"""OpenAI's Agents SDK: runs, streams, tools, handoffs, sessions, in both of its modes."""

from typing import Any, Literal

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    SQLiteSession,
    WebSearchTool,
    function_tool,
    set_tracing_disabled,
)
from cases import MODEL, V1, case, run
from openai import AsyncOpenAI
from openai.types.shared import Reasoning
from pydantic import BaseModel

set_tracing_disabled(True)
CLIENT = AsyncOpenAI(base_url=V1, api_key="none", max_retries=0)
KEPT: dict[str, Any] = {"max_tokens": 400, "temperature": 0}


class Verdict(BaseModel):
    good: bool
    points: Literal[1, 2, 3]


@function_tool
def weather(city: Literal["Rome", "Oslo"], days: Literal[1, 2]) -> str:
    """The weather of a city.

    Args:
        city: Where.
        days: How many.
    """
    return f"sunny in {city} for {days}"


@function_tool
def clock() -> str:
    """The time of the day."""
    return "noon"


def cases_of(mode: str, kind: Any) -> None:
    """Adds the cases of one mode, whose names begin with it."""
    model = kind(model=MODEL, openai_client=CLIENT)

    def agent(settings: dict[str, Any] | None = None, **more: Any) -> Agent[Any]:
        kept = ModelSettings(**{**KEPT, **(settings or {})})
        return Agent(name="a", instructions="Be brief.", model=model, model_settings=kept, **more)

    @case(mode)
    async def text() -> None:
        found = await Runner.run(agent(), "Say hello.")
        assert isinstance(found.final_output, str)
        usage = found.context_wrapper.usage
        assert usage.input_tokens > 0
        assert usage.total_tokens == usage.input_tokens + usage.output_tokens

    @case(mode)
    async def streamed_text_is_the_whole() -> None:
        found = Runner.run_streamed(agent(), "Say hello.")
        deltas, kinds = "", []
        async for event in found.stream_events():
            if event.type == "raw_response_event":
                kinds.append(event.data.type)
                if event.data.type == "response.output_text.delta":
                    deltas += event.data.delta
        assert deltas == found.final_output
        assert kinds[0] == "response.created"
        assert kinds[-1] in ("response.completed", "response.incomplete")

    for choice in ("required", "weather"):

        async def tool_forced(choice: str = choice) -> None:
            one = agent(
                {"tool_choice": choice}, tools=[weather], tool_use_behavior="stop_on_first_tool"
            )
            found = await Runner.run(one, "How is the weather?")
            assert found.final_output.startswith("sunny in "), found.final_output

        tool_forced.__name__ += f"_{choice}"
        case(mode)(tool_forced)

    @case(mode)
    async def tool_without_arguments() -> None:
        one = agent(
            {"tool_choice": "clock", "parallel_tool_calls": False},
            tools=[clock, weather],
            tool_use_behavior="stop_on_first_tool",
        )
        assert (await Runner.run(one, "What time is it?")).final_output == "noon"

    @case(mode)
    async def streamed_tool() -> None:
        one = agent(
            {"tool_choice": "required"}, tools=[weather], tool_use_behavior="stop_on_first_tool"
        )
        found = Runner.run_streamed(one, "How is the weather?")
        items = [e.name async for e in found.stream_events() if e.type == "run_item_stream_event"]
        assert items == sorted(items)
        assert items.count("tool_called") == items.count("tool_output") > 0

    @case(mode)
    async def history_with_calls_goes_back_in() -> None:
        one = agent(
            {"tool_choice": "required"},
            tools=[weather, clock],
            tool_use_behavior="stop_on_first_tool",
        )
        first = await Runner.run(one, "How is the weather?")
        more = [*first.to_input_list(), {"role": "user", "content": "And now?"}]
        second = await Runner.run(agent({"tool_choice": "none"}, tools=[weather, clock]), more)
        assert isinstance(second.final_output, str)
        third = [*second.to_input_list(), {"role": "user", "content": "Thanks."}]
        assert isinstance((await Runner.run(agent(), third)).final_output, str)

    @case(mode)
    async def typed_output() -> None:
        found = await Runner.run(agent(output_type=Verdict), "Was it good?")
        assert isinstance(found.final_output, Verdict)

    @case(mode)
    async def streamed_typed_output() -> None:
        found = Runner.run_streamed(agent(output_type=Verdict), "Was it good?")
        async for _ in found.stream_events():
            pass
        assert isinstance(found.final_output, Verdict)

    @case(mode)
    async def handoff() -> None:
        other = agent().clone(name="Other")
        one = agent({"tool_choice": "transfer_to_other"}, handoffs=[other])
        found = await Runner.run(one, "I want the other one.")
        assert found.last_agent.name == "Other"
        assert isinstance(found.final_output, str)

    @case(mode)
    async def agent_as_tool() -> None:
        helper = agent(output_type=Verdict).as_tool("judge", "Judges.")
        one = agent(
            {"tool_choice": "judge"}, tools=[helper], tool_use_behavior="stop_on_first_tool"
        )
        helper.params_json_schema["properties"]["input"]["enum"] = ["red", "green"]
        assert "points" in str((await Runner.run(one, "Judge it.")).final_output)

    @case(mode)
    async def session() -> None:
        kept = SQLiteSession("one")
        await Runner.run(agent(), "My name is Ann.", session=kept)
        found = await Runner.run(agent(), "Who am I?", session=kept)
        assert isinstance(found.final_output, str)
        assert len(await kept.get_items()) == 4

    @case(mode)
    async def settings() -> None:
        kept = {
            "top_p": 0.9,
            "store": False,
            "metadata": {"a": "b"},
            "include_usage": True,
            "truncation": "disabled",
            "reasoning": Reasoning(effort="none"),
            "extra_headers": {"x-tried": "yes"},
        }
        if mode == "chat":
            kept |= {"frequency_penalty": 0.1, "presence_penalty": 0.1}
            kept |= {"extra_body": {"top_k": 20}}
        assert isinstance((await Runner.run(agent(kept), "Say hello.")).final_output, str)

    @case(mode, refused=(400, "image"))
    async def picture_for_a_model_that_reads_none() -> None:
        part = {"type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "low"}
        await Runner.run(agent(), [{"role": "user", "content": [part]}])


cases_of("chat", OpenAIChatCompletionsModel)
cases_of("responses", OpenAIResponsesModel)


def _responses(**settings: Any) -> Agent[Any]:
    model = OpenAIResponsesModel(model=MODEL, openai_client=CLIENT)
    more = {key: settings.pop(key) for key in ("tools",) if key in settings}
    return Agent(name="a", model=model, model_settings=ModelSettings(**KEPT, **settings), **more)


@case()
async def responses_previous_response() -> None:
    first = await Runner.run(_responses(), "Say hello.")
    second = await Runner.run(_responses(), "Again.", previous_response_id=first.last_response_id)
    used = [each.context_wrapper.usage.input_tokens for each in (first, second)]
    assert used[1] > used[0]


@case(refused=(400, "conversation"))
async def responses_conversation() -> None:
    await Runner.run(_responses(), "Say hello.", conversation_id="conv_1")


@case()
async def responses_hosted_tool() -> None:
    await Runner.run(_responses(tools=[WebSearchTool()]), "Search.")


@case()
async def responses_encrypted_thoughts() -> None:
    one = _responses(response_include=["reasoning.encrypted_content"], store=False)
    assert isinstance((await Runner.run(one, "Say hello.")).final_output, str)


run()
