"""A request with calls: generates, waits for a call, takes its answer in, and so on.

The tools run at the client: the server cannot know when a call will end, as with real tools.
"""

import json

from inferlet import Context, Model, Sampler, offload, session
from inferlet.interception import interception


async def main(args: list[str]) -> str:
    """Serves one request; or tells the costs of this machine."""
    if args[0] == "costs":
        return json.dumps(offload.costs(Model.load()))
    given = json.loads(args[0])
    ctx = Context(Model.load(), add_bos=False)
    ctx.append(given["tokens"])
    for number, (count, calls, answer) in enumerate(given["parts"]):
        await ctx.generate(Sampler.argmax(), max_tokens=count, stop=[]).collect_tokens()
        if answer:
            if calls:
                session.send(json.dumps(["call", number]))
                if given["policy"] is None:
                    await session.receive()
                else:
                    async with interception(ctx, given["policy"], tool=given["tool"]):
                        await session.receive()
            ctx.append([16 + at % 64 for at in range(answer)])
        if given["tell"]:
            session.send(json.dumps(["done", number + 1, ctx.tokens]))
    return ""
