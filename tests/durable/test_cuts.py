"""A durable instance whose journal is cut anywhere does what the one that was not killed did."""

from __future__ import annotations

import tempfile
from pathlib import Path

import anyio
import pytest
from support.durable import cut_everywhere, follow, follow_all
from support.servers import Server

MESSAGES = ["hello", " two", "three"]

TALK = """\
import asyncio
from inferlet import Context, Model, Sampler, runtime, session, store

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}

async def add_one():
    await store.update("count", lambda old: str(int(old or b"0") + 1))

async def text(context, count, **more):
    return await context.generate(Sampler(top_p=0.95, **more), max_tokens=count).collect_text()

async def main() -> str:
    context = Context(Model.load()).fill("Once upon a time")
    session.send("begin\\n")
    session.send(await text(context, 20))
    key = runtime.random_bytes(4).hex()
    for _ in range(3):
        await add_one()
    session.send(await session.receive())
    await context.generate(Sampler(top_p=0.9), max_tokens=40).send_text()
    context.fill(await session.receive())
    a, b = context.fork(), context.fork()
    texts = text(a, 12), text(b, 9, seed=7)
    session.send(f"{await asyncio.gather(*texts, session.receive(), runtime.sleep(0.01))}")
    async for piece in a.generate(Sampler(repetition_penalty=1.3), max_tokens=12).stream_text():
        session.send(piece)
    session.send(f"{await b.generate(Sampler(), max_tokens=30).collect_json(SCHEMA)}")
    session.send_blob(b"\\x00\\xff") if key == "" else None
    began = runtime.monotonic()
    assert runtime.monotonic() >= began
    count = (await store.get("count")).decode()
    return f"{count} {key == key.lower()}"
"""

STEPS = """\
from inferlet import Context, Model, Sampler, session
from inferlet.samplers import mirostat

async def main() -> str:
    context = Context(Model.load()).fill("Once upon a time there was")
    line = await session.receive()
    async for step in context.generate(Sampler(top_p=0.9, logprobs=3), max_tokens=14):
        output = await step.execute()
        session.send(f"{output.tokens} {output.distribution().tokens} ")
    generation = context.generate(max_tokens=8)
    async for step in generation:
        likely = await step.distribution(4)
        generation.accept([likely.tokens[1]])
    other = context.fork()
    session.send(await other.generate(mirostat(mu=8.0), max_tokens=10).collect_text())
    return line + await session.receive() + await session.receive()
"""


@pytest.mark.parametrize("program", [TALK, STEPS], ids=["talk", "steps"])
def test_a_cut_journal_gives_the_same(program: str) -> None:
    with tempfile.TemporaryDirectory(prefix="pie-") as name:
        folder = Path(name)
        with Server(folder) as server:
            with server.client() as client:
                uploaded = client.upload(program.encode(), "it")
                instance = client.launch(uploaded, durable=True, detached=True)
            whole = anyio.run(follow, server.endpoint, instance.id, MESSAGES)
        assert "Traceback" not in whole.result, whole.result
        cuts = cut_everywhere(folder / "data", instance.id)
        assert len(cuts) > 20
        with Server(folder) as server:
            found = follow_all(server.endpoint, cuts, MESSAGES)
    assert {name: run for name, run in found.items() if run != whole} == {}
