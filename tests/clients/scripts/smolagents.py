"""Smolagents: its model, an agent that calls tools and one that writes code."""

from typing import Any

from cases import MODEL, V1, case, run
from smolagents import (
    ChatMessage,
    CodeAgent,
    MessageRole,
    OpenAIModel,
    ToolCallingAgent,
    tool,
)

SAID = [ChatMessage(role=MessageRole.USER, content=[{"type": "text", "text": "Say hello."}])]


@tool
def clock() -> str:
    """Tells the time of the day."""
    return "noon"


def _model(**more: Any) -> OpenAIModel:
    return OpenAIModel(MODEL, api_base=V1, api_key="none", max_tokens=150, temperature=0, **more)


@case()
def text() -> None:
    found = _model().generate(SAID)
    assert found.role == MessageRole.ASSISTANT
    assert found.token_usage.input_tokens > 0


@case()
def stop_sequences() -> None:
    assert "e" not in _model().generate(SAID, stop_sequences=["e"]).content


@case()
def stream_is_the_whole() -> None:
    parts = [each.content or "" for each in _model().generate_stream(SAID)]
    assert "".join(parts) == _model().generate(SAID).content


@case()
def forced_calls() -> None:
    found = _model().generate(SAID, tools_to_call_from=[clock])
    assert {call.function.name for call in found.tool_calls} == {"clock"}


@case()
def schema() -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema, "strict": True}}
    assert '"a"' in _model().generate(SAID, response_format=form).content


# Whatever a weak model does, its requests are answered to the last step; its prompts are long.
def _steps(agent: Any) -> None:
    agent.run("What time is it?", max_steps=3)


PROMPTS: dict[str, Any] = {"refused": (400, "the prompt has"), "perhaps": True, "long": True}


@case(**PROMPTS)
def agent_that_calls_tools() -> None:
    _steps(ToolCallingAgent(tools=[clock], model=_model()))


@case(**PROMPTS)
def agent_that_writes_code() -> None:
    _steps(CodeAgent(tools=[clock], model=_model()))


@case(**PROMPTS)
def agent_that_writes_code_by_schema() -> None:
    _steps(CodeAgent(tools=[clock], model=_model(), use_structured_outputs_internally=True))


run()
