"""Continues one prompt in several ways at once; the forks share the prompt's KV pages.

Run: pie-py run examples/parallel_generation.py -- "Once upon a time" 4
"""

import asyncio

from inferlet import Context, Model, Sampler, session


async def main(args: list[str]) -> str:
    """Sends each continuation when it is done."""
    prompt = args[0] if args else "Once upon a time"
    count = int(args[1]) if len(args) > 1 else 4
    with Context(Model.load()) as prompt_context:
        await prompt_context.fill(prompt).flush()

        async def branch(number: int) -> None:
            with prompt_context.fork() as context:
                sampler = Sampler.top_p(0.8, 0.95, seed=number)
                text = await context.generate(sampler, max_tokens=32).collect_text()
            session.send(f"[{number}]{text}\n")

        await asyncio.gather(*(branch(number) for number in range(count)))
    return ""
