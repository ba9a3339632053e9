"""The inferlet that the benchmarks launch as a Python source; `rust/` beside it does the same."""

import json
import random
import time

from inferlet import Context, Generator, Model, Sampler, raw, runtime, session


async def main(args: list[str]) -> str:
    """Arguments: `complete` or `decode`, a prompt, the number of tokens; `prefill LENGTH`, or `idle
    SECONDS`. With `step-by-step` behind, generations do not run ahead; with `at-once` what is
    decoded is read at its end, with `looking` chosen by the program from each distribution.
    """
    match args:
        case ["complete", prompt, tokens, *options]:
            return json.dumps(await complete(prompt, int(tokens), *options))
        case ["decode", prompt, tokens, *options]:
            return json.dumps(await decode(prompt, int(tokens), *options))
        case ["prefill", length]:
            return json.dumps(await prefill(int(length)))
        case ["idle", seconds]:
            await runtime.sleep(float(seconds))
    return ""


def continued(context: Context, tokens: int, *options: str) -> Generator:
    """Continues a context greedily, whatever the model's stop tokens."""
    ahead = "step-by-step" not in options
    return context.generate(Sampler.argmax(), max_tokens=tokens, stop=[], run_ahead=ahead)


def prompted(prompt: str) -> Context:
    """A context that holds token ids, given as JSON."""
    return Context(Model.load()).append(json.loads(prompt))


async def complete(prompt: str, tokens: int, *options: str) -> list[int]:
    """When each token came, ns."""
    generator = continued(prompted(prompt), tokens, *options)
    return [raw.monotonic_now() async for _ in generator.stream_tokens()]


async def decode(prompt: str, tokens: int, *options: str) -> list[int]:
    """As `complete`, but begins to decode at the time that the client tells. If all is read at
    once: the times before and after.
    """
    context = prompted(prompt)
    await wait_for_start(context)
    generator = continued(context, tokens, *options)
    if "at-once" in options:
        begin = raw.monotonic_now()
        await generator.collect_tokens()
        return [begin, raw.monotonic_now()]
    if "looking" in options:
        return await look(generator)
    return [raw.monotonic_now() async for _ in generator.stream_tokens()]


async def look(generator: Generator) -> list[int]:
    """When each token had been chosen from its distribution, ns."""
    times = []
    async for step in generator:
        generator.accept([(await step.distribution()).max_index()])
        times.append(raw.monotonic_now())
    return times


async def wait_for_start(context: Context) -> None:
    """Runs the prompt, and waits until the time that the client tells."""
    await context.flush()  # and no token yet: the server would run ahead meanwhile
    session.send("ready")
    start = int(await session.receive())
    await runtime.sleep(max(0, start - raw.monotonic_now()) / 1e9)


async def prefill(length: int) -> float:
    """Runs a random prompt through the model; how long that took, ms."""
    start = time.monotonic()
    await Context(Model.load()).append(random.choices(range(16, 256), k=length)).flush()
    return (time.monotonic() - start) * 1e3
