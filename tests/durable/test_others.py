"""Durable instances and others over a crash: messages, children, saved contexts."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any

import psutil
from support.durable import MODELS
from support.servers import NO_MODEL, Server, until

CHILD = """\
from inferlet import session

async def main(word: str) -> str:
    return word + await session.receive()
"""

# With no crash the client sends `go` at once.
PARENT = """\
import asyncio
from inferlet import Context, Model, PieError, Sampler, messaging, runtime, session

async def main(child: str, story: str) -> str:
    model = Model.load()
    saved = Context(model).fill("Once upon a time there was a dog")
    await saved.flush()
    saved.save(story)
    heard = messaging.subscribe("news")
    first = await heard.receive()
    for word in ("one", "two", "three"):
        await messaging.push("work", word)
    got = [await messaging.pull("work")]
    grown = asyncio.ensure_future(runtime.launch(child, "--word", "grown "))
    opened = Context.open(model, story).fill(" that")
    drafter = Context(model).fill("Once upon a time there was a dog that")
    generation = opened.generate(Sampler(seed=3), max_tokens=8, speculate=4, drafter=drafter)
    session.send(await generation.collect_text())
    line = await session.receive()
    got += [await messaging.pull("work"), await messaging.pull("work")]
    rest = await heard.receive()
    count = await messaging.broadcast("others", "hear")
    try:
        saved.save(story)
        again = "saved"
    except PieError as error:
        again = error.code
    return f"{first} {rest} {got} {line} {await grown} {count} {again}"
"""

TELL = """\
from inferlet import messaging, session

async def main() -> str:
    heard = []
    while (word := await session.receive()) != "end":
        heard.append(await messaging.broadcast("news", word))
        session.send(str(heard[-1]))
    return str(heard)
"""

RESULT = "a b ['one', 'two', 'three'] go grown up 0 already-exists"


def child_of(client: Any, parent: str) -> str:
    while True:
        for one in client.instances(ended=True):
            if one["parent"] == parent:
                found: str = one["id"]
                return found
        time.sleep(0.05)


def begin(client: Any, story: str = "a") -> tuple[str, str, str]:
    """A parent that waits for its client, its child, and one that tells it news."""
    child = client.upload(CHILD.encode(), "child")
    program = client.upload(PARENT.encode(), "parent")
    parent = client.launch(program, ["--child", child, "--story", story], durable=True)
    tell = client.launch(client.upload(TELL.encode(), "tell"), durable=True)
    while True:
        tell.send("a")
        if tell.receive() == "1":
            break
    assert parent.receive() is not None, parent.result()
    return parent.id, child_of(client, parent.id), tell.id


def finish(client: Any, parent: str, child: str, tell: str) -> None:
    client.send(tell, "b")
    assert client.attach(tell).receive() in "01"
    client.send(tell, "end")
    assert client.result(tell).endswith("1, 1]")
    client.send(child, "up")
    client.send(parent, "go")
    assert client.result(parent) == RESULT
    assert client.result(child) == "grown up"


def test_over_a_crash_of_server_and_worker(short_folder: Path) -> None:
    server = Server(short_folder, models=MODELS).__enter__()
    with server.client() as client:
        ids = begin(client)
    server.kill()
    with Server(short_folder, models=MODELS) as server, server.client() as client:
        finish(client, *ids)
        ids = begin(client, "b")
        server.worker.kill()
        finish(client, *ids)


def test_asleep(short_folder: Path) -> None:
    settings = {"models": MODELS, "durable": {"idle_seconds": 0.3}}
    with Server(short_folder, **settings) as server, server.client() as client:
        ids = begin(client)
        while any(one["state"] != "asleep" for one in client.instances()):
            time.sleep(0.05)
        finish(client, *ids)


PUSHES = """
from inferlet import messaging

async def main() -> None:
    for word in ("first", "second"):
        await messaging.push("work", word)
"""
PULLS = """
from inferlet import messaging

async def main() -> str:
    return await messaging.pull("work")
"""


def test_messages_before_a_damaged_one_are_there_after_every_start(short_folder: Path) -> None:
    path = short_folder / "data/journals/queues"
    with Server(short_folder, **NO_MODEL) as server, server.client() as client:
        client.launch(client.upload(PUSHES.encode(), "pushes"), durable=True).result()
        server.kill()
    path.write_bytes(path.read_bytes().replace(b"second", b"Second") + b"x" * 100)
    with Server(short_folder, **NO_MODEL) as server:
        until(path.is_file)
        server.kill()
    with Server(short_folder, **NO_MODEL) as server, server.client() as client:
        assert client.launch(client.upload(PULLS.encode(), "pulls")).result() == "first"


PUSHES_MORE = """
from inferlet import messaging, session

async def main() -> None:
    while word := await session.receive():
        await messaging.push("work", word * 9000)
        session.send("pushed")
"""


def test_a_disk_that_was_full_has_the_messages_of_that_time_later(short_folder: Path) -> None:
    queues = short_folder / "data/journals/queues"
    with Server(short_folder, **NO_MODEL) as server, server.client() as client:
        pushes = client.launch(client.upload(PUSHES_MORE.encode(), "pushes"), durable=True)
        disk = partial(psutil.Process(server.process.pid).rlimit, psutil.RLIMIT_FSIZE)
        before = disk()
        disk((8000, before[1]))
        pushes.send("a")
        assert pushes.receive() == "pushed"
        disk(before)
        until(lambda: b"a" * 9000 in queues.read_bytes())
        server.kill()
    with Server(short_folder, **NO_MODEL) as server, server.client() as client:
        pulls = client.upload(PULLS.encode(), "pulls")
        assert client.launch(pulls).result() == "a" * 9000
