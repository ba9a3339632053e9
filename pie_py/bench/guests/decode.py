"""Generates once it is told to, and returns when each token came: what `pie-py bench` launches."""

import json

from inferlet import Context, Model, Sampler, raw, runtime, session


async def main(args: list[str]) -> str:
    """Arguments: `decode`, the prompt, token ids as JSON, and how many tokens to generate."""
    prompt, tokens = args[-2:]
    context = Context(Model.load()).append(json.loads(prompt))
    await context.flush()  # and no token yet: the server would run ahead meanwhile
    session.send("ready")
    start = int(await session.receive())
    await runtime.sleep(max(0, start - raw.monotonic_now()) / 1e9)
    generator = context.generate(Sampler.argmax(), max_tokens=int(tokens), stop=[])
    return json.dumps([raw.monotonic_now() async for _ in generator.stream_tokens()])
