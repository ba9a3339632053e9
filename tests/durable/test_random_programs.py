"""Random programs, whose journals are cut everywhere: each does what the one did that was not."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from support.durable import MODELS, cut_everywhere, follow_all
from support.servers import Server

MESSAGES = [" one", " two", " three"]  # a program takes them all

BEGIN = """\
import asyncio
from inferlet import Context, Model, Sampler, runtime, session, store
from inferlet.samplers import mirostat

SCHEMA = {"type": "array", "items": {"type": "integer"}, "maxItems": 3}

async def text(c, count, sampler=None, **more):
    return await c.generate(sampler or Sampler(top_p=0.9), max_tokens=count, **more).collect_text()

async def look(c, steps):
    generation, seen = c.generate(max_tokens=steps), []
    async for step in generation:
        tokens = (await step.distribution(3)).tokens
        seen.append(tokens)
        generation.accept([tokens[-1]])
    return seen

async def streamed(c, count):
    async for piece in c.generate(Sampler(), max_tokens=count).stream_text():
        session.send(piece)

async def main() -> str:
    c = Context(Model.load()).fill("Once upon a time")
    kept = [c]
"""
END = """\
    return str(await store.get('count'))
"""
STATEMENTS = (
    "session.send(await text(c, {n}))",
    "session.send(await text(c, {n}, Sampler(repetition_penalty=1.2)))",
    "session.send(await text(c, {n}, mirostat(mu=10.0, tau=5.0, rate=0.1)))",
    "session.send(await text(c, {n}, stop=['a', 'e']))",
    "session.send(await text(c, {n}, speculate=4))",
    "session.send(str(await asyncio.gather(text(c.fork(), {n}), text(c.fork(), 6, seed={n}))))",
    "session.send(str(await look(c, 3)))",
    "session.send(str(await c.generate(Sampler(), max_tokens=40).collect_json(SCHEMA)))",
    "session.send(str(len(runtime.random_bytes({n}))))",
    "session.send(str(await asyncio.gather(store.get('count'), runtime.sleep(0.00{n}))))",
    "await c.generate(Sampler(top_p=0.95), max_tokens={n}).send_text()",
    "await streamed(c, {n})",
    "await store.update('count', lambda old: str(int(old or b'0') + 1))",
    "await runtime.sleep(0.00{n})",
    "c.fill(' and then')",
    "kept.append(c.fork())",
    "c = kept.pop(0); kept.append(c)",
    "c = Context(Model.load()).fill('The dog')",
)


def random_program(seed: int) -> str:
    """A program of some statements, with all messages received at random places."""
    chance = random.Random(seed)
    body = [chance.choice(STATEMENTS).replace("{n}", str(chance.randint(2, 9))) for _ in range(8)]
    for _ in MESSAGES:
        body.insert(chance.randint(0, len(body)), "c.fill(await session.receive())")
    source = BEGIN + "".join(f"    {line}\n" for line in body) + END
    return source.replace("'count'", f"'count{seed}'")


FAILS = "async def main():\n    raise ValueError('no')\n"


@pytest.mark.parametrize(
    ("seeds", "every"), [(range(2), 5), pytest.param(range(100, 112), 1, marks=pytest.mark.nightly)]
)
def test_cut_anywhere(seeds: range, every: int, short_folder: Path) -> None:
    """A failure is told alike, too, also of a program that is no longer the one of its name."""
    sources = [*map(random_program, seeds), FAILS, FAILS + "#"]
    with Server(short_folder, models=MODELS) as server:
        with server.client() as client:
            programs = [client.upload(source.encode(), "it") for source in sources]
            launched = [client.launch(p, durable=True, detached=True).id for p in programs]
        whole = follow_all(server.endpoint, launched, MESSAGES)
    for one in launched[-2:]:
        assert 'File "it.py"' in whole[one].result
    data, counters = short_folder / "data", [*(f"count{seed}" for seed in seeds), "count", "count"]
    cuts = {
        one: cut_everywhere(data, one, counter, every=every if counter != "count" else 1)
        for one, counter in zip(launched, counters, strict=True)
    }
    with Server(short_folder, models=MODELS) as server:
        for one in launched:
            found = follow_all(server.endpoint, cuts[one], MESSAGES)
            assert {cut: run for cut, run in found.items() if run != whole[one]} == {}
