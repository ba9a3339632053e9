"""Pages that leave and come back, adapters, attention: what tests launch; the first argument says
which.

`tests/memory_guests` does the same in Rust.
"""

import asyncio
import json
from typing import Any

from inferlet import Context, Model, Sampler, introspect, offload, raw, session


async def main(args: list[str]) -> str:
    """Runs the guest that the first argument names, with the JSON of the second."""
    mode, given = args[0], json.loads(args[1])
    return json.dumps(await globals()[mode](Model.load(), **given))


async def generate(context: Context, count: int) -> list[int]:
    generator = context.generate(Sampler.argmax(), max_tokens=count, stop=[])
    return await generator.collect_tokens()


async def moves(model: Model, tokens: list[int], moves: list[str]) -> dict[str, Any]:
    context = Context(model).append(tokens)
    out: list[int] = []
    for step in moves:
        if step == "out":
            offload.swap_out(context)
        elif step == "in":
            offload.swap_in(context)
        elif step == "discard":
            offload.discard(context)
        elif step == "fork":
            with context.fork() as fork:
                await generate(fork, 2)
                offload.swap_out(context)  # but for what the fork shares
                await generate(fork, 2)
                offload.swap_in(context)
        else:
            out += await generate(context, 5)
    return {"tokens": out, "stats": json.loads(raw.pool_stats(context.queue))}


async def released(model: Model, tokens: list[int]) -> dict[str, int]:
    queue = raw.create_queue(model.name)
    with Context(model).append(tokens) as context:
        await generate(context, 40)
        offload.swap_out(context)
    await Context(model).append(tokens).flush()  # behind what gave the pages back
    found: dict[str, int] = json.loads(raw.pool_stats(queue))
    return found


async def costs(model: Model) -> dict[str, Any]:
    return offload.costs(model)


async def adapters(model: Model, tokens: list[int], adapters: list[str]) -> list[list[int]]:
    async def one(name: str) -> list[int]:
        context = Context(model, adapter=name or None).append(tokens)
        first = await generate(context, 6)
        return first + await generate(context.fork(), 6)

    return await asyncio.gather(*map(one, adapters))


async def stays(model: Model, tokens: list[int], adapter: str) -> list[Any]:
    """Goes through an adapter before and after its client has written."""
    context = Context(model, adapter=adapter).append(tokens)
    first = await generate(context, 6)
    session.send(context.weights_version)
    await session.receive()
    rest = await generate(context.fork(), 6)
    again = Context(model, adapter=adapter).append(tokens)
    return [first + rest, await generate(again, 12), again.weights_version]


async def names(model: Model) -> list[str]:
    return model.adapters


async def attention(
    model: Model, tokens: list[int], observed: int, first: int, adapter: str | None = None
) -> list[list[list[float]]]:
    context = Context(model, adapter=adapter, first_position=first).append(tokens)
    return [
        await introspect.attention(context, observed=observed, detail=detail)
        for detail in ("total", "layers", "heads")
    ]
