"""Runs of durable instances, whose journals are cut at any entry and gone on with."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import anyio

from pie_control.journal.file import framed, read_entries
from pie_py.client import Client, InferletFailed, RpcError
from pie_py.wire import methods

# A text depends on nothing else then: the cuts of a journal run together, and it ran alone.
MODELS = [{"deterministic": True}]

# Counts and writes; with `anew` it says its state after every third round.
COUNT = """\
import json
from inferlet import Context, Model, Sampler, runtime, session, store

async def main(name: str, rounds: int, anew: int = 0) -> str:
    number, text = json.loads(runtime.last_checkpoint() or '[0, "Once upon a time"]')
    while number < rounds:
        context = Context(Model.load()).fill(text)
        for number in range(number, min(number + 3, rounds)):
            before = await store.update(name, lambda old: str(int(old or b"0") + 1))
            said = await context.generate(Sampler(seed=number), max_tokens=8).collect_text()
            session.send(f"{number} {int(before)} {said}")
            context.fill(answer := await session.receive())
            text += said + answer
        number += 1
        if anew and number < rounds:
            runtime.checkpoint(json.dumps([number, text]).encode())
    return (await store.get(name)).decode()
"""


class Game:
    """Some of those that count play, each with a client of its own, in a thread."""

    def __init__(
        self,
        connect: Callable[[], Client],
        program: str,
        name: str,
        counters: int,
        rounds: int,
        *,
        durable: bool = True,
        pause: float = 0.0,
    ) -> None:
        """They pause for so many seconds after each answer."""
        self.found: list[tuple[list[str], str]] = []  # what each heard, and its result
        self.begun = threading.Semaphore(0)  # counters that were launched
        self._connect, self._program, self._name, self._counters = connect, program, name, counters
        self._rounds, self._durable, self._pause = rounds, durable, pause
        self.thread = threading.Thread(target=anyio.run, args=(self._play,))
        self.thread.start()

    async def _play(self) -> None:
        async with anyio.create_task_group() as tasks:
            for number in range(self._counters):
                tasks.start_soon(self._count, number)

    async def _count(self, number: int) -> None:
        async with self._connect() as client:
            args = ["--name", f"{self._name}{number}", "--rounds", str(self._rounds)]
            args += ["--anew", str(int(self._durable))]
            instance = await client.launch(self._program, args, durable=self._durable)
            self.begun.release()
            heard: list[str] = []
            async for message in instance:
                heard.append(str(message))
                await instance.send(f" {len(heard)}")
                await anyio.sleep(self._pause)
            self.found.append((heard, await instance.result()))


class Run(NamedTuple):
    """What a client saw of an instance: all messages, joined, and its result."""

    said: str
    result: str


async def follow(endpoint: str, instance: str, messages: Iterable[str]) -> Run:
    """Sends an instance messages, each of which has a number, and reads it to its end."""
    async with Client(endpoint) as client:
        attached = await client.attach(instance)
        with suppress(RpcError):  # it has ended, and its result says why
            for number, message in enumerate(messages):
                await client._connected.ask(methods.Send(instance, message, b"message %d" % number))
        said = "".join([str(message) async for message in attached])
        try:
            return Run(said, await attached.result())
        except InferletFailed as error:
            return Run(said, str(error))


def follow_all(endpoint: str, instances: list[str], messages: list[str]) -> dict[str, Run]:
    """`follow`, of many at once."""
    found: dict[str, Run] = {}

    async def one(instance: str) -> None:
        with anyio.fail_after(120):
            found[instance] = await follow(endpoint, instance, messages)

    async def all_of_them() -> None:
        async with anyio.create_task_group() as tasks:
            for instance in instances:
                tasks.start_soon(one, instance)

    anyio.run(all_of_them)
    return found


def journal_of(data: Path, instance: str) -> Path:
    """The file of an instance's journal."""
    return data / "journals" / f"{instance}.journal"


def cut_everywhere(
    data: Path, instance: str, counter: str = "count", counted: int = 0, every: int = 1
) -> list[str]:
    """Makes journals of new instances of a server that does not run: that of an instance cut within
    each entry behind the head, or within every third one, say. What the others have is on disk, and
    so is what the store was asked of before: programs add 1 to the counter, which has `counted`
    when the journal begins. Of what it was asked last every second one has the answer not yet. A
    checkpoint is never cut.
    """
    path = journal_of(data, instance)
    entries, _ = read_entries(path.read_bytes())
    path.unlink()
    body = [entry for entry in entries[1:] if entry[0] != "acked"]
    made = []
    with sqlite3.connect(data / "store.sqlite3") as store:
        for place in range(body[0][0] == "checkpoint", len(body), every):
            name = f"{instance}-{place:05}"
            begun, rest = body[:place], body[place:]
            data_of_cut = b"".join(map(framed, [{**entries[0], "user": name}, *begun]))
            next_one = framed(rest[0])
            journal_of(data, name).write_bytes(data_of_cut + next_one[: len(next_one) // 2])
            key, is_done = (name, counter.encode()), place % 2 == 0
            _fill_store(store, key, counted, begun, rest, is_done=is_done)
            made.append(name)
    return made


def _fill_store(
    store: sqlite3.Connection,
    key: tuple[str, bytes],
    count: int,
    begun: list[Any],
    rest: list[Any],
    *,
    is_done: bool,
) -> None:
    """Counts the commits that were answered, and perhaps the one that was under way."""
    count += sum(entry[:2] == ["call", "store.store-commit"] for entry in begun)
    following = next((e for e in rest if e[0] == "call" and e[1].startswith("store.")), None)
    if is_done and following is not None and following[1] == "store.store-commit":
        count += 1
        store.execute("INSERT INTO done VALUES (?, ?)", (key[0], following[2]))
    if count:
        value = str(count).encode()
        row = (*key, value)
        store.execute('INSERT INTO entries ("user", key, value) VALUES (?, ?, ?)', row)
        store.execute("INSERT INTO usage VALUES (?, 1, ?)", (key[0], len(key[1]) + len(value)))
