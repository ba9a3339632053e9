"""Continues a prompt, and tells the tokens and how long they took."""

import json
import time

from inferlet import Context, Model, Sampler


async def main(args: list[str]) -> str:
    """Takes a prompt, the number of tokens, how many may be guessed at a time, the temperature."""
    job = json.loads(args[0])
    context = Context(Model.load()).fill(job["prompt"])
    await context.flush()
    sampler = Sampler(temperature=job["temperature"], seed=1)
    start = time.perf_counter()
    tokens = await context.generate(
        sampler, max_tokens=job["tokens"], stop=[], speculate=job["guesses"]
    ).collect_tokens()
    seconds = time.perf_counter() - start
    text = Model.load().tokenizer.decode(tokens)
    return json.dumps({"tokens": tokens, "seconds": seconds, "text": text})
