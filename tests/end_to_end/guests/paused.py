"""Continues a text in parts, and waits between them for what is outside."""

import asyncio
import json

from inferlet import Context, Model, Sampler, session
from inferlet.interception import interception


async def main(args):
    given = json.loads(args[0])
    ctx = Context(Model.load(), add_bos=False)
    ctx.append(given["tokens"])
    found, choices = [], []
    for part in range(given["parts"]):
        if part and given["policy"] is None:
            await asyncio.sleep(given["seconds"])
        elif part == given["parts"] - 1 and given["wait"]:
            async with interception(ctx, given["policy"], tool="client") as pause:
                session.send("waiting")
                await session.receive()
            choices += pause.choices
        elif part:
            async with interception(ctx, given["policy"], tool="sleep") as pause:
                await asyncio.sleep(given["seconds"])
            choices += pause.choices
        generator = ctx.generate(Sampler.argmax(), max_tokens=given["count"], stop=[])
        found += await generator.collect_tokens()
    return json.dumps({"tokens": found, "choices": choices})
