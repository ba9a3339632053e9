"""The Python SDK of Pie 0.4: programs written for it run here with their imports changed.

::

    from inferlet.pie04 import Context, JsonSchema, Model, Sampler, runtime

`from inferlet` becomes `from inferlet.pie04`, and nothing else. What both SDKs have alike is the
same object here and there. New programs use `inferlet` itself: it lets the server go on by itself,
where the steps of Pie 0.4 wait for each token.

What 0.4 has and this server does not (audio and video, zeroth-order training, bids for pages) is
named by the error that its use raises.
"""

from inferlet import Model, Tokenizer, messaging, runtime, session
from inferlet._guest.returned import set_return
from inferlet.pie04 import chat, mcp, reasoning
from inferlet.pie04.context import Context, Image
from inferlet.pie04.forward import (
    Adapter,
    Distribution,
    Entropy,
    Forward,
    Logits,
    Logprob,
    Logprobs,
    Output,
    ProbeHandle,
    SampleHandle,
)
from inferlet.pie04.generation import Generator, GenStep, Speculator
from inferlet.pie04.grammar import (
    AnyJson,
    Constraint,
    Ebnf,
    Grammar,
    GrammarConstraint,
    JsonSchema,
    Matcher,
    Regex,
    Schema,
)
from inferlet.sample import Sampler

__all__ = [
    "Adapter",
    "AnyJson",
    "Constraint",
    "Context",
    "Distribution",
    "Ebnf",
    "Entropy",
    "Forward",
    "GenStep",
    "Generator",
    "Grammar",
    "GrammarConstraint",
    "Image",
    "JsonSchema",
    "Logits",
    "Logprob",
    "Logprobs",
    "Matcher",
    "Model",
    "Output",
    "ProbeHandle",
    "Regex",
    "SampleHandle",
    "Sampler",
    "Schema",
    "Speculator",
    "Tokenizer",
    "chat",
    "mcp",
    "messaging",
    "reasoning",
    "runtime",
    "session",
    "set_return",
]

_ABSENT = {
    "Audio": "models that hear are not served",
    "Speech": "models that speak are not served",
    "SpeechBuilder": "models that speak are not served",
    "Video": "give the frames to `Context.append_image`",
    "Voice": "models that speak are not served",
    "scheduling": "there are no bids: priorities and quotas are the operator's",
    "tools": "give `tools=` to `inferlet.Context(chat=...)`, and read calls with `inferlet.tools`",
    "write_wav": "models that speak are not served",
    "zo": "adapters are not trained here",
}


def __getattr__(name: str) -> None:
    if name in _ABSENT:
        raise ImportError(f"pie_py has no {name!r} of Pie 0.4: {_ABSENT[name]}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
