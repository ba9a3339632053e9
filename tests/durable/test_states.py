"""A program says its state, and begins again with it: the journal before that may go."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
import trio
from support.durable import MODELS, cut_everywhere, follow, follow_all, journal_of
from support.servers import NO_MODEL, Server

from pie_control.durable.service import DurableInstances
from pie_control.journal.file import FORMAT, read_entries
from pie_control.journal.past import Past, up_to
from pie_py.client import InferletFailed
from pie_py.client.sync import Client

MESSAGES = [" one", " two", " three", " four"]

AGENT = """\
from inferlet import Context, Model, Sampler, runtime, session, store

async def main() -> str:
    state = runtime.last_checkpoint().decode()
    context = Context(Model.load()).fill("Once upon a time" + state)
    for _ in range(2):
        await store.update("count", lambda old: str(int(old or b"0") + 1))
        text = await context.generate(Sampler(top_p=0.9), max_tokens=10).collect_text()
        session.send(text)
        line = await session.receive()
        context.fill(line)
        state += text + line
    if not line.endswith("four"):
        runtime.checkpoint(state.encode())
    return f"{(await store.get('count')).decode()}{state}"
"""

REFUSED = """\
from inferlet import PieError, messaging, runtime, session

def refusal(state: bytes) -> str:
    try:
        runtime.checkpoint(state)
    except PieError as error:
        return error.code

async def main() -> str:
    codes = [refusal(bytes(60_000))]
    heard = messaging.subscribe("news")
    codes.append(refusal(b"state"))
    heard.close()
    if not runtime.last_checkpoint():
        await runtime.launch("child")  # one that has ended holds nothing up
        codes.append(refusal(",".join(map(str, codes)).encode()))
    return f"{runtime.last_checkpoint().decode()} {codes}"
"""


def sent_by(entries: list[Any]) -> list[str]:
    return [entry[4] for entry in entries[1:] if entry[:2] == ["call", "session.send"]]


def until(client: Any, journal: Path, waiting: str) -> None:
    """Until an instance has begun again, and waits for a message."""
    while b"checkpoint" not in journal.read_bytes() or client.instances()[0]["state"] != waiting:
        time.sleep(0.05)


def test_cut_anywhere_before_and_behind() -> None:
    with tempfile.TemporaryDirectory(prefix="pie-") as name:
        folder = Path(name)
        with Server(folder, models=MODELS) as server:
            with server.client() as client:
                program = client.upload(AGENT.encode(), "agent")
                instance = client.launch(program, durable=True, detached=True).id
            journal = journal_of(folder / "data", instance)
            # The journal is another file behind the checkpoint: this one stays as it was.
            os.link(journal, before := journal_of(folder / "data", "before"))
            whole = anyio.run(follow, server.endpoint, instance, MESSAGES)
        old, new = (read_entries(path.read_bytes())[0] for path in (before, journal))
        said = sent_by(old) + sent_by(new)
        assert whole.said == "".join(said)
        assert whole.result.startswith("4")
        assert (new[1][0], len(sent_by(old)), len(sent_by(new))) == ("checkpoint", 2, 2)
        not_acked = "".join(said[new[1][4]["acked"] :])
        first = cut_everywhere(folder / "data", "before", every=3)
        behind = cut_everywhere(folder / "data", instance, counted=2, every=3)
        with Server(folder, models=MODELS) as server:
            found = follow_all(server.endpoint, [*first, *behind], MESSAGES)
    wanted = dict.fromkeys(first, whole) | dict.fromkeys(behind, whole._replace(said=not_acked))
    assert {name: run for name, run in found.items() if run != wanted[name]} == {}


def test_a_state_stands_for_all_that_came_before_it() -> None:
    """Also for what came while the journal was read, and is not on disk yet."""
    journal: Any = SimpleNamespace(
        size=10, is_safe=True, replace=lambda entries: cut.append(entries)
    )
    durable = SimpleNamespace(journal=journal, coming_key=1, clock_ns=0)
    instance: Any = SimpleNamespace(durable=durable, guest=None, ended=None)
    changes = [{"size": 15}, {"is_safe": False}, {"is_safe": True}]
    cut: list[int] = []

    async def own_past(instance: Any) -> Any:
        size = journal.size
        return SimpleNamespace(size=size, cut=lambda *told: size)

    async def settled() -> None:
        vars(journal).update(changes.pop(0))

    async def begin_again(instance: Any) -> None:
        assert cut == [15]

    service: Any = SimpleNamespace(
        shelf=SimpleNamespace(writer=SimpleNamespace(settled=settled)),
        _own_past=own_past,
        _registry=SimpleNamespace(begin_again=lambda instance: None),
        _begin_again=begin_again,
    )
    trio.run(DurableInstances._cut, service, instance, b"state")
    assert (cut, changes) == ([15], [])


def test_one_that_has_begun_again_sleeps_is_resumed_and_branched(short_folder: Path) -> None:
    idle = {"durable": {"idle_seconds": 0.3}}
    with Server(short_folder, models=MODELS, **idle) as server, server.client() as client:
        instance = client.launch(client.upload(AGENT.encode(), "agent"), durable=True)
        for message in MESSAGES[:2]:
            instance.send(message)
        until(client, journal_of(short_folder / "data", instance.id), "asleep")
        heard = [instance.receive() for _ in range(3)]
        client.kill(instance.id)
        with pytest.raises(InferletFailed, match="killed"):
            instance.result()
        at = [call["call"] for call in client.calls(instance.id)].index("session.send") + 1
        branch = client.branch(instance.id, at)
        client.resume(instance.id)
        for one in (client.attach(instance.id), branch):
            for message in MESSAGES[2:]:
                one.send(message)
            *_, last = one  # who attaches may get again what was not acknowledged
            told = [str(text) + line for text, line in zip([*heard, last], MESSAGES, strict=True)]
            assert one.result()[1:] == "".join(told)


def test_a_branch_has_of_equal_messages_as_many_as_were_taken() -> None:
    facts = {"outbox": [], "topics": {}, "children": {}, "received": [], "models": {}, "acked": 0}
    checkpoint = ["checkpoint", b"", 0, 0, {**facts, "texts": ["yes", "yes"], "blobs": [b"x"]}]
    taken = ["call", "session.receive", None, True, "yes"]
    sent = ["sent", b"id", "yes"]
    head = {"journal": FORMAT}
    for calls, of_checkpoint, behind in ((0, 0, 0), (1, 1, 0), (2, 2, 0), (3, 2, 1)):
        found = up_to([head, checkpoint, sent, taken, taken, taken], calls)
        assert found[0][-1]["texts"] == ["yes"] * of_checkpoint
        assert found[0][-1]["blobs"] == []
        assert found[1:] == [sent] * behind + [taken] * calls
        assert Past.of([head, *found], 0).texts == []


ENDLESS = """\
import asyncio
from inferlet import PieError, messaging, runtime

async def main(how: str) -> None:
    while True:
        match how:
            case "calls":
                runtime.now()
            case "failures":
                try:
                    messaging.subscribe("")
                except PieError:
                    pass
            case "topics":
                messaging.subscribe("news").close()
            case "sleeps":
                await asyncio.sleep(0)
                await runtime.sleep(0)
"""


@pytest.fixture(scope="module")
def short_journals() -> Iterator[Client]:
    server = Server(durable={"journal_bytes": 100_000}, **NO_MODEL)
    with server, server.client() as client:
        yield client


@pytest.mark.parametrize("how", ["calls", "failures", "topics", "sleeps"])
def test_a_program_that_goes_on_for_ever_fills_no_disk(short_journals: Client, how: str) -> None:
    program = short_journals.upload(ENDLESS.encode(), "endless")
    instance = short_journals.launch(program, ["--how", how], durable=True)
    told = pytest.raises(InferletFailed, match="limit-exceeded: its journal has more than 100000")
    with told:
        instance.result(30.0)


def test_what_would_be_lost_is_refused(short_journals: Client) -> None:
    client = short_journals
    client.upload(b"async def main(): pass", "child")
    program = client.upload(REFUSED.encode(), "refused")
    assert "unsupported" in client.launch(program).result()
    codes = "limit-exceeded,busy"
    told = client.launch(program, durable=True).result()
    assert told == f"{codes} ['limit-exceeded', 'busy']"
