"""Forks of one text, each with a next token of its own, that go on greedily at the same time."""

import asyncio
import json

from inferlet import Context, Model, Sampler


async def go_on(fork: Context, how: str, count: int) -> list[int]:
    """Continues by `generate`, whose tokens the server chooses, or by one distribution a token."""
    if how == "generate":
        return await fork.generate(Sampler.argmax(), max_tokens=count, stop=[]).collect_tokens()
    chosen = []
    for _ in range(count):
        best = (await fork.distribution(1)).tokens[0]
        chosen.append(best)
        fork.append([best])
    return chosen


async def main(args: list[str]) -> str:
    """Returns the new token ids of each fork as JSON."""
    how, tokens, firsts, count = args[0], json.loads(args[1]), json.loads(args[2]), int(args[3])
    root = Context(Model.load(), prefix_cache=False).append(tokens)
    await root.flush()
    forks = [root.fork().append([first]) for first in firsts]
    return json.dumps(await asyncio.gather(*(go_on(fork, how, count) for fork in forks)))
