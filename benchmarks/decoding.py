"""Work for the inferlet of `guests/` that is not decoding together."""

from __future__ import annotations

import time
from collections.abc import Sequence

import anyio

from pie_py.bench.decoding import WARM_TOKENS
from pie_py.client import Client

STEP_BY_STEP = "step-by-step"  # option of `decode` and `complete`: do not run ahead
LOOKING = "looking"  # option of `decode`: choose from the distribution of each token
AT_ONCE = "at-once"  # option of `decode`: read all at the end


def cpu_seconds(pid: int) -> float:
    """CPU time of a process so far, all threads; to the nanosecond, where `/proc` has ticks."""
    return time.clock_gettime((~pid << 3) | 2)  # Linux's clock of a process: MAKE_PROCESS_CPUCLOCK


async def complete_all(
    client: Client, program: str, prompts: Sequence[str], tokens: int, *options: str
) -> float:
    """Seconds from the first launch to the last result of completions of the prompts."""

    async def one(prompt: str) -> None:
        instance = await client.launch(program, ["complete", prompt, str(tokens), *options])
        await instance.result()

    start = time.perf_counter()
    async with anyio.create_task_group() as tasks:
        for prompt in prompts:
            tasks.start_soon(one, prompt)
    return time.perf_counter() - start


async def rest(client: Client, program: str, prompt: str, seconds: float) -> None:
    """Lets the server refill its warm instances, which would take a core from the next measurement.

    A short completion follows, as in peers before they are measured: what is not used for a second
    may have left the memory.
    """
    await anyio.sleep(seconds)
    await complete_all(client, program, [prompt], WARM_TOKENS)
