"""The inferlet that the benchmarks launch as a Python source; `rust/` beside it does the same."""

import json
import random
import time
from collections.abc import Callable

from inferlet import Context, Generator, Model, Sampler, raw, runtime, session


async def main(args: list[str]) -> str:
    """Arguments: `MODE PROMPT TOKENS` with launch, complete, decode or stream; `prefill LENGTH`,
    `calls COUNT`, or `idle SECONDS`. With `step-by-step` behind, generations do not run ahead; with
    `at-once` what is decoded is read at its end, with `looking` chosen by the program from each
    distribution; with `by-program` the program reads and sends each piece of a stream.
    """
    match args:
        case ["launch", prompt, tokens]:  # the paper's: acknowledge, then complete (section 7)
            session.send("launched")
            await complete(prompt, int(tokens))
        case ["complete", prompt, tokens, *options]:
            return json.dumps(await complete(prompt, int(tokens), *options))
        case ["decode", prompt, tokens, *options]:
            return json.dumps(await decode(prompt, int(tokens), *options))
        case ["stream", prompt, tokens, *options]:
            await stream(prompt, int(tokens), *options)
        case ["prefill", length]:
            return json.dumps(await prefill(int(length)))
        case ["calls", count]:
            return json.dumps(calls(int(count)))
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
    await told(context)
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


async def stream(prompt: str, tokens: int, *options: str) -> None:
    """As `decode`, and sends the text to the client."""
    context = prompted(prompt)
    await told(context)
    generator = continued(context, tokens, *options)
    if "by-program" not in options:
        await generator.send_text()
        return
    async for text in generator.stream_text():
        session.send(text)


async def told(context: Context) -> None:
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


def calls(count: int) -> dict[str, float]:
    """Median nanoseconds of calls that the control layer answers, over blocks of 100."""
    model = raw.available_models()[0]
    queue = raw.create_queue(model)
    page = raw.alloc_kvpage(queue, 1)
    measured: dict[str, Callable[[], object]] = {
        "monotonic-now": raw.monotonic_now,
        "instance-id": raw.instance_id,
        "kvpage-used": lambda: raw.kvpage_used(queue, [page, 1]),
        "pool-stats": lambda: raw.pool_stats(queue),
    }
    return {name: median_ns(call, count) for name, call in measured.items()}


def median_ns(call: Callable[[], object], count: int) -> float:
    """Median over blocks of the mean nanoseconds of a call within the block."""
    blocks = []
    for _ in range(max(1, count // 100)):
        start = time.monotonic_ns()
        for _ in range(100):
            call()
        blocks.append((time.monotonic_ns() - start) / 100)
    return sorted(blocks)[len(blocks) // 2]
