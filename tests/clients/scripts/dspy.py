"""DSPy: predictions of types by its adapters, over chat and Responses."""

from typing import Any, Literal

import dspy
from cases import MODEL, V1, case, run
from dspy.lm15 import (
    AccessPolicy,
    ModelSupport,
    OpenAIChatCompat,
    ProviderDefinition,
    register_provider,
)

# A model that its catalogue does not know has schemas only as one of a declared provider.
register_provider(
    ProviderDefinition.chat(
        AccessPolicy(provider="pie-py", base_url=V1), compat=OpenAIChatCompat()
    ),
    supports=ModelSupport(response_schema=True),
)


class Judge(dspy.Signature):
    """Judges a text."""

    text: str = dspy.InputField()
    good: bool = dspy.OutputField()
    points: Literal[1, 2, 3] = dspy.OutputField()


def _model(provider: str = "openai", **more: Any) -> dspy.LM:
    kept: dict[str, Any] = {"max_tokens": 200, "temperature": 0.0, "cache": False, **more}
    return dspy.LM(f"{provider}/{MODEL}", api_base=V1, api_key="none", num_retries=0, **kept)


@case()
def text() -> None:
    [found] = _model()("Say hello.")
    assert found


@case()
def messages_and_several_answers() -> None:
    found = _model(n=2, temperature=0.5)(messages=[{"role": "user", "content": "Say hello."}])
    assert len(found) == 2


@case()
def text_over_responses() -> None:
    assert _model(model_type="responses")("Say hello.")


@case()
def text_over_completions() -> None:
    assert _model(model_type="text")("Once")


@case()
def prediction_by_schema() -> None:
    with dspy.context(lm=_model("pie-py"), adapter=dspy.JSONAdapter()):
        found = dspy.Predict(Judge)(text="Fine.")
    assert isinstance(found.good, bool)
    assert found.points in (1, 2, 3)


@case()
def prediction_in_words() -> None:
    # Its own marks are asked for in words, which a weak model does not write; then, by itself, the
    # adapter goes on to the schema.
    with dspy.context(lm=_model("pie-py"), adapter=dspy.ChatAdapter()):
        assert dspy.Predict(Judge)(text="Fine.").points in (1, 2, 3)


@case(wit="the model has to end its thoughts")
def chain_of_thought() -> None:
    with dspy.context(lm=_model("pie-py", max_tokens=600), adapter=dspy.JSONAdapter()):
        assert dspy.ChainOfThought(Judge)(text="Fine.").points in (1, 2, 3)


run()
