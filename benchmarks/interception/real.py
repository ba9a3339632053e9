"""The load on the real system: programs on a server."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import anyio

from benchmarks.interception.traces import Request
from pie_py.bench.server import bench_server
from pie_py.client import Client, InferletFailed, RpcError
from pie_py.config.model import ModelConfig

GUEST = Path(__file__).parent / "guest.py"
RETRY_SECONDS = 0.02  # before a request that lost its pages starts again


@dataclass(frozen=True)
class System:
    """One side of the comparison, as a whole."""

    name: str
    server: str  # the server's policy under memory pressure
    program: str | None  # the policy that programs ask for; None if they do nothing
    restarts: bool = False  # a request ends at each call, and comes back as a new one


SYSTEMS = (
    System("vllm", "preserve", None, restarts=True),
    System("discard", "preserve", "discard"),
    System("preserve", "preserve", "preserve"),
    System("swap", "swap", "swap"),
    System("min-waste", "min-waste", "min-waste"),
    System("unaware", "min-waste", None),
)


async def _serve(
    endpoint: str, program: bytes, system: System, load: Sequence[Request], seed: int
) -> list[float]:
    latencies: list[float] = []
    async with Client(endpoint) as client:
        digest = await client.upload(program, name="intercept")
        await (await client.launch(digest, ["costs"])).result()  # what is compiled once
        vocabulary = (await client.models())[0]["vocab_size"]

        async def one(number: int, job: Request) -> None:
            await anyio.sleep(job.arrival)
            began = time.monotonic()
            tokens = [
                16 + (seed + number * 7919 + at * 31) % (vocabulary - 16)
                for at in range(job.prompt)
            ]
            at = 0
            while at < len(job.segments):
                try:
                    at, tokens = await _go_on(client, digest, system, job, at, tokens)
                except InferletFailed as error:
                    if "out-of-resources" not in str(error):
                        raise
                    await anyio.sleep(RETRY_SECONDS)
            lasted = time.monotonic() - began
            latencies.append((lasted - job.outside) / job.generated)

        async with anyio.create_task_group() as tasks:
            for number, job in enumerate(load):
                tasks.start_soon(one, number, job)
    return latencies


async def _go_on(
    client: Client, digest: str, system: System, job: Request, at: int, tokens: list[int]
) -> tuple[int, list[int]]:
    """Runs a request from a part on, to its end or that of the part; where it is then.

    Raises:
        InferletFailed: if it loses its pages; what it had reached by then is lost with them.
    """
    segments = job.segments[at : at + 1] if system.restarts else job.segments[at:]
    given = {
        "tokens": tokens,
        "parts": [
            (part.tokens, part.seconds > 0 and not system.restarts, part.answer)
            for part in segments
        ],
        "policy": system.program,
        "tool": job.kind,
        "tell": system.restarts,
    }
    instance = await client.launch(digest, [json.dumps(given)])
    reached = at + len(segments)
    async for message in instance:
        match json.loads(message):
            case ["call", number]:  # the tool runs here, for as long as the load says
                await anyio.sleep(segments[number].seconds)
                with suppress(RpcError):  # it was ended for want of pages, as its result says
                    await instance.send("done")
            case ["done", _, text]:
                tokens = text
    await instance.result()
    if system.restarts and job.segments[at].seconds:
        await anyio.sleep(job.segments[at].seconds)
    return reached, tokens


def serve(model: ModelConfig, system: System, load: Sequence[Request], seed: int) -> list[float]:
    """Seconds per generated token, without the calls, of each request on a server of its own."""
    program = GUEST.read_bytes()
    interception = {"policy": system.server}
    with bench_server(model, interception=interception, prefix_cache={"enabled": False}) as server:
        return anyio.run(_serve, server.endpoint, program, system, load, seed)
