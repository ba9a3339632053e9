"""Some contexts of one program that go on together: forks of one text, or each with its own."""

import asyncio
import json
import random
from collections.abc import AsyncIterator

from inferlet import Context, Model, Sampler, raw, runtime, session


def drawn(model: Model, length: int) -> list[int]:
    """Random tokens, without the special ones at the vocabulary's start."""
    return random.choices(range(16, model.vocab_size), k=length)


async def made(how: str, count: int, length: int) -> list[Context]:
    """Contexts that hold `length` tokens each, unknown to every cache."""
    model = Model.load()
    if how == "forks":
        root = Context(model).append(drawn(model, length))
        await root.flush()
        return [root.fork().append(drawn(model, 1)) for _ in range(count)]
    own = [Context(model).append(drawn(model, length)) for _ in range(count)]
    await asyncio.gather(*(context.flush() for context in own))
    return own


async def times(stream: AsyncIterator[int]) -> list[int]:
    """When each token came, ns."""
    return [raw.monotonic_now() async for _ in stream]


async def main(args: list[str]) -> str:
    """Arguments: `forks` or `own`, contexts, tokens of each one's text, new tokens.

    Once the texts are in the pages it says `ready`; all decode from the time that it is told.
    Returns the times of the tokens of each context as JSON.
    """
    contexts = await made(args[0], int(args[1]), int(args[2]))
    session.send("ready")
    start = int(await session.receive())
    await runtime.sleep(max(0, start - raw.monotonic_now()) / 1e9)
    streams = (
        context.generate(Sampler.argmax(), max_tokens=int(args[3]), stop=[]).stream_tokens()
        for context in contexts
    )
    return json.dumps(await asyncio.gather(*(times(stream) for stream in streams)))
