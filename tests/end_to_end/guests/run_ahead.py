"""Generations one after the other on one context: what each gave, and what the context then is."""

import asyncio
import json
from typing import Literal

from inferlet import Context, Model, Sampler, raw


def sampler_of(given: dict) -> Sampler:
    """Greedy, by chance, or by chance with a penalty."""
    chance, seed = given["temperature"], given["seed"]
    if given["penalty"]:
        return Sampler(temperature=chance, seed=seed, presence_penalty=given["penalty"])
    return Sampler.top_p(chance, 0.9, seed=seed)


async def read(context: Context, given: dict, how: str, small: Context) -> list | str:
    """One generation, read in the way it says."""
    drafter: Context | Literal["jacobi"] | None = small if how == "drafting" else None
    if how == "guessing" and given["guesses"] % 2:
        drafter = "jacobi"
    generator = context.generate(
        sampler_of(given),
        max_tokens=given["most"],
        stop=[*given["stop_tokens"], *given["stop_strings"]],
        run_ahead=how != "behind",
        speculate=given["guesses"] if how in ("guessing", "drafting") else None,
        drafter=drafter,
    )
    match given["how"]:
        case "tokens":
            return await generator.collect_tokens()
        case "text":
            return await generator.collect_text()
        case "send":
            return await generator.send_text()
        case "break":
            out = []
            async for token in generator.stream_tokens():
                out.append(token)
                if len(out) == given["after"]:
                    break
            await asyncio.sleep(0)  # the loop closes what was left
            return out
        case _:  # given up while a token is on its way
            length = len(context)
            for _ in range(given["after"]):
                task = asyncio.create_task(anext(generator.stream_tokens(), None))
                await asyncio.sleep(0.002)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            context.truncate(length)
            return []


async def main(args: list[str]) -> str:
    given, how = json.loads(args[0]), args[1]
    context = Context(Model.load(), prefix_cache=False).append(given["tokens"])
    small = Context(Model.load(), prefix_cache=False)
    told = []
    for step in given["steps"]:
        out = await read(context, step, how, small)
        pages = json.loads(raw.pool_stats(context.queue))["kv_pages_mine"]
        told.append([out, context.tokens, context.seq_len, pages])
        if step["fork"]:
            context = context.fork()
        context.append(step["then"])
    last = await context.generate(max_tokens=4, stop=[], run_ahead=False).collect_tokens()
    return json.dumps([told, last])
