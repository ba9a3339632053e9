"""Generates several answers and returns the one that the model finds most likely, token by token.

Run: pie-py run examples/best_of_n.py -- "The best way to learn is" 4
"""

import asyncio
import math

from inferlet import Context, Model, Sampler


async def scored(context: Context, seed: int) -> tuple[float, str]:
    """An answer, and the mean log-probability of its tokens."""
    generator = context.generate(Sampler.multinomial(0.8, seed=seed), max_tokens=24)
    tokens: list[int] = []
    total = 0.0
    async for step in generator:
        output = await step.execute()
        for token in output.tokens:
            tokens.append(token)
            total += math.log(output.distribution().probability(token))
    return total / max(1, len(tokens)), context.model.tokenizer.decode(tokens)


async def main(args: list[str]) -> str:
    """Returns the best of N answers."""
    prompt = args[0] if args else "The best way to learn is"
    count = int(args[1]) if len(args) > 1 else 4
    context = Context(Model.load()).fill(prompt)
    await context.flush()
    answers = await asyncio.gather(*(scored(context.fork(), seed) for seed in range(count)))
    score, text = max(answers)
    return f"{text}\n(mean log-probability {score:.3f}, the best of {count})"
