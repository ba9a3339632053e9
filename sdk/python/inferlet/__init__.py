"""The SDK of Python inferlets: programs that run beside the model.

::

    from inferlet import Context, Model, Sampler, session

    async def main(args: list[str]) -> str:
        ctx = Context(Model.load())
        ctx.fill("The capital of France is")
        async for text in ctx.generate(Sampler.argmax(), max_tokens=16).stream_text():
            session.send(text)
        return ""

Run it with `pie-py run FILE.py`. `Context` and `Generator` cover most programs; `raw` is the
server's contract itself. Tasks of asyncio run concurrently, and their commands are batched
together.
"""

from inferlet import (
    attention,
    device,
    http,
    images,
    interception,
    introspect,
    layers,
    mcp,
    messaging,
    offload,
    raw,
    runtime,
    samplers,
    session,
    store,
    tools,
    watermark,
)
from inferlet._loop import ready
from inferlet._stream import TextDecoder
from inferlet.branches import gather, race
from inferlet.context import Context
from inferlet.errors import NotInServerError, PieError
from inferlet.generation import Generator, GenStep, Output
from inferlet.grammar import Grammar, Matcher
from inferlet.model import Model, Tokenizer
from inferlet.sample import Distribution, Sampler

__all__ = [
    "Context",
    "Distribution",
    "GenStep",
    "Generator",
    "Grammar",
    "Matcher",
    "Model",
    "NotInServerError",
    "Output",
    "PieError",
    "Sampler",
    "TextDecoder",
    "Tokenizer",
    "attention",
    "device",
    "gather",
    "http",
    "images",
    "interception",
    "introspect",
    "layers",
    "mcp",
    "messaging",
    "offload",
    "race",
    "raw",
    "ready",
    "runtime",
    "samplers",
    "session",
    "store",
    "tools",
    "watermark",
]
