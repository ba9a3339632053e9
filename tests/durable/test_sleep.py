"""Durable instances that wait are put away, and come back when something comes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.durable import journal_of
from support.rig import Rig
from support.servers import NO_MODEL, Server

from pie_control.journal.file import framed, read_entries
from pie_py.client import InferletFailed

IDLE = {"durable": {"idle_seconds": 0.3}}

AGENT = """\
import asyncio
from inferlet import Context, Model, Sampler, runtime, session, store

async def main(seconds: int = 0) -> str:
    context = Context(Model.load()).fill("Once upon a time")
    text = await context.generate(Sampler(seed=1), max_tokens=12).collect_text()
    count = await store.update("count", lambda old: str(int(old or b"0") + 1))
    session.send(text)
    if seconds:
        await runtime.sleep(seconds)
        return "the time has come"
    line = await session.receive()
    session.send(line)
    line += await session.receive()
    context.fill(line)
    more = await context.generate(Sampler(seed=2), max_tokens=12).collect_text()
    return f"{count.decode()}:{line}:{more}"
"""


def state_of(client: Any, instance: str) -> dict[str, Any]:
    return next(one for one in client.instances(ended=True) if one["id"] == instance)


def until_asleep(client: Any, *instances: str) -> None:
    while any(state_of(client, one)["state"] != "asleep" for one in instances):
        time.sleep(0.05)


def test_one_that_sleeps_comes_back(short_folder: Path) -> None:
    with Server(short_folder, **IDLE) as server, server.client() as client:
        program = client.upload(AGENT.encode(), "agent")
        plain = client.launch(program)
        begun = plain.receive()
        plain.send("a")
        plain.send("b")
        rest = plain.result().partition(":")[2]
        first = client.launch(program, durable=True)
        other = client.launch(program, durable=True, detached=True)
        assert first.receive() == begun
        until_asleep(client, first.id, other.id)
        found = state_of(client, first.id)
        assert (found["pages"], found["cpu_ms"], found["waits"]) == (0, 0.0, [])
        first.send("a")
        assert first.receive() == "a"
        until_asleep(client, first.id)
        first.send("b")
        assert first.result().partition(":")[2] == rest
        client.kill(other.id)
        with pytest.raises(InferletFailed, match="killed"):
            client.attach(other.id).result()


@pytest.mark.nightly
def test_sleepers_sleep_on_over_a_restart(short_folder: Path) -> None:
    server = Server(short_folder, **IDLE).__enter__()
    with server.client() as client:
        program = client.upload(AGENT.encode(), "agent")
        first = client.launch(program, durable=True, detached=True)
        until_asleep(client, first.id)  # it has counted first
        late = client.launch(program, ["--seconds", "9999"], durable=True, detached=True)
        until_asleep(client, late.id)
    server.kill()
    path = journal_of(short_folder / "data", late.id)
    entries, _ = read_entries(path.read_bytes())
    (place,) = (n for n, entry in enumerate(entries[1:], 1) if entry[0] == "due")
    entries[place][2] = entries[-1][1] = time.time_ns()  # the time has come meanwhile
    assert entries[-1][0] == "asleep"
    path.write_bytes(b"".join(map(framed, entries)))
    with Server(short_folder, durable={"idle_seconds": 60}) as server, server.client() as client:
        assert state_of(client, first.id)["state"] == "asleep"
        assert client.result(late.id) == "the time has come"
        attached = client.attach(first.id)
        begun = attached.receive()
        assert state_of(client, first.id)["state"] == "asleep"
        attached.send("a")
        assert attached.receive() == "a"
        assert state_of(client, first.id)["state"] == "running"
        attached.send("b")
        assert attached.result().startswith("1:ab:")
        assert begun


@pytest.mark.nightly
def test_many_that_sleep_take_little(short_folder: Path) -> None:
    """Of 10 000 the closed experiment `durable` had figures (docs/durable.md)."""
    count, most = 1000, 100_000  # bytes of each
    with Server(short_folder, **IDLE) as server, server.client() as client:
        program = client.upload(AGENT.encode(), "agent")
        first = client.launch(program, durable=True, detached=True)
        until_asleep(client, first.id)
    journal = journal_of(short_folder / "data", first.id)
    with Server(short_folder) as server:
        alone = psutil.Process(server.process.pid).memory_info().rss
    names = [f"agent-{number:05}" for number in range(count)]
    for name in names:
        journal.with_name(f"{name}.journal").write_bytes(journal.read_bytes())
    with Server(short_folder) as server, server.client() as client:
        assert {one["state"] for one in client.instances()} == {"asleep"}
        together = psutil.Process(server.process.pid).memory_info().rss
        assert together - alone < count * most
        for name in names[::100]:
            agent = client.attach(name)
            begun = agent.receive()
            agent.send("a")
            assert agent.receive() == "a", begun
            agent.send("b")
            assert agent.result().startswith("1:ab:")


def test_one_that_is_put_away_counts_as_asleep_until_it_is_roused() -> None:
    """A user has a share of those that may sleep."""
    rig = Rig()
    registry, one = rig.registry, rig.launch("ann")
    rig.launch("ann")
    counts = [(registry.users.alive("ann"), registry.users.asleep["ann"])]
    for change in (registry.put_away, registry.rouse):
        change(one)
        counts.append((registry.users.alive("ann"), registry.users.asleep["ann"]))
    assert counts == [(2, 0), (1, 1), (2, 0)]


PATIENT = """\
from inferlet import session

async def main() -> str:
    return await session.receive()
"""


def test_a_message_like_the_servers_own_entry_is_a_message(short_folder: Path) -> None:
    """Only the ends of the journals of those that sleep are read: what a client says there, such as
    that the instance is another user's, is not believed."""
    with Server(short_folder) as server, server.client() as client:
        program = client.upload(PATIENT.encode(), "patient")
        patient = client.launch(program, durable=True, detached=True)
        path = journal_of(short_folder / "data", patient.id)
        (head, *_), _ = read_entries(path.read_bytes())
        client.attach(patient.id).send(framed(["asleep", None, {"head": {**head, "user": "eve"}}]))
        server.kill()
    with Server(short_folder) as server, server.client() as client:
        found = state_of(client, patient.id)
        assert (found["state"], found["user"]) == ("running", "local")
        attached = client.attach(patient.id)
        attached.send("here")
        assert attached.result() == "here"


FOR_EVER = b"""\
from inferlet import raw

async def main() -> str:
    raw.wait([raw.sleep(2**64 - 1)])
    return "woken"
"""


def test_one_sleeps_for_as_long_as_can_be_said(short_folder: Path) -> None:
    with Server(short_folder, **IDLE, **NO_MODEL) as server, server.client() as client:
        instance = client.launch(client.upload(FOR_EVER, "for-ever"), durable=True, detached=True)
        until_asleep(client, instance.id)
        client.attach(instance.id).cancel()
